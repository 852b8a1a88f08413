"""The tables that `tokscore diff` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokscore.cli.printing.console import note
from tokscore.cli.printing.console import write as print_result
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.reports.groups import shown_groups
from tokscore.cli.printing.tables import Cell, Column, counted, print_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokscore.analytics import DiffReport, DiffRow, Grouping, Interval, MismatchReport
    from tokscore.analytics.comparison.noise import NoiseFloor
    from tokscore.analytics.comparison.off_policy import OffPolicy
    from tokscore.analytics.exact.report import ExactReport

_ALL = "(all)"
OFF_POLICY = (
    Column("mean_abs_log_ratio", "mean |log-ratio|"),
    Column("p01", "p1"),
    Column("p50", "p50"),
    Column("p99", "p99"),
    Column("effective_sample_size", "ESS"),
    Column("chi2", "chi2"),
    Column("outside_0_9_1_1", "outside 0.9-1.1"),
    Column("outside_0_5_2", "outside 0.5-2"),
    Column("clipped_low", "below 0.8"),
    Column("clipped_high", "above 1.2"),
    Column("sequence_ess", "ESS of sequences"),
)
NOISE = (
    Column("noise_floor.mean", "noise, mean |log-ratio|", 6),
    Column("noise_floor.p99", "noise, p99", 6),
)
_SHARED = (Column("unresolved", "unresolved"), Column("top1_agreement", "top-1 agreement"))
_RANKS = (
    Column("rank_t", "rank T", 2),
    Column("rank_s", "rank S", 2),
    Column("rank1_t", "rank 1 T"),
    Column("rank1_s", "rank 1 S"),
)
_SHOWN_TEXT = 60
_DIRECTIONS = ("teacher_student", "student_teacher")
# Unresolved mass above this is worth another run.
_MUCH = 0.1
_UNITS = (
    "Divergences: mean per token in nats, [lower, upper]; 'unbounded' where the top-k lists set no upper "
    "limit."
)
_CONFIDENCE = "95 % confidence, from resampling conversations"


def groups_with_values(report: DiffReport) -> list[DiffRow]:
    """Those that a table shows; a note counts the others."""
    return shown_groups(
        report.groups, report.by, lambda row: row.n_tokens > 0, lambda row: row.n_tokens + row.n_unscored
    )


def print_report(
    report: DiffReport, form: Format, *, exact: ExactReport | None = None, details: bool = False
) -> None:
    """Print a comparison as tables or CSV.

    Args:
        report: The comparison.
        form: Table or CSV.
        exact: Values over the whole vocabulary, which are further columns of CSV.
        details: Print all tables, not only the first.
    """
    groups = [*report.groups]
    if form is Format.TABLE:
        groups = groups_with_values(report)
    rows = [(report.by.labels(row.group), row) for row in groups]
    rows.append((all_label(report.by), report.total))
    floor = report.noise_floor
    noise_floor = noise_cells(floor)
    if form is Format.CSV:
        flat = [(", ".join(label.values()), row.flat()) for label, row in rows]
        if exact is not None:
            whole = [*(exact.flat_of(row.group) for row in groups), exact.total.flat()]
            flat = [(label, row | more) for (label, row), more in zip(flat, whole, strict=True)]
        print_flat(flat, noise_floor)
        return
    by = [Column(name, name) for name in report.by.names]
    cells = [{**label, **_cells(row), **noise_floor} for label, row in rows]
    main, further, realised = (_measure_columns(report, table) for table in ("main", "further", "realised"))
    if not details:
        print_result(f"{_verdict(report)}\n")
        beside = [] if floor is None else [OFF_POLICY[0], *NOISE]
        print_rows([*by, *_first_columns(report), *beside], cells, form)
        _print_estimates(report, rows)
        _note_known(report, has_exact=exact is not None)
        note_noise(floor)
        note(
            f"{_UNITS} T is the teacher, S the student. More measures, ratios, confidence limits and the "
            "tokens where the models differ most: --details."
        )
        return
    print_rows([*by, Column("n_tokens", "tokens"), *main, *_SHARED], cells, form)
    print_rows([*by, *further, *_RANKS], cells, form, title="Further measures")
    print_rows(
        [*by, *_as_one_columns(report)], cells, form, title="KL with the rest as one id, a lower limit"
    )
    first, *others = OFF_POLICY
    noise = [] if floor is None else NOISE
    print_rows([*by, *realised, first, *noise, *others], cells, form, title="Realised tokens")
    _print_confidence(report, rows)
    _print_estimates(report, rows)
    _print_contexts(report)
    _note_known(report, has_exact=exact is not None)
    note(f"{_UNITS} Ratios are teacher / student of realised tokens.")
    note_noise(floor)


def _note_known(report: DiffReport, *, has_exact: bool) -> None:
    """Say how much mass is known on both sides, what a KL is with the rest as one id, and how to get it."""
    total = report.total
    if total.unresolved is None:
        return
    text = f"Resolved, known on both sides: {1 - total.unresolved:.4f} of the mass"
    if total.unresolved > _MUCH:
        text += " (a larger --top-k lists more; logprobs --at scores a model at the ids that the other lists)"
    note(f"{text}.")
    interval, as_one = total.kl_teacher_student, total.kl_tail_as_one_teacher_student
    if not interval.is_unbounded or has_exact or as_one is None:
        return
    note(
        f"KL(T||S) with the rest as one id is {as_one:.4f} (kl_tail_as_one, a lower limit: data-processing "
        "inequality). Lists set no upper one: --exact gives the value"
        ", from both models (--teacher-model, --student-model)."
    )


def noise_cells(floor: NoiseFloor | None) -> dict[str, Cell]:
    """The same values beside the gaps of every group; empty without a noise floor."""
    return {} if floor is None else {f"noise_floor.{name}": n for name, n in floor._asdict().items()}


def note_noise(floor: NoiseFloor | None) -> None:
    """Say which log-ratios are no difference."""
    if floor is not None:
        note(
            f"noise floor of the engine: log-ratios of {floor.mean:.2g} on average, {floor.p99:.2g} at the "
            f"99th percentile, {floor.max:.2g} at most are no difference."
        )


def print_flat(
    rows: Sequence[tuple[str, Mapping[str, Cell]]], beside: Mapping[str, Cell] | None = None
) -> None:
    """Print all numbers of groups as CSV.

    Args:
        rows: Label and numbers of each group; what a group does not have is empty.
        beside: What stands in every row.
    """
    more = beside or {}
    keys = list(dict.fromkeys(key for _, values in rows for key in values))
    columns = [Column("group", "group"), *(Column(key, key) for key in (*keys, *more))]
    blank: dict[str, Cell] = dict.fromkeys(keys)
    cells = [{"group": label, **blank, **values, **more} for label, values in rows]
    print_rows(columns, cells, Format.CSV)


def _first_columns(report: DiffReport) -> list[Column]:
    """What is asked for most; it fits in 80 cells beside one column of a role."""
    headings = {column.key: column for column in _measure_columns(report, "main")}
    names = [f"gjs_{report.alpha:g}", "kl_teacher_student"]
    ratio = {column.key: column for column in _measure_columns(report, "realised")}["log_ratio"]
    return [
        Column("n_tokens", "tokens"),
        *(headings[name] for name in names),
        ratio,
        Column("top1_agreement", "same top-1"),
    ]


def _verdict(report: DiffReport) -> str:
    from tokscore.analytics.comparison.verdict import verdict

    def label(row: DiffRow) -> str:
        return ", ".join(f"{key} {value}" for key, value in report.by.labels(row.group).items())

    return verdict([(label(row), row) for row in report.groups], report.alpha)


def note_confidence(report: DiffReport | MismatchReport) -> None:
    """Say where confidence limits are missing, and how far they can be trusted."""
    if report.why_unconfident is not None:
        note(f"Only all tokens together have confidence limits: {report.why_unconfident}.")
    limits = [each for row in report.rows() for each in row.confidence]
    if any(each.is_rough and (each.lower, each.upper) != (None, None) for each in limits):
        note("Confidence limits are rough where there are fewer than 30 conversations.")


def all_label(by: Grouping) -> dict[str, str]:
    """What the row of all tokens says in the columns of groups."""
    first, *others = by.names
    return {first: _ALL, **dict.fromkeys(others, "")}


def _measure_columns(report: DiffReport, table: str) -> list[Column]:
    from tokscore.analytics.divergence.measures import measures

    return [Column(row.name, row.heading) for row in measures(report.alphas) if row.table == table]


def _as_one_columns(report: DiffReport) -> list[Column]:
    """Both KLs, each beside its value with the tail as one id."""
    from tokscore.analytics.divergence.measures import measure_named

    found = [measure_named(f"kl_{direction}", report.alphas) for direction in _DIRECTIONS]
    return [
        column
        for row in found
        for column in (
            Column(row.name, row.heading),
            Column(row.name.replace("kl", "kl_tail_as_one", 1), "tail as one"),
        )
    ]


def _cells(row: DiffRow) -> dict[str, Cell]:
    """Every number of a group, as the tables print it."""
    return {
        "n_tokens": row.n_tokens,
        **row.points,
        **{name: _shown(interval) for name, interval in row.intervals.items()},
        "unresolved": row.unresolved,
        "top1_agreement": row.top1_agreement,
        "rank_t": row.teacher_rank.mean,
        "rank_s": row.student_rank.mean,
        "rank1_t": row.teacher_rank.rank1_share,
        "rank1_s": row.student_rank.rank1_share,
        **off_policy_cells(row.off_policy),
    }


def _shown(interval: Interval) -> str:
    return "infinite" if interval.is_infinite else shown_limits(interval.lower, interval.upper)


def shown_limits(lower: float | None, upper: float | None) -> str:
    """An interval; without a lower limit there is none at all."""
    if lower is None:
        return "-"
    return f"[{lower:.4f}, {'unbounded' if upper is None else f'{upper:.4f}'}]"


def off_policy_cells(numbers: OffPolicy) -> dict[str, Cell]:
    """The cells of the columns `OFF_POLICY`."""
    return {
        "mean_abs_log_ratio": numbers.mean_abs_log_ratio,
        "p01": numbers.log_ratio.p01,
        "p50": numbers.log_ratio.p50,
        "p99": numbers.log_ratio.p99,
        "effective_sample_size": numbers.effective_sample_size,
        "chi2": numbers.chi2,
        "outside_0_9_1_1": numbers.outside_0_9_1_1,
        "outside_0_5_2": numbers.outside_0_5_2,
        "clipped_low": numbers.clipped_low,
        "clipped_high": numbers.clipped_high,
        "sequence_ess": numbers.sequence_effective_sample_size,
    }


def _print_confidence(report: DiffReport, rows: Sequence[tuple[dict[str, str], DiffRow]]) -> None:
    gjs = f"gjs_{report.alpha:g}"
    shown: list[dict[str, Cell]] = []
    for label, row in rows:
        found = {each.name: each for each in row.confidence}
        if gjs not in found or found[gjs].lower is None:
            continue
        line: dict[str, Cell] = {**label, "n_conversations": found[gjs].n_conversations}
        for name in ("log_ratio", gjs):
            low, high = found[name].lower, found[name].upper
            line[name] = shown_limits(low, high)
        line["adjusted_p"] = found["log_ratio"].adjusted_p_value
        shown.append(line)
    if not shown:
        return
    columns = (
        *(Column(name, name) for name in report.by.names),
        Column("n_conversations", "conversations"),
        Column("log_ratio", "logprob T-S"),
        Column("adjusted_p", "adjusted p"),
        Column(gjs, f"GJS {report.alpha:g}"),
    )
    print_rows(columns, shown, Format.TABLE, title=_CONFIDENCE)


def _print_estimates(report: DiffReport, rows: Sequence[tuple[dict[str, str], DiffRow]]) -> None:
    if report.total.estimate is None:
        return
    columns = (
        *(Column(name, name) for name in report.by.names),
        Column("n_tokens", "sampled tokens"),
        Column("k1", "k1"),
        Column("k3", "k3"),
        Column("topk", "top-k, Rao-Blackwell"),
        *(Column(f"{name}_limits", f"{name}, 95 %") for name in ("k1", "k3", "topk")),
    )
    shown: list[dict[str, Cell]] = []
    for label, row in rows:
        if row.estimate is None:
            continue
        found = {each.name: shown_limits(each.lower, each.upper) for each in row.confidence}
        limits = {f"{name}_limits": found.get(f"estimate_{name}", "-") for name in ("k1", "k3", "topk")}
        shown.append({**label, **row.estimate._asdict(), **limits})
    estimate = report.total.estimate
    print_rows(
        columns,
        shown,
        Format.TABLE,
        title=f"Unbiased estimates of {estimate.direction}, if the {estimate.sampler} sampled these tokens",
    )
    k1 = {each.name: each for each in report.total.confidence}.get("estimate_k1")
    if k1 is not None and k1.upper is not None and k1.upper < 0:
        note(
            f"warning: k1 is below 0 by more than chance, which no KL is: the {estimate.sampler} did not "
            "sample these tokens, or not at temperature 1, or with top-k or top-p."
        )
    if not estimate.n_tokens:
        note("warning: no compared token is known to be sampled (is_sampled), so that there is no estimate.")


def _print_contexts(report: DiffReport) -> None:
    if not report.contexts:
        return
    columns = (
        Column("place", "conversation, position"),
        Column("gjs", f"GJS {report.alpha:g}"),
        Column("before", "before"),
        Column("token", "token"),
        Column("teacher_top", "teacher's choice"),
        Column("student_top", "student's choice"),
    )
    shown = [
        {
            "place": f"{each.conversation_id}{f'/{each.branch}' if each.branch else ''}, {each.position}",
            "gjs": f"[{each.lower:.4f}, {each.upper:.4f}]",
            "before": repr(each.before[-_SHOWN_TEXT:])[1:-1],
            "token": repr(each.token)[1:-1],
            "teacher_top": "-" if each.teacher_top is None else repr(each.teacher_top)[1:-1],
            "student_top": "-" if each.student_top is None else repr(each.student_top)[1:-1],
        }
        for each in report.contexts
    ]
    title = f"{counted(len(shown), 'token')} where the models differ most"
    print_rows(columns, shown, Format.TABLE, title=title)
