"""How `{% generation %}` tags differ from the rule for sampled tokens.

Where a template has tags they decide. What the rule would have said is compared with them, and every message
on which the two disagree carries the name of the policy behind it, so that a report can leave those out.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from tokscore.dataset.tokens import NO_MESSAGE, MessageFlag
from tokscore.rendering.attribution.headers import Answer
from tokscore.rendering.attribution.sampled import SampledTokens
from tokscore.rendering.attribution.tokenizer import Encoding

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Policy(StrEnum):
    """Why tags and rule disagree on a message; all but the last two are decisions, not mistakes."""

    HEADER = "tags_cover_header"  # of the turn, which the generation prompt supplies
    THINK_PREFIX = "tags_cover_think_prefix"  # which the generation prompt supplies behind the role
    STRADDLED = "tags_cover_straddling_token"  # it holds the header's end and the first of the answer
    WHITE_SPACE = "tags_cover_white_space"  # behind the stop
    STOP = "tags_leave_out_stop"
    UNKNOWN = "tags_decide_alone"  # the rule cannot tell
    OTHER = "tags_differ"


def apply_tags(
    tags: NDArray[np.bool_],
    rule: SampledTokens,
    text: str,
    encoding: Encoding,
    owners: NDArray[np.int32],
) -> SampledTokens:
    """The sampled tokens by the tags, with the policies by which the rule differs as flags.

    Args:
        tags: Inside a generation block, shape [tokens].
        rule: What the rule says of the same tokens.
        text: The rendered text.
        encoding: Its tokens.
        owners: Message of each token, shape [tokens].
    """
    found: dict[int, set[Policy]] = {message: {Policy.UNKNOWN} for message in rule.unknown}
    answers = list(rule.answers.items())
    turn_starts = np.array([answer.turn_start for _, answer in answers])
    for k in np.flatnonzero((rule.mask >= 0) & (tags != (rule.mask == 1))).tolist():
        at = int(np.searchsorted(turn_starts, k, side="right")) - 1
        if at < 0:
            if owners[k] != NO_MESSAGE:
                found.setdefault(int(owners[k]), set()).add(Policy.OTHER)
            continue
        message, answer = answers[at]
        straddles = MessageFlag.HEADER_STRADDLED in rule.flags.get(message, ())
        policy = _policy(k, tags, answer, text, encoding, straddles=straddles)
        found.setdefault(message, set()).add(policy)
    flags: dict[int, list[str]] = {message: sorted(policies) for message, policies in found.items()}
    return SampledTokens(tags.astype(np.int8), flags, {}, rule.answers)


def _policy(
    k: int, tags: NDArray[np.bool_], answer: Answer, text: str, encoding: Encoding, *, straddles: bool
) -> Policy:
    def is_blank(start: int, stop: int) -> bool:
        return not text[encoding.starts[start] : encoding.stops[stop - 1]].strip()

    if not tags[k]:
        return Policy.STOP if answer.has_stop and k == answer.stop - 1 else Policy.OTHER
    if straddles and k == answer.start - 1:
        return Policy.STRADDLED
    if k < answer.start:
        untagged = np.flatnonzero(~tags[answer.turn_start : k])
        first = answer.turn_start + int(untagged[-1]) + 1 if len(untagged) else answer.turn_start
        only_tail = first > answer.turn_start and not is_blank(first, answer.start)
        return Policy.THINK_PREFIX if only_tail else Policy.HEADER
    if answer.has_stop and is_blank(answer.stop, k + 1):
        return Policy.WHITE_SPACE
    return Policy.OTHER
