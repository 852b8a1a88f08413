"""`tokscore template`."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer

from tokscore.cli.options import shared as options
from tokscore.cli.options.settings import Only, setting_options
from tokscore.cli.printing.console import note
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.tables import Column, counted, print_all_columns, print_rows
from tokscore.rendering.attribution.settings import RenderSettings

EPILOG = """Examples:

\b
  tokscore template ~/.cache/tokscore/models/smollm2-135m-instruct
  tokscore template examples/chatml_tools.jinja -m ~/.cache/tokscore/models/smollm2-135m-instruct --format csv
"""
SHOWN_CHARACTERS = 90
COLUMNS = (
    Column("subject", "subject"),
    Column("name", "name"),
    Column("finding", "finding"),
    Column("how", "how"),
)


@setting_options
def template(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TEMPLATE|MODEL",
            help="Chat template file, or the model directory or hub id whose own template is meant.",
        ),
    ],
    model: Annotated[
        str | None,
        options.option(
            "--model", "-m", metavar="MODEL", help="Model whose tokenizer goes with a template file."
        ),
    ] = None,
    *,
    rendering: Annotated[RenderSettings, Only(("template_kwargs", "revision", "trust_remote_code"))],
    form: options.FormatOption = Format.TABLE,
    wide: options.Wide = False,
) -> None:
    """Report what a chat template does, before anybody spends a GPU on it.

    Says which roles it takes, how it opens and ends an answer and how that was found, what it drops and
    refuses, whether earlier tokens stay when a conversation grows, and where its generation tags differ from
    the rule for sampled tokens. Everything comes from its own renderings of small conversations.
    """
    print_all_columns(wide)
    from tokscore.dataset.errors import UsageError
    from tokscore.rendering.attribution.renderer import Renderer
    from tokscore.rendering.attribution.tokenizer import ChatTokenizer
    from tokscore.rendering.template_report import template_report
    from tokscore.rendering.templates.files import read_template

    path = Path(source)
    if path.is_file():
        if model is None:
            raise UsageError(
                f"{source} is a template; expected a tokenizer for it too.\nGive one with -m MODEL."
            )
        name, text = model, read_template(path)
    elif model is not None:
        raise UsageError(
            f"{source} is no file; expected a template file beside -m.\n"
            "Leave out -m to look at a model's own template."
        )
    else:
        name, text = source, None
    tokenizer = ChatTokenizer(
        name, revision=rendering.revision, template=text, trust_remote_code=rendering.trust_remote_code
    )
    findings = template_report(Renderer(tokenizer, rendering))
    rows = [finding._asdict() for finding in findings]
    if form is Format.TABLE:  # long reasons would leave the other columns no room
        rows = [{**row, "how": shorten(row["how"], SHOWN_CHARACTERS, placeholder=" …")} for row in rows]
    print_rows(COLUMNS, rows, form, title=f"Template of {source}")
    n_unknown = sum(finding.subject == "shape" and "unknown" in finding.finding for finding in findings)
    if n_unknown:
        note(
            f"warning: in {counted(n_unknown, 'shape')} it cannot be told of every answer which tokens were "
            "sampled."
        )
