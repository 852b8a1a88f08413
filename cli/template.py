"""`tokscore template`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokscore.cli import options
from tokscore.cli.inputs import parse_object
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.tables import Column, note, print_rows

EPILOG = """Examples:

\b
  tokscore template ~/.cache/tokscore/models/smollm2-135m-instruct
  tokscore template examples/chatml_tools.jinja -m ~/.cache/tokscore/models/smollm2-135m-instruct --format csv
"""
COLUMNS = (
    Column("subject", "subject"),
    Column("name", "name"),
    Column("finding", "finding"),
    Column("how", "how"),
)


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
    template_kwargs: options.TemplateKwargs = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    form: options.FormatOption = Format.TABLE,
) -> None:
    """Report what a chat template does, before anybody spends a GPU on it.

    Says which roles it takes, how it opens and ends an answer and how that was found, what it drops and
    refuses, whether earlier tokens stay when a conversation grows, and where its generation tags differ from
    the rule for sampled tokens. Everything comes from its own renderings of small conversations.
    """
    from tokscore.dataset.errors import UsageError
    from tokscore.rendering.attribution.renderer import Renderer
    from tokscore.rendering.attribution.tokenizer import ChatTokenizer
    from tokscore.rendering.source import read_template
    from tokscore.rendering.template_report import template_report

    path = Path(source)
    if path.is_file():
        if model is None:
            raise UsageError(
                f"{source} is a template; expected a tokenizer for it too.\nGive one with -m MODEL."
            )
        tokenizer = ChatTokenizer(
            model, revision=revision, template=read_template(path), trust_remote_code=trust_remote_code
        )
    elif model is not None:
        raise UsageError(
            f"{source} is no file; expected a template file beside -m.\n"
            "Leave out -m to look at a model's own template."
        )
    else:
        tokenizer = ChatTokenizer(source, revision=revision, trust_remote_code=trust_remote_code)
    findings = template_report(Renderer(tokenizer, template_kwargs=parse_object(template_kwargs)))
    print_rows(COLUMNS, (finding._asdict() for finding in findings), form, title=f"Template of {source}")
    n_unknown = sum(finding.subject == "shape" and "unknown" in finding.finding for finding in findings)
    if n_unknown:
        note(f"warning: in {n_unknown} shapes it cannot be told of every answer which tokens were sampled.")
