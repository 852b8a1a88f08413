"""`tokscore stats`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokscore.cli.options import shared as options
from tokscore.cli.options.settings import Only, setting_options
from tokscore.cli.printing import html as page
from tokscore.cli.printing.console import note
from tokscore.cli.printing.failures import note_failures
from tokscore.cli.printing.html import DEFAULT_MAX_MB, Html, HtmlMaxMb
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.reports.groups import note_more, shown_groups
from tokscore.cli.printing.tables import (
    Column,
    agreeing,
    counted,
    note_absent_metadata,
    print_all_columns,
    print_json,
    print_rows,
)
from tokscore.dataset.choices import LimitCount, OnError
from tokscore.rendering.attribution.settings import RenderSettings

if TYPE_CHECKING:
    from tokscore.analytics.groups.coverage import Coverage
    from tokscore.analytics.trajectories.limit_report import LimitReport

EPILOG = """Examples:

\b
  tokscore stats demo-output/teacher
  tokscore stats examples/recorded.jsonl --limit max_turns=2 --limit output=20
"""
_COUNTS = (
    Column("n_messages", "messages"),
    Column("n_tokens", "tokens"),
    Column("tokens_per_message", "tokens/message", 1),
    Column("tokens_per_message_min", "min"),
    Column("tokens_per_message_p95", "p95"),
    Column("tokens_per_message_max", "max"),
    Column("n_sampled", "sampled"),
    Column("n_content", "content"),
)
_SCORES = (
    Column("n_scored", "scored"),
    Column("mean_logprob", "mean logprob"),
    Column("sum_logprob", "sum logprob", 1),
    Column("perplexity", "perplexity", 3),
    Column("p5", "p5", 3),
    Column("p50", "p50", 3),
    Column("p95", "p95", 3),
    Column("rank1_share", "rank 1"),
    Column("mean_entropy", "entropy"),
)
# What is asked for most.
_FIRST = frozenset({"n_tokens", "n_sampled", "n_scored", "mean_logprob", "perplexity", "rank1_share"})
_LIMITS = (
    Column("conversation", "conversation"),
    Column("turn", "turn"),
    Column("limit", "limit"),
    Column("input", "input"),
    Column("output", "output"),
    Column("total", "total"),
)
_SPANS = (
    Column("conversation_id", "conversation"),
    Column("branch", "branch"),
    Column("message_index", "message"),
    Column("role", "role"),
    Column("source", "source"),
    Column("is_content", "content"),
    Column("is_sampled", "sampled"),
    Column("start", "start"),
    Column("stop", "stop"),
    Column("n_tokens", "tokens"),
)
_WORST_TOKENS = (
    Column("conversation_id", "conversation"),
    Column("branch", "branch"),
    Column("position", "position"),
    Column("message_index", "message"),
    Column("role", "role"),
    Column("token_id", "id"),
    Column("text", "text"),
    Column("logprob", "logprob"),
    Column("rank", "rank"),
)
_UNKNOWN = "(cannot be told)"
_OF_BRANCHES = frozenset({"message_index", "position"})  # which begin again in every branch


_RECORDED = (
    Column("input_format", "format"),
    Column("n_conversations", "conversations"),
    Column("n_branches", "branches"),
    Column("n_turns", "turns"),
    Column("input", "input"),
    Column("output", "output"),
    Column("total", "total"),
    Column("total_by_branches", "total by branches"),
)


@setting_options
def stats(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="DATASET|FILE...",
            help="One token or score dataset, or files of trajectories that carry token ids or usage.",
        ),
    ],
    *,
    by: options.Groups = None,
    sort: options.Sort = None,
    top: options.Top = None,
    worst: options.Worst = None,
    worst_tokens: Annotated[
        int | None,
        options.option(
            "--worst-tokens", metavar="N", min=1, help="Print the N tokens with the lowest logprobs instead."
        ),
    ] = None,
    spans: Annotated[
        bool, options.option("--spans", help="Print every run of tokens with one owner instead.")
    ] = False,
    limit: options.LimitOption = None,
    limit_count: options.LimitCountOption = LimitCount.UNIQUE,
    reading: Annotated[RenderSettings, Only(("input_format", "map"))],
    on_error: options.OnErrorNoted = OnError.SKIP,
    partial: Annotated[
        bool, options.option("--partial", help="Read the finished parts of a run that is not finished.")
    ] = False,
    html: Html = None,
    html_max_mb: HtmlMaxMb = DEFAULT_MAX_MB,
    form: options.FormatOption = Format.TABLE,
    wide: options.Wide = False,
) -> None:
    """Count and average the tokens of one dataset by role, or by other columns and metadata.

    Of files with recorded token ids or reported usage it counts what was given to a model and what one
    generated, without a model and as recorded.
    """
    print_all_columns(wide)
    from tokscore.dataset.errors import UsageError
    from tokscore.dataset.files import location

    are_files = _are_files(inputs)
    if html is not None and (are_files or limit):
        raise UsageError("--html takes one score dataset; leave it out with files or --limit.")
    reports = (by or sort or top, spans, worst, worst_tokens, limit)
    if sum(map(bool, reports)) > 1 or (are_files and any(reports[:4])):
        raise UsageError(
            "--by with --sort and --top, --spans, --worst, --worst-tokens and --limit print one report each, "
            "all but the last of a dataset; give one of them."
        )
    if partial and (are_files or spans or limit or html):
        raise UsageError("--partial is for the groups of one dataset; leave it out with anything else.")
    page.check(html)
    if are_files:
        print_recorded(inputs, limit or [], limit_count, reading, form, on_error)
        return
    dataset = location(inputs[0])
    if limit:
        print_limits(dataset, limit, limit_count, form)
    elif spans:
        print_spans(dataset, form)
    elif worst_tokens:
        print_worst_tokens(dataset, worst_tokens, form)
    elif worst:
        print_stats(dataset, "conversation_id", form, sort="-mean_logprob", top=worst, top_option="--worst")
    else:
        print_stats(dataset, ",".join(by or ["role"]), form, sort=sort, top=top, partial=partial)
    if html is not None:
        page.write_stats(dataset, html, max_mb=html_max_mb)


def _are_files(inputs: Sequence[str]) -> bool:
    """Whether files of trajectories were given, not one dataset.

    Raises:
        UsageError: Both, or several datasets.
    """
    from tokscore.dataset.errors import UsageError
    from tokscore.dataset.files import location
    from tokscore.dataset.stores.path import is_store
    from tokscore.rendering.inputs import is_dataset

    datasets = [
        name for name in inputs if (is_dataset(name) if is_store(location(name)) else Path(name).is_dir())
    ]
    if datasets and len(inputs) > 1:
        raise UsageError(
            f"{datasets[0]} is a dataset; give it alone, not with {counted(len(inputs) - 1, 'other input')}."
        )
    return not datasets and any(name == "-" or has_magic(name) or location(name).exists() for name in inputs)


def print_recorded(
    inputs: list[str],
    limits: Sequence[str],
    count: LimitCount,
    reading: RenderSettings,
    form: Format,
    on_error: OnError,
) -> None:
    """Print counts of trajectories as they were recorded, or which of them would have stopped.

    Raises:
        InputError: A record cannot be counted, and errors are not skipped.
    """
    from tokscore.analytics.trajectories.limit_report import parse_limits
    from tokscore.analytics.trajectories.recorded import RecordedInput
    from tokscore.rendering.failure_reasons import failure_reasons
    from tokscore.rendering.inputs import expand_patterns
    from tokscore.rendering.reading.formats.mapped import given_format

    wanted = parse_limits(limits)
    chosen = given_format(reading.input_format, reading.map)
    recorded = RecordedInput(expand_patterns(inputs), chosen)
    report = recorded.limited(wanted, count=count) if limits else None
    counts = recorded.counts().to_dict() if report is None else {}
    if recorded.failures and on_error is OnError.FAIL:
        raise recorded.failures[0].error()
    if report is not None:
        print_limit_report(report, form)
    else:
        if form is Format.JSON:
            print_json(counts)
        else:
            print_rows(_RECORDED, [counts], form)
    if recorded.failures:
        note(f"{counted(len(recorded.failures), 'record')} could not be counted.")
        note_failures(failure_reasons(each.skipped() for each in recorded.failures))


def print_stats(
    dataset: Path,
    by: str,
    form: Format,
    *,
    sort: str | None = None,
    top: int | None = None,
    top_option: str = "--top",
    partial: bool = False,
) -> None:
    """Print the aggregation of a finished dataset, its groups as `Ranking` takes them."""
    from tokscore.analytics import group_label, stats_report
    from tokscore.analytics.groups.message_sizes import n_branching
    from tokscore.analytics.groups.ranking import Ranking
    from tokscore.analytics.groups.stats import metric_names
    from tokscore.dataset.manifest import read_manifest

    ranking = Ranking(sort, top, metric_names(read_manifest(dataset).kind)) if sort or top else None
    report = stats_report(dataset, by=by, partial=partial)
    if partial:
        _note_parts(dataset)
    note_absent_metadata(report.by, [row.group for row in report.groups])
    if ranking is not None:
        ranked = ranking.apply(report.groups)
        note_more(len(report.groups), len(ranked), top_option)
        report = replace(report, groups=ranked)
    if form is Format.JSON:
        print_json(report.to_dict())
        return
    _print_coverage(report.coverage)
    groups = [*report.groups]
    if form is Format.TABLE:
        groups = shown_groups(groups, report.by, lambda _: True, lambda row: row.n_tokens)
    named = [*((group_label(row.group, report.by), row) for row in groups), ("(all)", report.total)]
    rows = []
    for label, row in named:
        values = row.to_dict()
        percentiles = values["logprob_percentiles"]
        shown = percentiles if isinstance(percentiles, dict) else dict.fromkeys(("p5", "p50", "p95"))
        rows.append({**values, **shown, "group": label})
    numbers = [*_COUNTS, *(_SCORES if report.n_unscored is not None else ())]
    if form is Format.TABLE:  # of which a terminal may show the first ones
        numbers.sort(key=lambda column: column.key not in _FIRST)
    columns = (Column("group", by), *numbers)
    print_rows(columns, rows, form)
    if not _OF_BRANCHES.isdisjoint(report.by.names) and "branch" not in report.by.names:
        n = n_branching(dataset)
        if n:
            note(
                f"{counted(n, 'conversation')} with several branches, whose messages count together here; "
                f"--by branch,{by} tells them apart."
            )


def _note_parts(dataset: Path) -> None:
    """Say how much of a run is there."""
    from tokscore.dataset.reading import Dataset

    opened = Dataset(dataset, partial=True)
    if opened.n_parts_missing:
        n_there = len(opened.manifest.parts)
        n = n_there + opened.n_parts_missing
        are = agreeing(n_there, "is", "are")
        note(
            f"warning: partial: {n_there:,} of {counted(n, 'part')} {are} finished; the numbers are of these."
        )


def print_worst_tokens(dataset: Path, n: int, form: Format) -> None:
    """Print the tokens with the lowest logprobs."""
    from tokscore.analytics.groups.worst import worst_tokens

    rows = [token.to_dict() for token in worst_tokens(dataset, n)]
    if form is Format.TABLE:
        rows = [{**row, "text": repr(row["text"])[1:-1]} for row in rows]
    print_rows(_WORST_TOKENS, rows, form)


def _print_coverage(coverage: Coverage) -> None:
    """One line on standard error: what is there, what is scored, and why the rest is not."""
    parts = [counted(coverage.n_conversations, "conversation")]
    if coverage.n_failed:
        parts.append(f"{coverage.n_failed:,} failed (listed in errors/)")
    parts.append(counted(coverage.n_tokens, "token"))
    if coverage.n_scored is not None:
        parts.append(f"{coverage.n_scored:,} scored")
    if coverage.n_without_context:
        parts.append(f"{coverage.n_without_context:,} without a logprob: no context before them")
    if coverage.n_not_asked:
        parts.append(f"{coverage.n_not_asked:,} without a logprob: not asked for (score is {coverage.asked})")
    note(", ".join(parts))


def print_spans(dataset: Path, form: Format) -> None:
    """Print the spans of a finished dataset."""
    from tokscore.analytics.groups.message_sizes import spans

    print_rows(_SPANS, spans(dataset), form)


def print_limits(dataset: Path, limits: Sequence[str], count: LimitCount, form: Format) -> None:
    """Print which trajectories of a finished dataset would have stopped, and where."""
    from tokscore.analytics.trajectories.limit_report import apply_limits, parse_limits

    print_limit_report(apply_limits(dataset, parse_limits(limits), count=count), form)


def print_limit_report(report: LimitReport, form: Format) -> None:
    """Print which trajectories would have stopped, and where."""
    if form is Format.JSON:
        print_json(report.to_dict())
    else:
        rows = [row.to_dict() | ({"limit": _UNKNOWN} if row.stop is None else {}) for row in report.rows]
        print_rows(_LIMITS, rows, form, title="Stopped trajectories")
    if form is Format.TABLE:
        numbers = [(name.value, n) for name, n in report.by_limit().items()]
        numbers += [("(none)", report.n_finished), (_UNKNOWN, report.n_unknown)]
        print_rows(
            (Column("limit", "limit"), Column("n", "trajectories")),
            [{"limit": name, "n": n} for name, n in numbers],
            form,
            title="Trajectories by limit",
        )
    stopped = ", ".join(f"{n:,} by {name}" for name, n in report.by_limit().items())
    unknown = f", {report.n_unknown:,} cannot be told" if report.n_unknown else ""
    failed = f", {report.n_errors:,} failed" if report.n_errors else ""
    note(f"{counted(report.n_conversations, 'conversation')}: stopped {stopped}{unknown}{failed}")
    if report.n_unknown:
        note(
            "What cannot be told: nothing says which tokens of an answer were generated, as where ids have "
            "no mask."
        )
