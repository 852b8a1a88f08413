"""Tokens with a recorded logprob and another one, from a dataset or from files of recorded ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokscore.analytics.comparison.pairing import Skipped
from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.trajectories.recorded import RecordedInput
from tokscore.dataset.choices import GroupBy, RecordedAgainst
from tokscore.dataset.errors import UsageError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.rows import token_table
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.token_rows import Place, conversation_name, token_batches
from tokscore.dataset.tokens import RECORDED_SOURCE, MessageFacts, RenderedTokens
from tokscore.rendering.conversations.trace import Node, Trace
from tokscore.rendering.recorded_ids.branch import join

_COLUMNS = {RecordedAgainst.SCORED: "logprob", RecordedAgainst.TRAINER: "trainer_logprob"}
# What only the template says of a token.
_RENDERED = (GroupBy.SOURCE, GroupBy.IS_CONTENT)


class Pairs(NamedTuple):
    """Whole conversations; arrays have shape [tokens], one entry for a token with both logprobs.

    Attributes:
        places: The conversations.
        starts: First row of each, and the number of all rows; int64.
        table: All rows.
        rows: Indices of the tokens, int64.
        recorded: Logprobs as the input said, float64.
        other: Of the model that scored, or of the trainer, float64.
    """

    places: list[Place]
    starts: NDArray[np.int64]
    table: pa.Table
    rows: NDArray[np.int64]
    recorded: FloatArray
    other: FloatArray

    def without(self, conversations: Sequence[int]) -> Pairs:
        """Only the other conversations."""
        is_kept = ~np.isin(np.arange(len(self.places)), conversations)
        rows_kept = np.repeat(is_kept, np.diff(self.starts))
        new_rows = np.cumsum(rows_kept) - 1
        tokens = rows_kept[self.rows]
        return Pairs(
            [place for place, keep in zip(self.places, is_kept.tolist(), strict=True) if keep],
            np.append(0, np.cumsum(np.diff(self.starts)[is_kept])),
            self.table.filter(pa.array(rows_kept)),
            new_rows[self.rows[tokens]],
            self.recorded[tokens],
            self.other[tokens],
        )


class DatasetPairs:
    """The pairs of a dataset.

    Attributes:
        name: How messages call it.
        against: Whose logprobs the recorded ones are held against.
    """

    def __init__(self, path: Path, against: RecordedAgainst | None) -> None:
        """Open it; scores are compared where it has them, unless `against` says otherwise.

        Raises:
            InputError: No whole dataset, or none with scores where these are asked for.
        """
        kind = DatasetKind.SCORES if against is RecordedAgainst.SCORED else None
        self._dataset = Dataset(path, kind=kind)
        is_scored = self._dataset.manifest.kind is DatasetKind.SCORES
        self.name = str(self._dataset.root)
        self.against = against or (RecordedAgainst.SCORED if is_scored else RecordedAgainst.TRAINER)

    def batches(self, columns: Sequence[str], n_tokens: int) -> Iterator[Pairs]:
        """All conversations in batches of at least so many rows, with these token columns.

        Raises:
            InputError: A table is damaged.
        """
        other = _COLUMNS[self.against]
        wanted = [*dict.fromkeys(["position", "recorded_logprob", other, *columns])]
        rows = self._dataset.token_rows(wanted)
        for places, starts, table in token_batches(self._dataset.places(), rows, n_tokens):
            yield _pairs(places, starts, table, other)


class FilePairs:
    """The pairs of files whose records carry ids and two logprobs of each token; no model is needed.

    Attributes:
        name: How messages call them.
        against: The trainer.
        recorded: The files; what could not be read is among its failures.
        skipped: Conversations without token ids, as far as they were read.
    """

    def __init__(self, files: Sequence[str], against: RecordedAgainst | None) -> None:
        """Plan the files.

        Raises:
            UsageError: Scores are asked for.
            InputError: A file is missing, empty or damaged.
        """
        if against is RecordedAgainst.SCORED:
            raise UsageError(
                f"{', '.join(files)}: files have no scores; expected a score dataset, as `logprobs` makes "
                "of them."
            )
        self.name = ", ".join(files)
        self.against = RecordedAgainst.TRAINER
        self.recorded = RecordedInput(files)
        self.skipped: list[Skipped] = []

    def batches(self, columns: Sequence[str], n_tokens: int) -> Iterator[Pairs]:
        """As of `DatasetPairs`.

        Raises:
            UsageError: A column is none that a record tells.
            InputError: No record has token ids.
        """
        for name in columns:
            if name in _RENDERED:
                raise UsageError(
                    f"{self.name}: only the template tells the {name} of a token; make a dataset of the "
                    "files with `render` first."
                )
        waiting: list[tuple[Place, pa.Table]] = []
        n_waiting = 0
        for conversation_id, trace in self.recorded.traces(with_counts=False):
            for branch, path in enumerate(trace.branches):
                found = _branch(conversation_id, branch, trace, [trace.nodes[i] for i in path])
                if found is None:
                    reason = f"{self.name}: {conversation_name(conversation_id, branch)} has no token ids."
                    self.skipped.append(Skipped(conversation_id, branch, reason))
                else:
                    waiting.append(found)
                    n_waiting += found[0].n_tokens
            if n_waiting >= n_tokens:
                yield _joined(waiting)
                waiting, n_waiting = [], 0
        if waiting:
            yield _joined(waiting)


def _branch(
    conversation_id: str, branch: int, trace: Trace, nodes: Sequence[Node]
) -> tuple[Place, pa.Table] | None:
    """Place and rows of a branch; None where its ids are not recorded."""
    if any(node.tokens is None for node in nodes):
        return None
    found = join(nodes)
    messages = [message for node in nodes for message in node.messages]
    n = len(found.token_ids)
    tokens = RenderedTokens(
        token_ids=found.token_ids,
        message_indices=found.owners,
        sampled_mask=found.sampled_mask,
        is_content=np.zeros(n, bool),
        source_codes=np.zeros(n, np.int16),
        sources=(RECORDED_SOURCE,),
        messages=tuple(MessageFacts(str(message.get("role"))) for message in messages),
        recorded_logprobs=found.logprobs,
        trainer_logprobs=found.trainer_logprobs,
    )
    place = Place(conversation_id, branch, trace.metadata, 0, 0, n, len(messages))
    return place, token_table(tokens, conversation_id, branch=branch)


def _joined(found: Sequence[tuple[Place, pa.Table]]) -> Pairs:
    places = [place for place, _ in found]
    starts = np.append(0, np.cumsum([place.n_tokens for place in places]))
    table = pa.concat_tables([table for _, table in found]).combine_chunks()
    return _pairs(places, starts, table, _COLUMNS[RecordedAgainst.TRAINER])


def _pairs(places: list[Place], starts: NDArray[np.int64], table: pa.Table, other: str) -> Pairs:
    both = pc.and_(pc.is_valid(table[other]), pc.is_valid(table["recorded_logprob"]))
    rows = np.flatnonzero(both.to_numpy())
    recorded, others = (
        table[name].to_numpy()[rows].astype(np.float64) for name in ("recorded_logprob", other)
    )
    return Pairs(places, starts, table, rows, recorded, others)
