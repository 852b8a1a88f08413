"""`tokscore logprobs`."""

from __future__ import annotations

from typing import Annotated

from tokscore.cli import options
from tokscore.cli.inputs import RenderOptions, note_outcome, open_conversations, print_plan
from tokscore.cli.options import Format
from tokscore.cli.output import ProgressLine, note
from tokscore.cli.stats import print_stats

EPILOG = """Examples:

\b
  tokscore logprobs demo-output/tokens -m ~/.cache/tokscore/models/smollm2-135m-instruct -o scores
  tokscore logprobs examples/conversations.jsonl -m ~/.cache/tokscore/models/smollm2-135m-instruct \\
      --template examples/chatml_tools.jinja -o scores-50 --top-k 50 --on-error skip
"""


def logprobs(
    inputs: options.InputsOrDataset,
    model: options.Model,
    out: options.Out,
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
    form: options.FormatOption = Format.TABLE,
    by: options.Group = options.GroupBy.ROLE,
    dry_run: options.DryRun = False,
    exact_plan: options.ExactPlan = False,
) -> None:
    """Score every token of conversations, or of a token dataset, with a model.

    Writes a score dataset: the token table with logprob, rank, entropy and the most likely ids of every
    position. Running it again goes on where it stopped.
    """
    from tokscore.rendering.run import OnError
    from tokscore.scoring import plan_engine, score

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
    )
    source = open_conversations(inputs, model, chosen, out, allow_dataset=True)
    spec = plan_engine(
        model,
        engine=engine.value,
        top_k=top_k,
        dtype=dtype.value,
        temperature=temperature,
        revision=revision,
    )
    if dry_run:
        print_plan(source, form, exact=exact_plan)
        return
    identity = spec.identity
    note(f"scoring with {identity.name}: {identity.engine} ({identity.engine_version}), {identity.dtype}")
    with ProgressLine("scoring", None, "tokens") as line:
        summary = score(
            source,
            out,
            spec,
            on_error=OnError(on_error.value),
            progress=lambda done, total: line.update(done, done, total),
        )
    note_outcome(out, summary.n_failed, summary.n_parts_skipped, summary.n_parts)
    if summary.n_tokens:
        rate = summary.n_tokens / max(summary.engine_s, 1e-9)
        note(
            f"{summary.n_tokens:,} tokens: {summary.engine_s:.1f} s in the engine ({rate:,.0f} tokens/s), "
            f"{summary.load_s:.1f} s to load it, {summary.other_s:.1f} s outside."
        )
    print_stats(out, by.value, form)
    note(f"wrote {out}")
