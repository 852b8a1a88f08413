"""The tokens of a score dataset that its model finds least likely."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import PathName
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.token_rows import token_batches

_BATCH_TOKENS = 131_072


class WorstToken(NamedTuple):
    """One token.

    Attributes:
        conversation_id: Of the conversation.
        branch: 0 without branches.
        position: Of the token.
        message_index: Of its message, -1 for none.
        role: Of its message; None for none.
        token_id: Its id.
        text: What it stands for, bytes that are no UTF-8 as U+FFFD; `<ID>` without a vocabulary.
        logprob: In nats; -inf where the model rules it out.
        rank: 1 = most likely; None where there is none.
    """

    conversation_id: str
    branch: int
    position: int
    message_index: int
    role: str | None
    token_id: int
    text: str
    logprob: float
    rank: int | None

    def to_dict(self) -> dict[str, object]:
        """For JSON, which has no infinity: such a logprob is null."""
        return self._asdict() | {"logprob": self.logprob if np.isfinite(self.logprob) else None}


def worst_tokens(dataset: PathName, n: int) -> list[WorstToken]:
    """The `n` tokens with the lowest logprobs, the lowest first; of equal ones the first in the dataset.

    Memory grows with `n`, not with the number of tokens.

    Args:
        dataset: Of scores.
        n: How many, at least 1; fewer where fewer have a logprob.

    Raises:
        UsageError: `n` is below 1.
        InputError: No whole score dataset.
    """
    if n < 1:
        raise UsageError(f"`n` is {n}; expected at least 1.")
    opened = Dataset(dataset, kind=DatasetKind.SCORES)
    columns = ["position", "message_index", "role", "token_id", "logprob", "rank"]
    found: list[WorstToken] = []
    for places, starts, table in token_batches(opened.places(), opened.token_rows(columns), _BATCH_TOKENS):
        logprobs = table["logprob"].to_numpy()
        known = np.flatnonzero(~np.isnan(logprobs))
        if len(known) > n:
            limit = np.partition(logprobs[known], n - 1)[n - 1]
            known = known[logprobs[known] <= limit]
        rows = known[np.argsort(logprobs[known], kind="stable")][:n]
        conversations = np.searchsorted(starts, rows, side="right") - 1
        found += [
            WorstToken(
                places[conversation].conversation_id,
                places[conversation].branch,
                row["position"],
                row["message_index"],
                row["role"],
                row["token_id"],
                "",
                row["logprob"],
                row["rank"],
            )
            for row, conversation in zip(table.take(rows).to_pylist(), conversations.tolist(), strict=True)
        ]
        # Those of earlier batches stay first among equal ones.
        found = sorted(found, key=lambda token: token.logprob)[:n]
    texts = opened.token_bytes({token.token_id for token in found})
    return [
        token._replace(text=texts.get(token.token_id, b"<%d>" % token.token_id).decode(errors="replace"))
        for token in found
    ]
