"""`tokscore selfcheck`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokscore.cli.options import shared as options
from tokscore.cli.options.settings import Only, setting_options
from tokscore.cli.printing.console import note
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.reports.selfcheck import finite, limit_rows, print_selfcheck
from tokscore.cli.printing.tables import counted, print_all_columns, print_json
from tokscore.cli.running.runs import served_model
from tokscore.dataset.settings import definitions
from tokscore.rendering.attribution.settings import RenderSettings
from tokscore.scoring.engines.registry import ENGINES
from tokscore.scoring.engines.settings import EngineSettings

if TYPE_CHECKING:
    from tokscore.scoring import EngineSpec
    from tokscore.scoring.agreement import Agreement
    from tokscore.scoring.selfcheck import Chosen, SelfCheck

EPILOG = """Examples:

\b
  tokscore selfcheck -m ~/.cache/tokscore/models/smollm2-135m-instruct --max-tokens-total 400
  tokscore selfcheck examples/conversations.jsonl -m ~/.cache/tokscore/models/smollm2-135m-instruct \\
      --template examples/chatml_tools.jinja --max-tokens-total 400 --format json -o noise.json
"""


@setting_options
def selfcheck(
    *,
    model: options.ModelOrServed = None,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT]",
            help="Conversations, or one token dataset; a few that come with tokscore if left out.",
            show_default=False,
        ),
    ] = None,
    engine: EngineSettings,
    max_delta: Annotated[
        float | None,
        options.option(
            "--max-delta",
            metavar="NATS",
            min=0,
            help="Most that a logprob may differ from the reference, and from another pass.",
            show_default="2e-4 in float32, 2 in bfloat16, 0.25 in float16",
        ),
    ] = None,
    mean_delta: Annotated[
        float | None,
        options.option(
            "--mean-delta",
            metavar="NATS",
            min=0,
            help="Most that logprobs may differ from the reference on average.",
            show_default="2e-5 in float32, 0.1 in bfloat16, 0.0125 in float16",
        ),
    ] = None,
    max_tokens_total: Annotated[
        int,
        options.option(
            "--max-tokens-total",
            metavar="N",
            min=2,
            help="Take the first conversations with N tokens in all.",
        ),
    ] = 20_000,
    seed: Annotated[int, options.option("--seed", help="Of the random order.")] = 0,
    rendering: Annotated[
        RenderSettings,
        Only(
            ("template", "revision", "trust_remote_code", "input_format", "map", "chunk", "stride", "context")
        ),
    ],
    out: Annotated[
        Path | None,
        options.option(
            "--out", "-o", metavar="FILE", help="Write the result there as JSON, for tokscore diff."
        ),
    ] = None,
    form: options.FormatOption = Format.TABLE,
    wide: options.Wide = False,
) -> None:
    """Check an engine against transformers in float32, and against itself in another order.

    Prints how far logprobs differ, and exits with 1 where that is more than the limits. Options about the
    engine are those of logprobs; the reference takes none of them.
    """
    print_all_columns(wide)
    from tokscore.dataset.errors import ExitCode
    from tokscore.dataset.files import check_is_file_name
    from tokscore.rendering.inputs import open_source
    from tokscore.scoring import plan_engine, selfcheck
    from tokscore.scoring.engines.retries import UNSHOWN

    if out is not None:
        check_is_file_name(out)
    model = model or served_model(engine, rendering)
    plan = partial(
        plan_engine, model, revision=rendering.revision, trust_remote_code=rendering.trust_remote_code
    )
    spec = plan(engine)
    reference = plan(
        engine="transformers", dtype="float32", top_k=engine.top_k, temperature=engine.temperature
    )
    tolerance = selfcheck.default_tolerance(spec.identity.dtype)
    tolerance = selfcheck.Tolerance(
        tolerance.max_delta if max_delta is None else max_delta,
        tolerance.mean_delta if mean_delta is None else mean_delta,
    )
    source = open_source(inputs or selfcheck.SAMPLE_CONVERSATIONS, model, rendering)
    chosen = selfcheck.choose(source, spec, max_tokens_total)
    _note_choice(chosen, max_tokens_total)
    found = selfcheck.selfcheck(chosen, spec, reference, tolerance, seed=seed, progress=note)
    in_effect = [
        f"{name.replace('_', ' ')} {value}" for name, value in found.details.items() if name not in UNSHOWN
    ]
    note(f"engine: {', '.join(in_effect)}")
    document = _document(found, chosen, spec)
    if out is not None:
        _write(out, document)
    if form is Format.JSON:
        print_json(document)
    else:
        print_selfcheck(found, form)
    if not found.is_passed:
        raise typer.Exit(ExitCode.FAILED)


def _note_choice(chosen: Chosen, max_tokens_total: int) -> None:
    n_tokens = sum(len(sequence.token_ids) for sequence in chosen.sequences)
    note(f"checking with {counted(len(chosen.sequences), 'conversation')}, {counted(n_tokens, 'token')}")
    if chosen.n_left_out:
        note(
            f"{counted(chosen.n_left_out, 'conversation')} left out: behind the first {max_tokens_total:,} "
            "tokens (--max-tokens-total), or not for this model."
        )
    if chosen.n_failed:
        note(f"{counted(chosen.n_failed, 'conversation')} could not be rendered.")


def _document(found: SelfCheck, chosen: Chosen, spec: EngineSpec) -> dict[str, Any]:  # Any: JSON values
    """The result as `docs/selfcheck.md` describes it; numbers that are not finite are null."""
    floor = found.noise_floor
    return {
        "model": found.engine.name,
        "revision": found.engine.revision,
        "engine": found.engine.engine,
        "engine_version": found.engine.engine_version,
        "dtype": found.engine.dtype,
        "options": {
            each.name: getattr(spec.settings, each.name)
            for each in definitions(EngineSettings)
            if each.name in ENGINES[found.engine.engine].settings
        },
        "details": found.details,
        "reference": {
            "engine": found.reference.engine,
            "engine_version": found.reference.engine_version,
            "dtype": found.reference.dtype,
        },
        "top_k": spec.settings.top_k,
        "temperature": spec.settings.temperature,
        "n_conversations": found.n_conversations,
        "n_left_out": chosen.n_left_out,
        "n_failed": chosen.n_failed,
        "n_tokens": found.against_reference.n_tokens,
        "against_reference": _numbers(found.against_reference),
        "noise_floor": {
            "max": finite(floor.max),
            "mean": finite(floor.mean),
            "p99": finite(floor.p99),
            "warm": _numbers(floor.warm),
            "shuffled": _numbers(floor.shuffled),
        },
        "is_deterministic": found.is_deterministic,
        "lines": limit_rows(found),
        "passed": found.is_passed,
    }


def _numbers(agreement: Agreement) -> dict[str, float | None]:
    return {name: finite(value) for name, value in agreement._asdict().items()}


def _write(path: Path, document: dict[str, Any]) -> None:  # Any: JSON values
    import json

    from tokscore.dataset.writing import write_file

    write_file(path, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n")
    note(f"wrote {path}")
