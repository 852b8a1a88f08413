"""The scoring run: tokens to a score dataset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from tokscore.dataset.choices import OnError, choose
from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.files import output_location
from tokscore.dataset.manifest import Manifest, Part, Setting
from tokscore.dataset.resuming import (
    check_some_succeeded,
    finished_elsewhere,
    forget_claims,
    forget_parts,
    prepare_output,
    record_tokenizer_details,
)
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.writing import PartWriter
from tokscore.rendering.executors.claimed import begin, check_none_failed, claimed
from tokscore.rendering.executors.execution import HERE, Execution
from tokscore.rendering.workers import choose_library
from tokscore.scoring.columns import score_columns
from tokscore.scoring.part_scorer import PartScorer, ScoreCounts
from tokscore.scoring.planning import plan_run
from tokscore.scoring.score_work import ScoreWork
from tokscore.scoring.selection import EVERY_TOKEN, Selection
from tokscore.scoring.shards import WHOLE, Shard
from tokscore.scoring.spool import Spool

if TYPE_CHECKING:
    from tokscore.rendering.executors.work import Totals
    from tokscore.rendering.source import TokenSource
    from tokscore.scoring.engines.spec import EngineSpec
    from tokscore.scoring.listed_ids import ListedIds
    from tokscore.scoring.part_scorer import Tell
    from tokscore.scoring.planning import Reading


# Called with (tokens done, tokens in all): once when the engine is ready, then as sequences come back.
Progress = Callable[[int, int], None]


class ScoreSummary(NamedTuple):
    """Summary of a run.

    Attributes:
        n_conversations: Written now.
        n_tokens: Written now.
        n_failed: Listed in errors/ now.
        n_parts_skipped: Parts of this shard that an earlier run had finished.
        n_parts: Parts of this shard; all where the run is not divided.
        n_parts_missing: Parts of other shards that are not there yet.
        n_scored: Of the tokens written now, those with scores.
        n_engine_tokens: Tokens that the engine computed for them; fewer than written where sequences are
            equal or begin alike.
        n_logical: Tokens of the conversations that were for the engine.
        n_unique: Of these, those that had to be computed at least.
        n_rescored: Sequences that the engine scored again, since what they share was not there as planned.
        load_s: Seconds that the engine took to start.
        engine_s: Seconds inside the engine after that.
        other_s: Seconds outside: reading or rendering, planning, and writing.
        write_s: Of these, writing, less what a thread wrote meanwhile.
    """

    n_conversations: int
    n_tokens: int
    n_failed: int
    n_parts_skipped: int
    n_parts: int
    n_parts_missing: int
    n_scored: int
    n_engine_tokens: int
    n_logical: int
    n_unique: int
    n_rescored: int
    load_s: float
    engine_s: float
    other_s: float
    write_s: float


def score(
    source: TokenSource,
    out: Path | str,
    engine: EngineSpec,
    *,
    on_error: OnError = OnError.FAIL,
    selection: Selection = EVERY_TOKEN,
    max_length: int | None = None,
    listed: ListedIds | None = None,
    shard: Shard = WHOLE,
    workers: int = 1,
    progress: Progress = lambda _done, _total: None,
    tell: Tell = lambda _line: None,
    reading: Reading = lambda _done, _n_tokens: None,
    execution: Execution = HERE,
) -> ScoreSummary:
    """Write the score dataset of `source` to `out`; parts that are there already are kept.

    The engine starts after the input was read once, so that what cannot be scored is known before,
    and does not start where nothing is left to score.

    Args:
        source: Planned conversations, or a token dataset.
        out: Directory, new or of the same plan.
        engine: What `plan_engine` returned.
        on_error: What one bad conversation does.
        selection: Which tokens get scores.
        max_length: Longer conversations become error rows.
        listed: Score every token also at the ids that it lists there.
        shard: Which parts are written here.
        workers: Processes that read or render before the engine starts; few parts are read here. More than
            one need `if __name__ == "__main__":` in the script that calls this.
        progress: Called as tokens are done.
        tell: Called with what the user should know meanwhile.
        reading: Called before that as conversations are read, with conversations and tokens so far.
        execution: Which processes score. Replicas read each part before they score it, so that a bad
            conversation is found with its part, and `progress` is called with parts.

    Raises:
        UsageError: `out` holds another run.
        InputError: `listed` has another tokenizer.
        ConversationError: A conversation cannot be scored and `on_error` is fail.
        InputError: Every conversation failed.
        EngineError: The engine cannot start, failed on nothing in particular, or broke its contract.
        TokscoreError: Processes that had a part ended again and again.
    """
    started = perf_counter()
    out, on_error = output_location(out), choose(OnError, on_error, "on_error")
    choose_library(source, workers)
    manifest = score_manifest(source, engine, selection, max_length, listed)
    done = prepare_output(out, manifest, source.vocabulary)
    mine = [part for part in manifest.parts if shard.owns(part.index)]
    parts = [part for part in mine if part.index not in done]
    job = ScoreWork(source, out, manifest, engine, selection, max_length, on_error, listed)
    if not parts:
        counts = ScoreCounts()
    elif execution.is_here:
        counts = _score_here(job, parts, done, workers, progress, tell, reading)
    else:
        counts = _score_elsewhere(job, parts, done, execution, progress, tell)
    check_none_failed(out, manifest, mine)
    check_some_succeeded(out, [part.index for part in mine], "scored")
    n_missing = forget_claims(out, manifest)
    elapsed_s = perf_counter() - started
    return ScoreSummary(
        **counts._asdict(),
        n_parts_skipped=len(mine) - len(parts),
        n_parts=len(mine),
        n_parts_missing=n_missing,
        other_s=max(elapsed_s - counts.engine_s - counts.load_s, 0.0),
    )


def _score_here(
    work: ScoreWork,
    parts: Sequence[Part],
    done: Collection[int],
    workers: int,
    progress: Progress,
    tell: Tell,
    reading: Reading,
) -> ScoreCounts:
    """Read all parts, then score them, in this process."""
    source, out, manifest = work.source, work.out, work.manifest
    run = PartScorer(work.spec, work.selection, work.on_error, work.listed)
    begin(out, manifest, parts, tell)
    with Spool(out) as spool:
        plan = plan_run(work.reading(), parts, spool, workers=workers, reading=reading)
        if source.text_ids is not None and source.text_ids.has_differed:
            record_tokenizer_details(out, source.text_ids.details)
            tell(f"warning: {source.text_ids.reason}; {_earlier_parts(done)}")
        try:
            run.plan(plan)
            if plan.n_for_engine:
                run.start(plan.longest, plan.counts, tell)
            if plan.n_tokens > plan.n_unique:
                tell(
                    f"plan: {plan.n_tokens:,} tokens, {plan.n_unique:,} unique: what is shared "
                    + ("is computed once." if run.shares else "is computed for every sequence.")
                )
            run.record(out, tell)
            progress(0, plan.n_tokens)
            with closing(claimed(out, manifest, parts)) as mine:
                for part, seen in mine:
                    with PartWriter(out, run.described(manifest), part.index, score_columns) as writer:
                        n_done = run.n_done
                        for _ in run.score_part(spool.read(part.index), writer):
                            seen(run.n_done - n_done)
                            n_done = run.n_done
                            progress(n_done, plan.n_tokens)
                        with run.writing_clock:
                            writer.describe(run.part_metadata())
                            if not writer.finish():
                                tell(finished_elsewhere(part.index))
        finally:
            run.close()
    return run.counts()


def _score_elsewhere(
    work: ScoreWork,
    parts: Sequence[Part],
    done: Collection[int],
    execution: Execution,
    progress: Progress,
    tell: Tell,
) -> ScoreCounts:
    """Have replicas read and score parts; again from the first where ids are in doubt."""
    source = work.source
    settings = work.spec.settings
    gpus_each = settings.tensor_parallel_size * settings.pipeline_parallel_size

    def run() -> Totals:
        return execution.run(
            work,
            parts,
            {part.index: source.part_bytes(part) for part in parts},
            gpus_each=gpus_each,
            progress=progress,
            tell=tell,
        )

    totals = run()
    if totals.doubt is not None and source.text_ids is not None:
        source.text_ids.switch_back(totals.doubt)
        record_tokenizer_details(work.out, source.text_ids.details)
        forget_parts(work.out, work.manifest, {part.index for part in parts})
        tell(f"warning: {source.text_ids.reason}; {_earlier_parts(done)}")
        totals = run()
    return ScoreCounts.of(totals)


def score_manifest(
    source: TokenSource,
    engine: EngineSpec,
    selection: Selection = EVERY_TOKEN,
    max_length: int | None = None,
    listed: ListedIds | None = None,
) -> Manifest:
    """The sealed manifest of a score dataset; it does not depend on shards or on what is done already.

    Raises:
        InputError: `listed` has another tokenizer.
    """
    settings: dict[str, Setting] = {
        "top_k": engine.settings.top_k,
        "temperature": engine.settings.temperature,
        "logprob_mode": "raw",
        "dtype": engine.identity.dtype,
        "score": str(selection),
        "max_length": max_length,
    }
    if listed is not None:
        listed.check_tokenizer(source.tokenizer)
        settings["at"] = listed.manifest.plan_hash
    return Manifest(
        kind=DatasetKind.SCORES,
        tokscore_version=version("tokscore"),
        settings=source.settings | settings | engine.recorded(),
        tokenizer=source.tokenizer,
        model=engine.identity,
        inputs=list(source.inputs),
        parts=list(source.parts),
        tokenizer_details=source.tokenizer_details,
    ).sealed()


def _earlier_parts(done: Collection[int]) -> str:
    if not done:
        return "all is read again."
    names = ", ".join(map(part_name, sorted(done)))
    return f"parts that were finished before may have wrong ids: delete {names}."
