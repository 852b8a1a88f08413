"""The numbers of `diff` for every conversation, a few conversations at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import polars as pl

from tokscore.analytics.comparison.compare import ComparedBatch, Comparison
from tokscore.analytics.comparison.confidence import kept_names
from tokscore.analytics.comparison.diff_rows import row_of
from tokscore.analytics.comparison.reduction import NO_TOKENS, Reduced, Reduction, reduce_batch
from tokscore.analytics.comparison.sums import summed_columns
from tokscore.analytics.groups.grouping import Grouping, GroupKey, parse_group_by
from tokscore.analytics.groups.tables import group_table
from tokscore.dataset.choices import GroupBy
from tokscore.dataset.reading import Dataset

_ALPHAS = (0.5,)


def compared_types() -> dict[str, pl.DataType]:
    """Columns of `compared_metrics` but the first."""
    return dict(_frame(None, [((), row_of(None, NO_TOKENS, _ALPHAS).flat())]).schema)


def compared_metrics(
    dataset: Dataset, against: Dataset, *, role: str | None = None, sampled: bool = False
) -> Iterator[pl.DataFrame]:
    """The numbers of `diff_report` for every conversation that both datasets have.

    Args:
        dataset: The teacher's scores.
        against: The student's.
        role: Compare the tokens of this role alone.
        sampled: Compare tokens alone of which it is known that a model generated them.

    Yields:
        Frames of whole conversations in the order of `dataset`: `conversation_id`, then every number under
        its name in the JSON of `diff`, such as `gjs_0.5.upper`.

    Raises:
        InputError: The datasets cannot be compared.
    """
    wanted: dict[str, object] = ({} if role is None else {GroupBy.ROLE.value: role}) | (
        {GroupBy.IS_SAMPLED.value: True} if sampled else {}
    )
    by = parse_group_by([GroupBy.CONVERSATION_ID.value, *wanted])
    comparison = Comparison(dataset.root, against.root, alphas=_ALPHAS, columns=by.token_columns)

    def reduce(batch: ComparedBatch) -> Reduced:
        values = summed_columns(batch)
        return reduce_batch(values, batch.rows, batch.places, batch.starts, batch.attribution, by)

    def rows_of(reduction: Reduction) -> list[tuple[GroupKey, dict[str, float | int | None]]]:
        keys = filter(partial(_is_wanted, by, wanted), reduction.keys())
        return [(key, row_of(key, reduction.group(key), _ALPHAS).flat()) for key in keys]

    kept = kept_names(_ALPHAS, with_estimates=False)
    open_reduction, last = Reduction(kept, by), ""
    for part in comparison.map(reduce):
        # The branches of a conversation may be in two batches.
        if part.conversations and part.conversations[0][0] != last:
            if rows := rows_of(open_reduction):
                yield _frame(by, rows).drop(*wanted)
            open_reduction = Reduction(kept, by)
        open_reduction.add(part)
        last = part.conversations[-1][0] if part.conversations else last
    if rows := rows_of(open_reduction):
        yield _frame(by, rows).drop(*wanted)


def _is_wanted(by: Grouping, wanted: Mapping[str, object], key: GroupKey) -> bool:
    return dict(zip(by.names, by.values(key), strict=True)).items() >= wanted.items()


def _frame(by: Grouping | None, rows: Sequence[tuple[GroupKey, Mapping[str, object]]]) -> pl.DataFrame:
    frame = pl.from_arrow(group_table(by, rows))
    assert isinstance(frame, pl.DataFrame)
    return frame


def joined(
    frames: Iterator[pl.DataFrame], others: Iterator[pl.DataFrame], types: Mapping[str, pl.DataType]
) -> Iterator[pl.DataFrame]:
    """The frames of `conversation_metrics` with the columns of `compared_metrics` that they lack.

    Args:
        frames: Of all conversations.
        others: Of some of them in the same order, divided elsewhere.
        types: Columns to add; null for conversations that `others` lacks.
    """
    waiting = pl.DataFrame(schema={"conversation_id": pl.String(), **types})
    for frame in frames:
        while len(waiting) == waiting["conversation_id"].is_in(frame["conversation_id"].implode()).sum():
            following = next(others, None)
            if following is None:
                break
            waiting = pl.concat([waiting, following.match_to_schema(waiting.schema, extra_columns="ignore")])
        yield frame.join(waiting, on="conversation_id", how="left", maintain_order="left")
        waiting = waiting.join(frame, on="conversation_id", how="anti", maintain_order="left")
