"""Why records could not be used, counted by kind of reason."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tokscore.dataset.tokens import FailedConversation

# What differs between records that fail for one reason: places, texts and numbers.
_INDEX = re.compile(r"\[\d+\]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER = re.compile(r"\d[\d,]*")


class FailureReason(NamedTuple):
    """One kind of reason.

    Attributes:
        n: Records that failed for it.
        first: The first of them.
    """

    n: int
    first: FailedConversation


def failure_reasons(failures: Iterable[FailedConversation]) -> list[FailureReason]:
    """Records that failed by the kind of their reason, the most frequent first.

    Reasons that differ in places, quoted texts or numbers alone are of one kind. One record of each is held.
    """
    found: dict[tuple[str, str], FailureReason] = {}
    for failure in failures:
        reason = _NUMBER.sub("#", _QUOTED.sub("…", failure.reason.partition("\n")[0]))
        kind = (_INDEX.sub("[*]", failure.path), reason)
        before = found.get(kind)
        found[kind] = FailureReason(1, failure) if before is None else before._replace(n=before.n + 1)
    return sorted(found.values(), key=lambda each: -each.n)
