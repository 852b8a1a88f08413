"""The rows of one prompt: which are wanted, and those that steps of the model have made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tokscore.scoring.engines.vllm.worker.marks import OWN


class Rows(NamedTuple):
    """Rows of one request, on the model's device, the realised token first.

    Attributes:
        ids: int32 [rows, 1 + k + 1], the position last.
        logprobs: float32 [rows, 1 + k + 1 + given], the entropy and the given ids last.
        ranks: int32 [rows].
    """

    ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor


@dataclass(slots=True)
class PromptRows:
    """What is wanted of one prompt, and what is made of it.

    Attributes:
        wanted: Positions of the rows, ascending; one may be there several times. None where all are wanted.
        others: For each of them an id to be scored, `OWN` for the token that follows; None where all are own.
        given: For each of them further ids to be scored, int32 [rows, width]; None where there are none.
        n_done: Position up to which the rows are made.
        blocks: Rows, and their positions.
    """

    wanted: NDArray[np.int64] | None
    others: NDArray[np.int64] | None = None
    given: NDArray[np.int32] | None = None
    n_done: int = 0
    blocks: list[tuple[NDArray[np.int64], Rows]] = field(default_factory=list)

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """The wanted positions in [start, stop)."""
        if self.wanted is None:
            return np.arange(start, stop)
        first, last = np.searchsorted(self.wanted, (start, stop))
        return self.wanted[first:last]

    def others_at(self, start: int, stop: int) -> NDArray[np.int64]:
        """The ids to be scored at the wanted positions in [start, stop)."""
        if self.wanted is None or self.others is None:
            return np.full(len(self.positions(start, stop)), OWN, np.int64)
        first, last = np.searchsorted(self.wanted, (start, stop))
        return self.others[first:last]

    def given_at(self, start: int, stop: int) -> NDArray[np.int32] | None:
        """The given ids of the rows about the wanted positions in [start, stop)."""
        if self.given is None:
            return None
        first, last = (start, stop) if self.wanted is None else np.searchsorted(self.wanted, (start, stop))
        return self.given[first:last]

    @property
    def n_given(self) -> int:
        """Width of the given ids."""
        return 0 if self.given is None else self.given.shape[1]

    def go_back_to(self, start: int) -> None:
        """Forget the rows from a position on: the prompt is computed anew from there."""
        kept = []
        for positions, rows in self.blocks:
            n = int(np.searchsorted(positions, start))
            if n:
                kept.append((positions[:n], Rows(*(column[:n] for column in rows))))
        self.blocks = kept

    def joined(self, top_k: int) -> Rows:
        """All rows that were made, empty where none was."""
        blocks = [rows for _, rows in self.blocks]
        if not blocks:
            blocks = [
                Rows(
                    torch.empty((0, top_k + 2), dtype=torch.int32),
                    torch.empty((0, top_k + 2 + self.n_given)),
                    torch.empty(0, dtype=torch.int32),
                )
            ]
        return Rows(
            *(column[0] if len(column) == 1 else torch.cat(column) for column in zip(*blocks, strict=True))
        )
