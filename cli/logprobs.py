"""`tokscore logprobs`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tokscore.cli import engine_options, options
from tokscore.cli.engine_options import EnginePathChoice, HeadDtypeChoice, make_engine_options
from tokscore.cli.inputs import PlanCost, RenderOptions, note_outcome, open_conversations, print_plan
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.tables import ProgressLine, counted, note
from tokscore.cli.stats import print_stats

if TYPE_CHECKING:
    from tokscore.dataset.manifest import Manifest
    from tokscore.rendering.plan_size import PlanSize
    from tokscore.scoring import ScoreSummary, Shard

EPILOG = """Examples:

\b
  tokscore logprobs demo-output/tokens -m ~/.cache/tokscore/models/smollm2-135m-instruct -o scores
  tokscore logprobs examples/conversations.jsonl -m ~/.cache/tokscore/models/smollm2-135m-instruct \\
      --template examples/chatml_tools.jinja -o scores-50 --top-k 50 --on-error skip
"""


def logprobs(
    inputs: options.InputsOrDataset,
    model: options.Model,
    out: options.OptionalOut = None,
    engine: Annotated[
        options.EngineChoice,
        options.option("--engine", help="vllm, transformers, or whichever of them can run here (auto)."),
    ] = options.EngineChoice.AUTO,
    top_k: Annotated[
        int, options.option("--top-k", metavar="K", min=0, help="Most likely ids to keep at every position.")
    ] = 20,
    dtype: Annotated[
        options.DtypeChoice, options.option("--dtype", help="Type to compute in; auto is the model's own.")
    ] = options.DtypeChoice.AUTO,
    temperature: Annotated[
        float, options.option("--temperature", metavar="T", help="Divide the logits by T before the softmax.")
    ] = 1.0,
    score: Annotated[
        str,
        options.option(
            "--score",
            metavar="WHICH",
            help="What to score: all, sampled, content, role=ROLE, or several with commas; the rest is null.",
        ),
    ] = "all",
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
    head_dtype: engine_options.HeadDtype = HeadDtypeChoice.AUTO,
    engine_path: engine_options.EnginePath = EnginePathChoice.AUTO,
    tensor_parallel_size: engine_options.TensorParallelSize = 1,
    pipeline_parallel_size: engine_options.PipelineParallelSize = 1,
    quantization: engine_options.Quantization = None,
    batch_tokens: engine_options.BatchTokens = None,
    engine_arg: engine_options.EngineArguments = None,
    template: options.Template = None,
    template_kwargs: options.TemplateKwargs = None,
    tools: options.Tools = None,
    add_generation_prompt: options.GenerationPrompt = False,
    max_tokens: options.MaxTokens = None,
    truncate: options.TruncateOption = None,
    verify: options.VerifyOption = options.VerifyChoice.SAMPLE,
    template_timeout: options.TemplateTimeout = options.TEMPLATE_TIMEOUT_S,
    template_characters: options.TemplateCharacters = options.TEMPLATE_CHARACTERS,
    on_error: options.OnErrorOption = options.OnErrorChoice.FAIL,
    revision: options.Revision = None,
    template_time: options.TemplateTime = None,
    input_format: options.InputFormat = None,
    trust_remote_code: options.TrustRemoteCode = False,
    messages: options.MessagesOption = None,
    workers: options.Workers = None,
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
) -> None:
    """Score every token of conversations, or of a token dataset, with a model.

    Writes a score dataset: the token table with logprob, rank, entropy and the most likely ids of every
    position. Running it again goes on where it stopped.
    """
    from tokscore.analytics import parse_group_by
    from tokscore.dataset.choices import OnError
    from tokscore.dataset.errors import UsageError
    from tokscore.dataset.reading import finished_parts
    from tokscore.rendering.workers import all_cores
    from tokscore.scoring import parse_selection, parse_shard, plan_engine
    from tokscore.scoring.run import score as run_score
    from tokscore.scoring.run import score_manifest
    from tokscore.scoring.shards import WHOLE

    if out is None and not dry_run:
        raise UsageError("there is nowhere to write: give -o DIR, or --dry-run to see the plan alone.")
    grouping = parse_group_by(by or ["role"])
    selection = parse_selection(score)
    job = WHOLE if shard is None else parse_shard(shard)
    engine_settings = make_engine_options(
        head_dtype,
        engine_path,
        tensor_parallel_size,
        pipeline_parallel_size,
        quantization,
        batch_tokens,
        engine_arg,
    )
    chosen = RenderOptions(
        template=template,
        template_kwargs=template_kwargs,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        verify=verify,
        max_tokens=max_tokens,
        truncate=truncate,
        template_timeout=template_timeout,
        template_characters=template_characters,
        revision=revision,
        template_time=template_time,
        input_format=input_format,
        trust_remote_code=trust_remote_code,
        messages=messages,
    )
    source = open_conversations(inputs, model, chosen, out, allow_dataset=True)
    spec = plan_engine(
        model,
        engine=engine.value,
        top_k=top_k,
        dtype=dtype.value,
        temperature=temperature,
        revision=revision,
        trust_remote_code=trust_remote_code,
        options=engine_settings,
    )
    manifest = score_manifest(source, spec, selection, max_length)
    if dry_run:
        print_plan(
            source, form, exact=exact_plan, cost=lambda size: _cost(out, manifest, job, size, tokens_per_s)
        )
        return
    assert out is not None
    identity = spec.identity
    note(f"scoring with {identity.name}: {identity.engine} ({identity.engine_version}), {identity.dtype}")
    try:
        is_whole = job == WHOLE and not finished_parts(out, manifest)
        with ProgressLine("reading", source.n_conversations if is_whole else None, "conversations") as line:

            def scored(done: int, total: int) -> None:
                if not done:
                    line.turn_to("scoring", total, "tokens")
                line.update(done, done, total)

            summary = run_score(
                source,
                out,
                spec,
                on_error=OnError(on_error.value),
                selection=selection,
                max_length=max_length,
                shard=job,
                workers=workers or all_cores(),
                progress=scored,
                tell=note,
                reading=line.update,
            )
    except (KeyboardInterrupt, SystemExit):
        n_done, n_parts = len(finished_parts(out, manifest)), len(manifest.parts)
        note(f"stopped: {n_done} of {counted(n_parts, 'part')} are done; run it again for the others.")
        raise
    if summary.n_parts:
        note_outcome(out, summary.n_failed, summary.n_parts_skipped, summary.n_parts)
    else:
        note(f"shard {job} has nothing to do: there are only {counted(len(manifest.parts), 'part')}.")
    _note_summary(summary)
    if summary.n_parts_missing:
        note(
            f"shard {job} is done ({counted(summary.n_parts, 'part')}); "
            f"{counted(summary.n_parts_missing, 'part')} of other shards are missing still."
        )
    else:
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
        f"{counted(summary.n_tokens, 'token')}, {summary.n_scored:,} with scores; the engine read "
        f"{summary.n_engine_tokens:,} of them in {summary.engine_s:.1f} s ({rate:,.0f} tokens/s)."
    )
    note(
        f"{summary.load_s:.1f} s to load the engine, {summary.other_s:.1f} s outside it, "
        f"of which {summary.write_s:.1f} s writing."
    )


def _cost(
    out: Path | None, manifest: Manifest, shard: Shard, size: PlanSize, tokens_per_s: float | None
) -> PlanCost:
    """Cost of the parts that are left, which are taken to be of equal size."""
    from tokscore.dataset.errors import InputError
    from tokscore.dataset.manifest import read_manifest
    from tokscore.dataset.reading import finished_parts
    from tokscore.scoring.estimates import estimate_run

    finished = set[int]()
    with suppress(InputError):  # nothing is there yet
        if out is not None and read_manifest(out).plan_hash == manifest.plan_hash:
            finished = finished_parts(out, manifest)
    top_k = manifest.settings["top_k"]
    assert isinstance(top_k, int)
    estimate = estimate_run(out or Path(), finished, top_k=top_k, tokens_per_s=tokens_per_s)
    n_open = sum(shard.owns(part.index) and part.index not in finished for part in manifest.parts)
    n_tokens = round(size.n_logical_tokens * n_open / len(manifest.parts))
    return PlanCost(
        n_open,
        n_tokens,
        estimate.size_bytes(n_tokens),
        estimate.is_measured,
        estimate.tokens_per_s,
        estimate.elapsed_s(n_tokens),
    )
