"""HTML reports of score datasets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tokscore.analytics.comparison.diff_rows import row_of
from tokscore.analytics.comparison.noise import NoiseFloor, read_noise_floor
from tokscore.analytics.exact.report import ExactReport
from tokscore.analytics.recorded.confidence import KEPT
from tokscore.analytics.recorded.report import mismatch
from tokscore.analytics.report.charts import chart_library, check_available
from tokscore.analytics.report.collecting import PageContents, collect, vocabulary_of
from tokscore.analytics.report.conversation.token_texts import TokenTexts
from tokscore.analytics.report.exact import exact_tables, exact_verdict, with_exact
from tokscore.analytics.report.grouping import PageGrouping
from tokscore.analytics.report.page import Page
from tokscore.analytics.report.reading import (
    ComparedDatasets,
    has_recorded,
    open_scores,
    read_batches,
    read_recorded_batches,
)
from tokscore.analytics.report.recorded import recorded_facts, recorded_tables, recorded_verdict
from tokscore.analytics.report.spread import exact_spread, limit_spread
from tokscore.analytics.report.summary import (
    diff_verdict,
    facts_table,
    group_tables,
    histogram_table,
    models_table,
    stats_verdict,
)
from tokscore.dataset.choices import Metric, OnError, RecordedAgainst, choose
from tokscore.dataset.errors import UsageError, agreeing, counted
from tokscore.dataset.reading import Dataset
from tokscore.dataset.writing import write_file

DEFAULT_MAX_MB = 25.0
# Of the whole file: what the page itself, the chart library, and the vocabulary may take.
_PAGE_BYTES = 1_300_000
_VOCABULARY_SHARE = 0.9
# No browser opens more.
_MOST_MEGABYTES = 4_000
_MEGABYTE = 1_000_000


class ReportSize(NamedTuple):
    """Contents of a page.

    Attributes:
        n_conversations: Conversations of the datasets that were summed up.
        n_kept: Of these, shown token by token.
        size_bytes: Of the file.
    """

    n_conversations: int
    n_kept: int
    size_bytes: int


def write_diff_report(
    teacher: Path | str,
    student: Path | str,
    path: Path | str,
    *,
    alpha: float = 0.5,
    max_mb: float = DEFAULT_MAX_MB,
    noise_floor: Path | str | None = None,
    on_error: OnError | str = OnError.FAIL,
    exact: ExactReport | None = None,
) -> ReportSize:
    """Write the comparison of two score datasets as one HTML file that loads nothing else.

    All tokens count in its tables; the conversations with the largest mean GJS (lower limit) are shown token
    by token, as many as fit.

    Args:
        teacher: The score dataset of one model.
        student: That of the other.
        path: File to write.
        alpha: Weight of the teacher in the GJS.
        max_mb: Limit of the file in megabytes.
        noise_floor: JSON of `tokscore selfcheck`.
        on_error: Whether a bad conversation ends the run or is left out.
        exact: The values over the whole vocabulary, of the same datasets.

    Raises:
        UsageError: alpha or the limit is not allowed, or the extra `report` is not installed.
        InputError: No whole score datasets, or they cannot be compared.
    """
    budget = _budget(max_mb)
    check_available()
    floor = None if noise_floor is None else read_noise_floor(Path(noise_floor))
    compared = ComparedDatasets(teacher, student, alpha=alpha, on_error=choose(OnError, on_error, "on_error"))
    datasets = [compared.comparison.teacher, compared.comparison.student]
    texts = TokenTexts(datasets[0])
    metrics = [Metric.GJS, Metric.DELTA, *_OF_ONE, *_recorded(datasets[0])]
    batches, ranking = compared.batches(), "largest mean GJS (lower limit)"
    if exact is not None:
        batches, ranking = with_exact(batches, exact.parts), "largest mean KL(T||S)"
        metrics.insert(0, Metric.KL)
    found = collect(batches, texts, metrics=metrics, kept=["log_ratio"], max_bytes=budget)
    total, pairing = row_of(None, found.totals.total(), [alpha]), compared.comparison.pairing
    facts = [
        ("conversations compared", f"{found.totals.n_conversations:,}"),
        ("left out for an error", f"{len(pairing.skipped):,}"),
        ("only in the teacher's dataset", f"{pairing.n_only_teacher:,}"),
        ("only in the student's dataset", f"{pairing.n_only_student:,}"),
        *_failures(datasets),
        ("tokens compared", f"{total.n_tokens:,} of {total.n_tokens + total.n_unscored:,}"),
        (
            "unresolved mass, mean per token",
            "-" if total.unresolved is None else f"{total.unresolved:.4f}",
        ),
        ("noise floor of logprobs", _floor(floor)),
    ]
    names = [_name(dataset) for dataset in datasets]
    notes = (
        "Intervals: mean per token, [lower, upper]; the value over the whole vocabulary lies "
        "inside; ∞ where the top-k lists set no upper limit. Unresolved: mixture mass on ids that are not "
        "known on both sides.",
    )
    tables = [
        models_table(datasets),
        facts_table(facts),
        *(() if exact is None else (*exact_tables(exact), *exact_spread(exact))),
        # Limits are what stands first only where nothing is known better.
        *group_tables(found.totals, alpha=alpha, opened=PageGrouping.ROLE if exact is None else None),
        *(limit_spread(found.totals, alpha) if exact is None else ()),
        histogram_table(found.totals, name="log-ratio T - S"),
    ]
    page = Page(
        f"{names[0]} and {names[1]}", tables, found.metrics, found.limits, True, chart_library(), notes
    )
    verdict = diff_verdict(found.totals, alpha) + ("" if exact is None else exact_verdict(exact))
    page = replace(page, verdict=verdict)
    return _write(Path(path), max_mb, page, found, texts, ranking)


def write_stats_report(
    dataset: Path | str, path: Path | str, *, max_mb: float = DEFAULT_MAX_MB
) -> ReportSize:
    """Write the statistics of one score dataset as one HTML file that loads nothing else.

    All tokens count in its tables; the conversations with the lowest mean logprob are shown token by token,
    as many as fit.

    Args:
        dataset: Of scores.
        path: File to write.
        max_mb: Limit of the file in megabytes.

    Raises:
        UsageError: The limit is not allowed, or the extra `report` is not installed.
        InputError: No whole score dataset.
    """
    budget = _budget(max_mb)
    check_available()
    opened = open_scores(dataset)
    texts = TokenTexts(opened)
    found = collect(read_batches(opened), texts, metrics=[*_OF_ONE, *_recorded(opened)], max_bytes=budget)
    total = found.totals.total()
    facts = [
        ("conversations", f"{found.totals.n_conversations:,}"),
        *_failures([opened]),
        ("tokens with a logprob", f"{total.n_tokens:,} of {total.n_rows:,}"),
    ]
    tables = [
        models_table([opened]),
        facts_table(facts),
        *group_tables(found.totals),
        histogram_table(found.totals, name="logprob"),
    ]
    page = Page(_name(opened), tables, found.metrics, found.limits, False, chart_library())
    page = replace(page, verdict=stats_verdict(found.totals))
    return _write(Path(path), max_mb, page, found, texts, "lowest mean logprob")


def write_mismatch_report(
    dataset: Path | str,
    path: Path | str,
    *,
    max_mb: float = DEFAULT_MAX_MB,
    noise_floor: Path | str | None = None,
    on_error: OnError | str = OnError.FAIL,
) -> ReportSize:
    """Write the recorded logprobs of a score dataset beside the scored ones as one HTML file.

    All tokens that have both count in its tables; the conversations whose logprobs differ most, by their mean
    size, are shown token by token, as many as fit.

    Args:
        dataset: Of scores, whose input carried logprobs.
        path: File to write.
        max_mb: Limit of the file in megabytes.
        noise_floor: JSON of `tokscore selfcheck`.
        on_error: Whether a bad conversation ends the run or is left out.

    Raises:
        UsageError: The limit is not allowed, or the extra `report` is not installed.
        InputError: No whole score dataset, none of its tokens has both logprobs, or one is NaN or above 0.
    """
    budget = _budget(max_mb)
    check_available()
    floor = None if noise_floor is None else read_noise_floor(Path(noise_floor))
    report = mismatch(dataset, on_error=on_error, against=RecordedAgainst.SCORED)
    opened = open_scores(dataset)
    texts = TokenTexts(opened)
    skipped = {(each.conversation_id, each.branch) for each in report.skipped}
    found = collect(
        read_recorded_batches(opened, skipped),
        texts,
        metrics=[Metric.RECORDED, *_OF_ONE],
        kept=KEPT,
        max_bytes=budget,
    )
    tables = [
        models_table([opened]),
        facts_table(
            [*recorded_facts(report), *_failures([opened]), ("noise floor of logprobs", _floor(floor))]
        ),
        *recorded_tables(found.totals),
        histogram_table(found.totals, name="log-ratio scored / recorded"),
    ]
    notes = (
        "k1 and k3 estimate KL(recorded || scored) per sampled token: the means of -log r and r - 1 - log r, "
        "with r = p_scored / p_recorded.",
    )
    page = Page(_name(opened), tables, found.metrics, found.limits, False, chart_library(), notes)
    page = replace(page, verdict=recorded_verdict(report))
    return _write(Path(path), max_mb, page, found, texts, "largest mean |scored - recorded|")


_OF_ONE = (Metric.LOGPROB, Metric.RANK, Metric.ENTROPY)


def _recorded(dataset: Dataset) -> list[Metric]:
    """The metric of recorded logprobs, if the dataset has any."""
    return [Metric.RECORDED] if has_recorded(dataset) else []


def _write(
    path: Path, max_mb: float, page: Page, found: PageContents, texts: TokenTexts, ranking: str
) -> ReportSize:
    """Write the page with as many conversations as fit."""
    max_bytes = int(max_mb * _MEGABYTE)
    n_all = found.totals.n_conversations
    kept = list(found.kept)
    while True:
        n_out = n_all - len(kept)
        others = f"{counted(n_out, 'other')} {agreeing(n_out, 'is', 'are')}"
        left_out = f"; {others} left out to keep this file below {max_mb:g} MB" if n_out else ""
        vocabulary = vocabulary_of(kept, texts)
        html = replace(
            page,
            kept=f"{len(kept):,} of {counted(n_all, 'conversation')}, those with the {ranking}{left_out}.",
            conversations=[each.row for each in kept],
            packed=[each.packed.json for each in kept],
            texts=vocabulary.texts,
            named=vocabulary.named,
        ).html()
        size_bytes = len(html.encode())
        if size_bytes <= max_bytes or not kept:
            break
        # The texts of rare tokens took more than expected.
        excess = size_bytes - max_bytes
        while kept and excess > 0:
            excess -= len(kept.pop().packed.json.encode())
    write_file(path, html.encode())
    return ReportSize(n_all, len(kept), size_bytes)


def _budget(max_mb: float) -> int:
    """Bytes for conversations.

    Raises:
        UsageError: The limit leaves none.
    """
    least = 2 * _PAGE_BYTES / _MEGABYTE
    if not least <= max_mb <= _MOST_MEGABYTES:
        raise UsageError(
            f"`html_max_mb` is {max_mb:g}; expected at least {least:g}, as charts take about 1, "
            f"and at most {_MOST_MEGABYTES:,}."
        )
    return int((max_mb * _MEGABYTE - _PAGE_BYTES) * _VOCABULARY_SHARE)


def _failures(datasets: list[Dataset]) -> list[tuple[str, str]]:
    return [("records that failed", ", ".join(f"{sum(1 for _ in d.failures()):,}" for d in datasets))]


def _floor(floor: NoiseFloor | None) -> str:
    if floor is None:
        return "not measured (tokscore selfcheck)"
    return f"mean {floor.mean:.2g}, p99 {floor.p99:.2g}, max {floor.max:.2g} nats"


def _name(dataset: Dataset) -> str:
    model = dataset.manifest.model
    return dataset.root.name if model is None else model.name
