"""`tokscore logprobs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tokscore.cli.options import shared as options
from tokscore.cli.options.execution import Processes
from tokscore.cli.options.settings import setting_options
from tokscore.cli.printing.console import note
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.progress import ProgressLine
from tokscore.cli.printing.tables import agreeing, counted
from tokscore.cli.running.cost import plan_cost
from tokscore.cli.running.plan import print_plan
from tokscore.cli.running.runs import (
    note_conversations,
    note_outcome,
    open_conversations,
    served_model,
    use_scratch,
)
from tokscore.cli.stats import print_stats
from tokscore.dataset.choices import Executor, OnError
from tokscore.rendering.attribution.settings import RenderSettings
from tokscore.scoring.engines.settings import EngineSettings

if TYPE_CHECKING:
    from tokscore.scoring import ScoreSummary

# Tokens a second; behind them, times are no numbers.
_LEAST_RATE, _MOST_RATE = 1e-3, 1e12
EPILOG = """Examples:

\b
  tokscore logprobs demo-output/tokens -m ~/.cache/tokscore/models/smollm2-135m-instruct -o scores
  tokscore logprobs examples/conversations.jsonl -m ~/.cache/tokscore/models/smollm2-135m-instruct \\
      --template examples/chatml_tools.jinja -o scores-50 --top-k 50 --on-error skip
"""


@setting_options
def logprobs(
    inputs: options.InputsOrDataset,
    *,
    model: options.ModelOrServed = None,
    out: options.OptionalOut = None,
    engine: EngineSettings,
    score: Annotated[
        str | None,
        options.option(
            "--score",
            metavar="WHICH",
            help="What to score: all, sampled, content, role=ROLE, or several with commas: all of "
            "them; the rest is null.",
            show_default="all, or content of text in windows with context",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        options.option(
            "--shard", metavar="I/N", help="Write only every N-th part, from the I-th on, as job I of N."
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        options.option(
            "--max-length",
            metavar="N",
            min=1,
            help="Longer conversations become error rows, also of datasets.",
        ),
    ] = None,
    at: Annotated[
        Path | None,
        options.option(
            "--at",
            metavar="SCORES",
            help="Score every token also at the ids that this score dataset of the same tokens lists there.",
        ),
    ] = None,
    rendering: RenderSettings,
    on_error: options.OnErrorOption = OnError.FAIL,
    scratch: options.Scratch = None,
    workers: options.Workers = None,
    processes: Processes,
    form: options.FormatOption = Format.TABLE,
    by: options.Groups = None,
    dry_run: options.DryRun = False,
    exact_plan: options.ExactPlan = False,
    tokens_per_s: Annotated[
        float | None,
        options.option(
            "--tokens-per-s", metavar="N", min=0, help="Rate that --dry-run takes for its estimate."
        ),
    ] = None,
    probe: Annotated[
        bool,
        options.option(
            "--probe",
            help="Have --dry-run start the engine and measure its rate on a little of the input.",
        ),
    ] = False,
) -> None:
    """Score every token of conversations, or of a token dataset, with a model.

    Writes a score dataset: the token table with logprob, rank, entropy and the most likely ids of every
    position. Running it again goes on where it stopped.
    """
    from tokscore.analytics import parse_group_by
    from tokscore.dataset.errors import UsageError
    from tokscore.dataset.reading import Dataset
    from tokscore.dataset.resuming import finished_parts
    from tokscore.rendering.executors.devices import all_cores
    from tokscore.scoring import parse_selection, parse_shard, plan_engine
    from tokscore.scoring.listed_ids import ListedIds
    from tokscore.scoring.run import score as run_score
    from tokscore.scoring.run import score_manifest
    from tokscore.scoring.score_work import ScoreWork
    from tokscore.scoring.selection import default_selection
    from tokscore.scoring.shards import WHOLE

    if out is None and not dry_run:
        raise UsageError("there is nowhere to write: give -o DIR, or --dry-run to see the plan alone.")
    grouping = parse_group_by(by or ["role"])
    if tokens_per_s is not None and not _LEAST_RATE <= tokens_per_s <= _MOST_RATE:
        raise UsageError(
            f"`tokens_per_s` is {tokens_per_s:g}; expected between {_LEAST_RATE:g} and {_MOST_RATE:g}."
        )
    if probe and (not dry_run or tokens_per_s is not None):
        raise UsageError("`probe` measures the rate for `dry_run`; expected it there, and no `tokens_per_s`.")
    asked = None if score is None else parse_selection(score)
    job = WHOLE if shard is None else parse_shard(shard)
    use_scratch(scratch)
    chosen = processes.execution()
    model = model or served_model(engine, rendering)
    source = open_conversations(inputs, model, rendering, out, allow_dataset=True)
    selection = default_selection(source.settings) if asked is None else asked
    spec = plan_engine(
        model, engine, revision=rendering.revision, trust_remote_code=rendering.trust_remote_code
    )
    listed = None if at is None else ListedIds(at)
    manifest = score_manifest(source, spec, selection, max_length, listed)
    if dry_run:
        work = ScoreWork(source, out or Path(), manifest, spec, selection, max_length, on_error, listed)
        print_plan(
            source,
            form,
            exact=exact_plan,
            on_error=on_error,
            cost=lambda size: plan_cost(work, out, job, size, tokens_per_s, probes=probe),
            probes=probe,
        )
        return
    assert out is not None
    if processes.executor is Executor.SLURM:
        from tokscore.cli.running.slurm import submit_array

        submit_array(out, processes)
        return
    identity = spec.identity
    note(f"scoring with {identity.name}: {identity.engine} ({identity.engine_version}), {identity.dtype}")
    try:
        # Of a token dataset, conversations are counted in all of its parts.
        is_whole = chosen.is_here and job == WHOLE and not finished_parts(out, manifest)
        n_parts = sum(job.owns(part.index) for part in manifest.parts)
        label = ("reading", source.n_conversations if is_whole else None, "conversations")
        with ProgressLine(*label if chosen.is_here else ("scoring", n_parts, "parts")) as line:

            def scored(done: int, total: int) -> None:
                if not chosen.is_here:
                    line.update(done, total)
                    return
                if not done:
                    line.turn_to("scoring", total, "tokens")
                line.update(done, done, total)

            summary = run_score(
                source,
                out,
                spec,
                on_error=on_error,
                selection=selection,
                max_length=max_length,
                listed=listed,
                shard=job,
                workers=workers or all_cores(),
                progress=scored,
                tell=note,
                reading=line.update,
                execution=chosen,
            )
    except (KeyboardInterrupt, SystemExit):
        n_done, n_parts = len(finished_parts(out, manifest)), len(manifest.parts)
        of_parts = f"{counted(n_parts, 'part')} {agreeing(n_parts, 'is', 'are')}"
        note(f"stopped: {n_done:,} of {of_parts} done; run it again for the others.")
        raise
    if summary.n_parts:
        note_outcome(out, summary.n_parts_skipped, summary.n_parts)
    else:
        are = agreeing(len(manifest.parts), "is", "are")
        note(f"shard {job} has nothing to do: there {are} only {counted(len(manifest.parts), 'part')}.")
    _note_summary(summary)
    if summary.n_parts_missing:
        note(
            f"shard {job} is done ({counted(summary.n_parts, 'part')}); "
            f"{counted(summary.n_parts_missing, 'part')} of other shards "
            f"{agreeing(summary.n_parts_missing, 'is', 'are')} missing still."
        )
    else:
        note_conversations(source, Dataset(out))
        print_stats(out, grouping.value, form)
    note(f"wrote {out}")


def _note_summary(summary: ScoreSummary) -> None:
    """Say where the time went, and what was saved."""
    if not summary.n_tokens:
        return
    if not summary.n_scored:
        note("warning: none of the tokens is one that --score asks for, so none has a logprob.")
        return
    rate = summary.n_engine_tokens / max(summary.engine_s, 1e-9)
    note(
        f"{counted(summary.n_tokens, 'token')}, {summary.n_scored:,} with scores; of {summary.n_logical:,} "
        f"logical and {summary.n_unique:,} unique tokens the engine computed {summary.n_engine_tokens:,} in "
        f"{summary.engine_s:.1f} s ({rate:,.0f} tokens/s)."
    )
    if summary.n_rescored:
        note(
            f"{counted(summary.n_rescored, 'sequence')} found more in the cache than was planned and "
            f"{agreeing(summary.n_rescored, 'was', 'were')} scored again without it."
        )
    note(
        f"{summary.load_s:.1f} s to load the engine, {summary.other_s:.1f} s outside it, "
        f"of which {summary.write_s:.1f} s writing."
    )
