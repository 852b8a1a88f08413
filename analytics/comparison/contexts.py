"""The tokens where two models differ most, with the text around them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.comparison.compare import ComparedBatch
from tokscore.analytics.comparison.off_policy import finite
from tokscore.analytics.divergence.measures import alpha_name
from tokscore.dataset.reading import Dataset

N_CONTEXTS = 10
N_BEFORE, N_AFTER = 24, 8


class DivergentToken(NamedTuple):
    """One token with the ids around it, in the order of reports: the largest divergence first.

    Attributes:
        less: The divergence's lower limit, negated.
        conversation_id: Of the conversation.
        branch: 0 without branches.
        position: Of the token.
        upper: Upper limit of the divergence.
        ids: Token ids around it.
        at: Index of the token among them.
        teacher_logprob: Of the token.
        student_logprob: Of the token.
        teacher_top: The id that the teacher finds most likely, -1 where unknown.
        student_top: The student's.
    """

    less: float
    conversation_id: str
    branch: int
    position: int
    upper: float
    ids: tuple[int, ...]
    at: int
    teacher_logprob: float
    student_logprob: float
    teacher_top: int
    student_top: int


class Context(NamedTuple):
    """One token with the text around it.

    Attributes:
        conversation_id: Of the conversation.
        branch: 0 without branches.
        position: Of the token.
        lower: Lower limit of the divergence in nats, the GJS with the first alpha.
        upper: Upper limit.
        before: Text before the token.
        token: Its own.
        after: Text behind it, which the models did not see.
        teacher_logprob: Of the token; None where it is -inf.
        student_logprob: Likewise.
        teacher_top: Text of the token that the teacher finds most likely; None where unknown.
        student_top: The student's.
    """

    conversation_id: str
    branch: int
    position: int
    lower: float
    upper: float
    before: str
    token: str
    after: str
    teacher_logprob: float | None
    student_logprob: float | None
    teacher_top: str | None
    student_top: str | None


def find_contexts(batch: ComparedBatch, n: int = N_CONTEXTS) -> list[DivergentToken]:
    """The `n` tokens of a batch with the largest GJS above 0, by its lower limit; equal contexts once."""
    lower = batch.measures[f"{alpha_name('gjs', batch.measures.alphas[0])}.lower"]
    n_positive = int(np.count_nonzero(lower > 0))
    found: list[DivergentToken] = []
    n_seen = 0
    while len(found) < n and n_seen < n_positive:
        n_looked_at = min(max(8 * n, 8 * n_seen), n_positive)
        least = np.partition(lower, len(lower) - n_looked_at)[len(lower) - n_looked_at]
        # All that are as large as the last, so that the order of rows decides nothing.
        rows = np.flatnonzero((lower >= least) & (lower > 0))
        n_seen = len(rows)
        found = smallest(_found(batch, rows), n)
    return found


def smallest(found: Iterable[DivergentToken], n: int = N_CONTEXTS) -> list[DivergentToken]:
    """The first `n` in the order of reports, of each context the first."""
    firsts: dict[tuple[tuple[int, ...], int], DivergentToken] = {}
    for each in found:
        context = (each.ids, each.at)
        if context not in firsts or each < firsts[context]:
            firsts[context] = each
    return heapq.nsmallest(n, firsts.values())


def _found(batch: ComparedBatch, rows: NDArray[np.int64]) -> Iterator[DivergentToken]:
    measures = batch.measures
    bounds = measures.of("gjs", measures.alphas[0])
    ids = batch.attribution["token_id"].to_numpy()
    conversations, positions = batch.conversations, batch.positions
    for index in rows.tolist():
        row, conversation = int(batch.rows[index]), int(conversations[index])
        start = max(row - N_BEFORE, int(batch.starts[conversation]))
        stop = min(row + 1 + N_AFTER, int(batch.starts[conversation + 1]))
        yield DivergentToken(
            -float(bounds.lower[index]),
            *batch.places[conversation].key,
            int(positions[index]),
            float(bounds.upper[index]),
            tuple(ids[start:stop].tolist()),
            row - start,
            float(measures["teacher_logprob"][index]),
            float(measures["student_logprob"][index]),
            int(batch.teacher_top[index]),
            int(batch.student_top[index]),
        )


def read_contexts(found: Iterable[DivergentToken], dataset: Dataset) -> tuple[Context, ...]:
    """The contexts as text, by the vocabulary of a dataset; ids show as `<id>` where it has none."""
    listed = list(found)
    tokens = dataset.token_bytes(
        {token_id for each in listed for token_id in (*each.ids, each.teacher_top, each.student_top)}
    )

    def text(ids: Sequence[int]) -> str:
        return b"".join(tokens.get(each, b"<%d>" % each) for each in ids).decode(errors="replace")

    return tuple(
        Context(
            each.conversation_id,
            each.branch,
            each.position,
            -each.less,
            each.upper,
            text(each.ids[: each.at]),
            text(each.ids[each.at : each.at + 1]),
            text(each.ids[each.at + 1 :]),
            finite(each.teacher_logprob),
            finite(each.student_logprob),
            text([each.teacher_top]) if each.teacher_top >= 0 else None,
            text([each.student_top]) if each.student_top >= 0 else None,
        )
        for each in listed
    )
