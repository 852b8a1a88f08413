"""Statistics and comparisons of datasets as polars frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokscore.analytics.comparison.diff import diff_report
from tokscore.analytics.groups.stats import stats_report
from tokscore.analytics.groups.tables import group_table
from tokscore.dataset.choices import Align, OnError, Sampler
from tokscore.dataset.files import PathName, path_name

if TYPE_CHECKING:
    import polars as pl

    from tokscore.analytics.comparison.diff_rows import DiffRow
    from tokscore.analytics.groups.grouping import Grouping
    from tokscore.analytics.groups.stats import StatsRow


def stats(dataset: PathName, *, by: str | Sequence[str] | None = "role") -> pl.DataFrame:
    """Counts of a token dataset, and logprob statistics of a score dataset: what `tokscore stats` prints.

    `stats_report` gives the same as objects, with the coverage and the total of all groups.

    Args:
        dataset: A dataset, or its directory.
        by: Columns or `metadata.NAME` that make the groups, joined by commas or as a list; None for one row
            with all tokens.

    Returns:
        A row per group: the columns of `by`, then the attributes of `StatsRow` under their names, percentiles
        as `logprob_percentiles.p50`. What the dataset cannot tell is null, and so are infinite values.

    Raises:
        UsageError: `by` is not allowed.
        InputError: No whole dataset, or a NaN in it.
    """
    report = stats_report(path_name(dataset), by="role" if by is None else by)
    return _frame(None if by is None else report.by, [report.total] if by is None else report.groups)


def diff(
    teacher: PathName,
    student: PathName,
    *,
    alpha: float | Sequence[float] = 0.5,
    by: str | Sequence[str] | None = "role",
    on_error: OnError | str = OnError.FAIL,
    sampled_by: Sampler | str | None = None,
    out: PathName | None = None,
    align: Align | str = Align.TOKENS,
) -> pl.DataFrame:
    """Two score datasets compared token by token: what `tokscore diff` prints.

    `diff_report` gives the same as objects, with the total of all groups, what was left out, the tokens where
    the models differ most, and the noise floor of the engine.

    Args:
        teacher: The score dataset of one model, or its directory.
        student: That of the other.
        alpha: Weight of the teacher in GJS and skew KL, between 0 and 1; or several.
        by: Columns or `metadata.NAME` that make the groups, joined by commas or as a list; None for one row
            with all tokens.
        on_error: `"fail"` at the first bad conversation, or `"skip"` it.
        sampled_by: `"teacher"` or `"student"`, if that model sampled the answers at temperature 1: adds
            unbiased estimates of a KL, from the tokens whose `is_sampled` is true.
        out: New directory for tokens.parquet, with a row per token, and groups.parquet.
        align: `"content"` compares the content of messages under two templates, `"tokens"` equal ids.

    Returns:
        A row per group: the columns of `by`, then every number under its name in the command's JSON, joined
        by dots: `gjs_0.5.lower` and `gjs_0.5.upper` are means per token in nats, and the mean over the whole
        vocabulary lies between them. An upper limit that is not there is null.

    Raises:
        UsageError: An alpha, `by` or `out` is not allowed.
        InputError: No whole score datasets; tokenizers, temperatures, logprob modes or token ids
            differ; no conversation is shared; a logprob is NaN, infinite or above 0; `sampled_by` is given
            and the scores are not of temperature 1.
    """
    report = diff_report(
        path_name(teacher),
        path_name(student),
        alpha=alpha,
        by="role" if by is None else by,
        on_error=on_error,
        sampled_by=sampled_by,
        out=out,
        align=align,
    )
    return _frame(None if by is None else report.by, [report.total] if by is None else report.groups)


def _frame(by: Grouping | None, rows: Sequence[StatsRow] | Sequence[DiffRow]) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame(group_table(by, [(row.group, row.flat()) for row in rows]))
