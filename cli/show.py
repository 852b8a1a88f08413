"""`tokscore show`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokscore.cli.options import shared as options
from tokscore.cli.printing.console import is_terminal
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.tables import Cell, Column, counted, print_json, print_rows
from tokscore.dataset.choices import Metric

if TYPE_CHECKING:
    from tokscore.analytics.report.conversation.scored import ModelScores, ScoredConversation
    from tokscore.analytics.report.conversation.token_texts import TokenText
    from tokscore.cli.printing.styled import StyledConsole
    from tokscore.dataset.reading import Dataset

EPILOG = """Examples:

\b
  tokscore show demo-output/teacher kettle-limescale
  tokscore show demo-output/teacher kettle-limescale --against demo-output/student --metric delta
"""
_PLAIN_WIDTH = 80


def show(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Score dataset.")],
    conversation_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a conversation in it.")],
    against: Annotated[
        Path | None,
        options.option(
            "--against", metavar="DATASET2", help="Score dataset of a student model for the same tokens."
        ),
    ] = None,
    exact: Annotated[
        Path | None,
        options.option(
            "--exact",
            metavar="FILE",
            help="With --against, exact.parquet of tokscore diff --exact -o: adds the KL over the whole "
            "vocabulary.",
        ),
    ] = None,
    metric: Annotated[
        Metric | None,
        options.option(
            "--metric",
            help="What colours the tokens.",
            show_default="kl with --exact, gjs with --against, otherwise logprob",
        ),
    ] = None,
    branch: Annotated[
        int | None,
        options.option("--branch", metavar="N", min=0, help="Branch to show.", show_default="the first"),
    ] = None,
    alpha: Annotated[
        float,
        options.option("--alpha", metavar="A", help="Weight of the teacher in the GJS, between 0 and 1."),
    ] = 0.5,
    form: options.FormatOption = Format.TABLE,
) -> None:
    """Show one conversation token by token, coloured by how far each token stands out, and its messages.

    A digit behind a token says the same as its colour: it exceeds 50 % (1), 80 % (2), 95 % (3) or 99 % (4) of
    the conversation's tokens. On a terminal the output is paged; --format json and csv print all numbers.
    """
    from tokscore.analytics.report.conversation.metrics import parse_metric
    from tokscore.analytics.report.conversation.token_texts import TokenTexts
    from tokscore.analytics.report.exact import find_exact
    from tokscore.analytics.report.reading import ComparedDatasets, find_scored, open_scores
    from tokscore.dataset.errors import InputError, UsageError

    if exact is not None and against is None:
        raise UsageError("--exact compares two models; name the other's score dataset with --against.")
    wanted = parse_metric(metric, has_student=against is not None, has_exact=exact is not None)
    students: list[Dataset] = []
    if against is None:
        opened = open_scores(dataset)
        conversation = find_scored(opened, conversation_id, branch)
    else:
        compared = ComparedDatasets(dataset, against, alpha=alpha)
        opened, students = compared.comparison.teacher, [compared.comparison.student]
        conversation = compared.find(conversation_id, branch)
        if exact is not None:
            conversation = find_exact(conversation, exact)
    if wanted is Metric.RECORDED and conversation.recorded is None:
        raise InputError(
            f"{opened.root}: {conversation.name} carries no recorded logprobs; choose another --metric."
        )
    texts = TokenTexts(opened).of(conversation.token_ids.tolist())
    if form is Format.JSON:
        print_json(_facts(conversation, wanted) | {"tokens": list(_token_rows(conversation, texts))})
    elif form is Format.CSV:
        columns = [Column(name, name) for name in next(_token_rows(conversation, texts), {})]
        print_rows(columns, _token_rows(conversation, texts), form)
    else:
        _print_paged(conversation, texts, wanted, [opened, *students])


def _facts(conversation: ScoredConversation, metric: Metric) -> dict[str, object]:
    from tokscore.analytics.report.conversation.messages import message_rows

    return {
        "conversation_id": conversation.conversation_id,
        "branch": conversation.branch,
        "source_file": conversation.source_file,
        "source_line": conversation.source_line,
        "status": conversation.status,
        "metric": metric.value,
        "messages": [row._asdict() for row in message_rows(conversation)],
    }


def _token_rows(conversation: ScoredConversation, texts: list[TokenText]) -> Iterator[dict[str, Cell]]:
    from tokscore.analytics.report.conversation.metrics import delta, recorded_gap

    sides = [("", conversation.teacher)]
    columns: dict[str, list[float]] = {}
    if conversation.student is not None and conversation.gjs is not None:
        sides.append(("student_", conversation.student))
        columns["delta"] = delta(conversation.teacher.logprobs, conversation.student.logprobs).tolist()
        columns["gjs_lower"] = conversation.gjs.lower.tolist()
        columns["gjs_upper"] = conversation.gjs.upper.tolist()
    if conversation.exact is not None:
        columns |= {name: values.tolist() for name, values in conversation.exact.items()}
    if conversation.recorded is not None:
        columns["recorded_logprob"] = conversation.recorded.tolist()
        columns["recorded_gap"] = recorded_gap(conversation).tolist()
    scores = {f"{prefix}{name}": column for prefix, side in sides for name, column in _columns_of(side)}
    columns = scores | columns
    for i, text in enumerate(texts):
        message = int(conversation.message_indices[i])
        row: dict[str, Cell] = {
            "position": i,
            "token_id": int(conversation.token_ids[i]),
            "text": text.text,
            "text_is_literal": text.is_literal,
            "message_index": message,
            "role": conversation.role_of(message),
            "source": conversation.sources[conversation.source_codes[i]],
            "is_content": bool(conversation.is_content[i]),
            "is_sampled": {1: True, 0: False}.get(int(conversation.sampled[i])),
        }
        yield row | {name: _number(name, column[i]) for name, column in columns.items()}


def _columns_of(scores: ModelScores) -> list[tuple[str, list[float]]]:
    columns = {"logprob": scores.logprobs, "rank": scores.ranks, "entropy": scores.entropies}
    return [(name, column.tolist()) for name, column in columns.items()]


def _number(name: str, value: float) -> Cell:
    """The value for JSON and CSV, where NaN and infinite numbers are null."""
    if value - value != 0.0:
        return None
    return int(value) if name.endswith("rank") else value


def _print_paged(
    conversation: ScoredConversation, texts: list[TokenText], metric: Metric, datasets: list[Dataset]
) -> None:
    from tokscore.cli.printing.styled import StyledConsole

    plain = None if is_terminal() or os.environ.get("COLUMNS", "").isdigit() else _PLAIN_WIDTH
    console = StyledConsole(width=plain)
    with console.paged():
        print_conversation(console, conversation, texts, metric, datasets)


def print_conversation(
    console: StyledConsole,
    conversation: ScoredConversation,
    texts: list[TokenText],
    metric: Metric,
    datasets: list[Dataset],
) -> None:
    """Print facts, messages and tokens to the console's width.

    Args:
        console: Where to.
        conversation: Compared, if there are two datasets.
        texts: Of its tokens.
        metric: What stands out.
        datasets: The teacher's, and the student's if there is one.
    """
    from rich.text import Text

    from tokscore.analytics.report.conversation.metrics import (
        METRICS,
        level_limits,
        levels,
        metric_values,
        salience,
    )
    from tokscore.cli.printing.conversation.strip import Strip
    from tokscore.cli.printing.visible import visible

    values = metric_values(conversation, metric)
    saliences = salience(metric, values)
    limits = level_limits(saliences)
    branch = f" branch {conversation.branch}" if conversation.branch else ""
    tokens = counted(len(conversation), "token")
    console.print(
        Text(
            f"{visible(conversation.conversation_id)}{branch}  "
            f"{visible(conversation.source_file)}:{conversation.source_line}  "
            f"{tokens}, status {conversation.status}",
            style="bold",
        )
    )
    for letter, dataset in zip("TS", datasets, strict=False):
        model = dataset.manifest.model
        name = "" if len(datasets) == 1 else f"{letter} "
        if model is not None:
            console.print(Text(f"{name}{model.name}, {model.dtype}, {model.engine_version}"))
    _print_messages(console, conversation, with_recorded=metric is Metric.RECORDED)
    sign = -1.0 if metric is Metric.LOGPROB else 1.0
    relation = "<" if metric is Metric.LOGPROB else ">"
    shown = (f"{digit} {relation} {sign * limit:.4g}" for digit, limit in zip("¹²³⁴", limits, strict=True))
    console.print(Text(f"{METRICS[metric].legend}:  {'  '.join(shown)}"))
    strip = Strip(
        conversation,
        texts,
        levels(saliences, limits).tolist(),
        (values < 0).tolist() if METRICS[metric].is_signed else [False] * len(conversation),
    )
    for line in strip.lines(console.width):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    if metric is Metric.RECORDED:
        from tokscore.cli.printing.conversation.recorded_tokens import print_recorded_tokens

        print_recorded_tokens(console, conversation, texts)


def _print_messages(
    console: StyledConsole, conversation: ScoredConversation, *, with_recorded: bool = False
) -> None:
    from tokscore.analytics.report.conversation.messages import message_rows
    from tokscore.cli.printing.conversation.fitted import print_fitted
    from tokscore.cli.printing.visible import visible

    is_compared = conversation.student is not None
    names = ["#", "role", "tokens", "sampled", "logprob"]
    if with_recorded:
        names += ["recorded", "scored - recorded"]
    else:
        names += ["logprob S", "T - S", "GJS"] if is_compared else ["rank 1", "entropy"]
    rows = []
    for row in message_rows(conversation):
        role = "(none)" if row.role is None else visible(row.role)
        cells = [
            "" if row.message_index < 0 else str(row.message_index),
            f"{role} {visible(row.tool_name)}" if row.tool_name else role,
            f"{row.n_tokens:,}",
            "?" if row.n_sampled is None else f"{row.n_sampled:,}",
            _mean(row.logprob),
        ]
        if with_recorded:
            cells += [_mean(row.recorded_logprob), _mean(row.recorded_gap)]
        elif is_compared:
            interval = f"[{_mean(row.gjs_lower)}, {_mean(row.gjs_upper)}]"
            cells += [
                _mean(row.student_logprob),
                _mean(row.delta),
                "-" if row.gjs_lower is None else interval,
            ]
        else:
            cells += [_mean(row.rank1_share), _mean(row.entropy)]
        rows.append(cells)
    print_fitted(console, names, rows)


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
