"""Which conversations of a dataset are kept, and why others are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tokscore.analytics.groups.grouping import METADATA_PREFIX
from tokscore.analytics.selection.amount import Amount, first_ones, parse_amount
from tokscore.analytics.selection.compared import compared_metrics, compared_types, joined
from tokscore.analytics.selection.condition import check_names, holds, names_in, parse_condition
from tokscore.analytics.selection.metrics import PLACE_COLUMNS, conversation_metrics, metric_names
from tokscore.analytics.selection.selected import Selection
from tokscore.analytics.selection.spool import Spool
from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import PathName
from tokscore.dataset.reading import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PLACE_TYPES = dict(zip(PLACE_COLUMNS, (pl.String(), pl.String(), pl.Int64()), strict=True))


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
    others = None if against is None else Dataset(against)
    numbers, failed = _spooled(opened, others, names, role=role, sampled=sampled)
    decisions = np.zeros(numbers.n_rows, np.uint16)
    texts: list[str | None] = [None]
    if condition is not None and where is not None:
        texts += [*(f"no {name}" for name in names_in(condition)), f"not {where}"]
        decisions[:] = _decisions(holds(condition, numbers.rows(), where), numbers.n_rows)
    if amount is not None and by is not None:
        if not numbers.schema[by].is_numeric():
            raise UsageError(f"{by} is {numbers.schema[by]}; expected a number to order by.")
        is_top = keep_top is not None
        texts += [f"no {by}", f"not among the {'top' if is_top else 'bottom'} {amount} by {by}"]
        values = numbers.rows().select(by).collect(engine="streaming")[by]
        is_known = (values.is_finite() | values.is_infinite()).fill_null(value=False).to_numpy()
        remains = decisions == 0
        decisions[remains & ~is_known] = len(texts) - 2
        rows = np.flatnonzero(remains & is_known)
        is_kept = first_ones(values.gather(rows).to_numpy(), amount.of(len(rows)), is_top=is_top)
        decisions[rows[~is_kept]] = len(texts) - 1
    return Selection(opened, names, decisions, tuple(texts), numbers, failed)


def _amount(keep_top: str | None, keep_bottom: str | None, by: str | None) -> Amount | None:
    if keep_top is not None and keep_bottom is not None:
        raise UsageError("`keep_top` and `keep_bottom` are given; expected one of them.")
    asked = keep_bottom if keep_top is None else keep_top
    if (asked is None) != (by is None):
        raise UsageError("`by` names the number for `keep_top` or `keep_bottom`; expected both or none.")
    return None if asked is None else parse_amount(asked)


def _spooled(
    dataset: Dataset, against: Dataset | None, names: Sequence[str], *, role: str | None, sampled: bool
) -> tuple[Spool, Spool]:
    """The places of all conversations with their numbers, and those of records that failed, with reasons."""
    compared = {} if against is None else compared_types()
    check_names(names, [*PLACE_COLUMNS, *metric_names(dataset.manifest.kind), *compared])
    metadata = [name for name in names if name.startswith(METADATA_PREFIX)]
    frames = conversation_metrics(dataset, role=role, sampled=sampled, metadata=metadata)
    if against is not None:
        # What both have is that of the dataset itself.
        own = metric_names(dataset.manifest.kind)
        more = {name: dtype for name, dtype in compared.items() if name in names and name not in own}
        frames = joined(frames, compared_metrics(dataset, against, role=role, sampled=sampled), more)
    numbers: Spool | None = None
    failed = Spool({**_PLACE_TYPES, "reason": pl.String()})
    for part, frame in zip(dataset.manifest.parts, frames, strict=True):
        chosen = frame.select(*dict.fromkeys([*PLACE_COLUMNS, *names]))
        if numbers is None:
            numbers = Spool({**chosen.schema, **_PLACE_TYPES})
        numbers.add(part.index, chosen)
        failed.add(part.index, _failed(dataset, part.index, chosen))
    assert numbers is not None, "a plan has a part"
    numbers.finish()
    failed.finish()
    return numbers, failed


def _failed(dataset: Dataset, part: int, others: pl.DataFrame) -> pl.DataFrame:
    """The records of a part that became error rows and have no numbers: one may have other branches."""
    rows = [
        (failure.conversation_id, failure.source_file, failure.source_line, f"failed: {failure.reason}")
        for failure in dataset.failures(part)
    ]
    found = pl.DataFrame(rows, schema={**_PLACE_TYPES, "reason": pl.String()}, orient="row")
    found = found.unique("conversation_id", keep="first", maintain_order=True)
    return found.join(others, on="conversation_id", how="anti", maintain_order="left")


def _decisions(found: pl.DataFrame, n_rows: int) -> NDArray[np.intp]:
    """Of each row 0 where the condition holds, else why not: the first name without a value, or the last."""
    is_held = found["holds"]
    missing = found.drop("holds")
    decisions = np.where(is_held.fill_null(value=False).to_numpy(), 0, missing.width + 1)
    is_unknown = is_held.is_null().to_numpy()
    for index in reversed(range(missing.width)):
        decisions[is_unknown & missing.to_series(index).to_numpy()] = index + 1
    # A condition without names has one value for all.
    return decisions if len(decisions) == n_rows else np.repeat(decisions[:1], n_rows)
