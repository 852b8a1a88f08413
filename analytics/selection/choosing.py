"""Which conversations of a dataset are kept, and why others are not."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from tokscore.analytics.groups.grouping import METADATA_PREFIX
from tokscore.analytics.selection.condition import check_names, holds, names_in, parse_condition
from tokscore.analytics.selection.metrics import (
    PLACE_COLUMNS,
    compared_metrics,
    conversation_metrics,
    metric_names,
)
from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import PathName
from tokscore.dataset.reading import Dataset

_SHARE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<percent>%?)")


@dataclass(frozen=True, slots=True)
class Selection:
    """The conversations of a dataset with what was decided about each.

    Attributes:
        dataset: Where they are.
        frame: `conversation_id`, `source_file`, `source_line`, the numbers that decided, and `reason`: why
            the conversation is left out, null where it is kept. In the order of the dataset, records that
            failed last.
        names: The columns that decided.
    """

    dataset: Dataset
    frame: pl.DataFrame
    names: tuple[str, ...]

    @property
    def n_kept(self) -> int:
        """Conversations that are kept."""
        return self.frame["reason"].null_count()

    def reasons(self) -> dict[str, int]:
        """How many are left out by reason, most first."""
        left_out = self.frame.filter(pl.col("reason").is_not_null())
        counts = left_out.group_by(pl.col("reason").str.replace(r"(?s)^(failed): .*$", "$1")).len()
        return dict(counts.sort("len", "reason", descending=[True, False]).iter_rows())


class Amount(NamedTuple):
    """How many conversations are kept.

    Attributes:
        number: Of them, or percent.
        is_percent: Which.
    """

    number: float
    is_percent: bool

    def of(self, n: int) -> int:
        """Out of `n`; a part of one counts as one."""
        return min(n, math.ceil(round(self.number * n / 100, 9)) if self.is_percent else int(self.number))


def parse_amount(text: str) -> Amount:
    """An amount such as `500` or `90%`.

    Raises:
        UsageError: It is none.
    """
    match = _SHARE.fullmatch(text.strip())
    number = float(match["number"]) if match else math.nan
    is_percent = bool(match and match["percent"])
    if not (number <= 100 if is_percent else number.is_integer()):
        raise UsageError(f"{text!r} is no amount; expected a number such as 500, or a share such as 90%.")
    return Amount(number, is_percent)


def select(
    dataset: PathName,
    *,
    where: str | None = None,
    keep_top: str | None = None,
    keep_bottom: str | None = None,
    by: str | None = None,
    role: str | None = None,
    sampled: bool = False,
    against: PathName | None = None,
) -> Selection:
    """Choose conversations by their numbers.

    The numbers are those of `stats` for each conversation (`mean_logprob`, `n_tokens` and others), with
    `against` also those of `diff` (`gjs_0.5.upper`), and `metadata.NAME`. Branches of a record count
    together.

    Args:
        dataset: A dataset, or its directory.
        where: A condition as in SQL, `"mean_logprob > -2 and n_tokens < 4096"`.
        keep_top: Of those for which it holds, keep so many with the largest `by`: `"500"` or `"90%"`.
        keep_bottom: The same with the smallest.
        by: The number for these.
        role: Take the numbers of the tokens of this role alone.
        sampled: Take those of sampled tokens alone.
        against: The scores of another model, to compare with.

    Returns:
        Every conversation with the reason why it is left out, if it is. One without a value of what decides
        is left out; of equal ones the first are kept.

    Raises:
        UsageError: There is nothing to choose by, or a name or a condition cannot be used.
        InputError: A dataset is damaged, or the two cannot be compared.
    """
    amount = _amount(keep_top, keep_bottom, by)
    if where is None and amount is None:
        raise UsageError("nothing says which conversations to keep; expected `where`, `keep_top` or both.")
    condition = None if where is None else parse_condition(where)
    names = tuple(dict.fromkeys([*([] if condition is None else names_in(condition)), *([by] if by else [])]))
    opened = Dataset(dataset)
    known = [*PLACE_COLUMNS, *metric_names(opened.manifest.kind)]
    if against is None:
        check_names(names, known)
    metadata = [name for name in names if name.startswith(METADATA_PREFIX)]
    frame = conversation_metrics(opened, role=role, sampled=sampled, metadata=metadata)
    if against is not None:
        others = compared_metrics(opened, Dataset(against), role=role, sampled=sampled)
        others = others.select("conversation_id", *(name for name in others.columns if name not in frame))
        frame = frame.join(others, on="conversation_id", how="left", maintain_order="left")
        check_names(names, frame.columns)
    reason = pl.lit(None, pl.String)
    if condition is not None and where is not None:
        reason = _reason_of(holds(condition, frame, where), where, frame, names_in(condition))
    frame = frame.with_columns(reason=reason)
    if amount is not None and by is not None:
        frame = _keep(frame, amount, by, is_top=keep_top is not None)
    chosen = frame.select(*dict.fromkeys([*PLACE_COLUMNS, *names, "reason"]))
    return Selection(opened, pl.concat([chosen, _failed(opened, chosen)]), names)


def _amount(keep_top: str | None, keep_bottom: str | None, by: str | None) -> Amount | None:
    if keep_top is not None and keep_bottom is not None:
        raise UsageError("`keep_top` and `keep_bottom` are given; expected one of them.")
    asked = keep_bottom if keep_top is None else keep_top
    if (asked is None) != (by is None):
        raise UsageError("`by` names the number for `keep_top` or `keep_bottom`; expected both or none.")
    return None if asked is None else parse_amount(asked)


def _reason_of(found: pl.Series, where: str, frame: pl.DataFrame, names: Sequence[str]) -> pl.Expr:
    """Null where the condition holds."""
    missing = pl.lit(f"not {where}")
    for name in reversed(names):
        missing = (
            pl.when(pl.Series(found.is_null() & frame[name].is_null()))
            .then(pl.lit(f"no {name}"))
            .otherwise(missing)
        )
    return pl.when(pl.Series(found.fill_null(value=False))).then(None).otherwise(missing)


def _keep(frame: pl.DataFrame, amount: Amount, by: str, *, is_top: bool) -> pl.DataFrame:
    if not frame[by].dtype.is_numeric():
        raise UsageError(f"{by} is {frame[by].dtype}; expected a number to order by.")
    value = pl.col(by)
    if frame[by].dtype.is_float():
        value = value.fill_nan(None)
    remains = pl.col("reason").is_null()
    frame = frame.with_columns(
        reason=pl.when(remains & value.is_null()).then(pl.lit(f"no {by}")).otherwise("reason")
    )
    rows = frame.with_row_index("row").filter(remains)
    kept = rows.sort(by, "row", descending=[is_top, False])["row"].head(amount.of(len(rows)))
    shown = f"{amount.number:g}{'%' if amount.is_percent else ''}"
    why = f"not among the {'top' if is_top else 'bottom'} {shown} by {by}"
    is_kept = pl.int_range(pl.len(), dtype=pl.UInt32).is_in(kept.implode())
    return frame.with_columns(reason=pl.when(remains & ~is_kept).then(pl.lit(why)).otherwise("reason"))


def _failed(dataset: Dataset, like: pl.DataFrame) -> pl.DataFrame:
    """The records that became error rows, none of which has numbers."""
    rows = [
        (failure.conversation_id, failure.source_file, failure.source_line, f"failed: {failure.reason}")
        for failure in dataset.failures()
    ]
    known = dict.fromkeys([*PLACE_COLUMNS, "reason"])
    found = pl.DataFrame(rows, schema={name: like.schema[name] for name in known}, orient="row")
    others = (pl.lit(None, dtype).alias(name) for name, dtype in like.schema.items() if name not in known)
    # Of a record with branches, some may have failed and others not.
    found = found.with_columns(*others).select(like.columns).unique("conversation_id", maintain_order=True)
    return found.join(like, on="conversation_id", how="anti", maintain_order="left")
