"""Shards: which parts of a run one job of an array writes."""

from __future__ import annotations

import re
from typing import NamedTuple

from tokscore.dataset.errors import UsageError


class Shard(NamedTuple):
    """Job `number` of `n_shards`.

    Attributes:
        number: 1 to `n_shards`.
        n_shards: Jobs that divide the parts among them.
    """

    number: int = 1
    n_shards: int = 1

    def owns(self, part: int) -> bool:
        """Whether this job writes the part with that index."""
        return part % self.n_shards == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.n_shards}"


WHOLE = Shard()


def parse_shard(text: str) -> Shard:
    """The shard that a user wrote as I/N, counted from 1.

    Raises:
        UsageError: It is something else.
    """
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    shard = Shard(*map(int, found.groups())) if found else None
    if shard is None or not 1 <= shard.number <= shard.n_shards:
        raise UsageError(f"`shard` is {text!r}; expected I/N with I from 1 to N, such as 3/8.")
    return shard
