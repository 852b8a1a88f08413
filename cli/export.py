"""`tokscore export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokscore.cli.options import shared as options
from tokscore.cli.printing.console import note
from tokscore.cli.printing.tables import agreeing, counted
from tokscore.dataset.choices import Targets, Weighting

EPILOG = """Examples:

\b
  tokscore export demo-output/teacher -o distil.parquet --format topk --role assistant
  tokscore export demo-output/teacher -o advantages.parquet --format advantages --student demo-output/student
"""


def export(
    dataset: Annotated[
        Path,
        typer.Argument(
            metavar="DATASET",
            help="Token or score dataset; for topk and advantages, the scores of the teacher.",
        ),
    ],
    *,
    out: Annotated[
        Path,
        options.option(
            "--out",
            "-o",
            metavar="FILE",
            help="Parquet file to write, a row for each conversation.",
            parser=options.output_path,
        ),
    ],
    format: Annotated[  # noqa: A002  # as the option is called
        Targets,
        options.option(
            "--format",
            help="What a row has beside input_ids, labels (-100 where no model generated the token) and "
            "weights: nothing, the teacher's lists, or log p of the teacher less log q of the student.",
        ),
    ] = Targets.LABELS,
    student: Annotated[
        Path | None,
        options.option(
            "--student", metavar="SCORES", help="Scores of the model that is trained, for advantages."
        ),
    ] = None,
    role: Annotated[
        str | None, options.option("--role", metavar="ROLE", help="Only tokens of this role are targets.")
    ] = None,
    weights: Annotated[
        Weighting,
        options.option("--weights", help="Let every token weigh alike, or every conversation."),
    ] = Weighting.TOKENS,
) -> None:
    """Write a dataset as training targets that `datasets.load_dataset` and a DataLoader read."""
    from tokscore.analytics.training.export import export as write

    found = write(dataset, out, targets=format, student=student, role=role, weighting=weights)
    note(
        f"wrote {out}: {counted(found.n_conversations, 'conversation')}, {counted(found.n_tokens, 'token')}, "
        f"{counted(found.n_targets, 'target')}"
    )
    if found.n_unknown:
        note(
            f"warning: of {counted(found.n_unknown, 'token')} it cannot be told whether a model generated "
            "them; they are no targets."
        )
    if found.n_unscored:
        have = agreeing(found.n_unscored, "has", "have")
        note(f"warning: {counted(found.n_unscored, 'target')} without a logprob {have} weight 0.")
