"""The scoring run: tokens to a score dataset."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from tokscore.dataset.choices import OnError, choose
from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.errors import ConversationError, EngineError
from tokscore.dataset.files import output_location
from tokscore.dataset.manifest import Manifest, Setting, read_manifest
from tokscore.dataset.resuming import (
    check_some_succeeded,
    finished_elsewhere,
    forget_claims,
    prepare_output,
    record_engine_details,
    record_tokenizer_details,
)
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.tokens import FailedConversation, RenderedConversation
from tokscore.dataset.writing import PartWriter
from tokscore.rendering.workers import choose_library
from tokscore.scoring import dedupe
from tokscore.scoring.columns import ScoredTokens, score_columns
from tokscore.scoring.engines.contract import SequenceScores, TokenSequence, windows
from tokscore.scoring.engines.retries import CHANCE, UNSHOWN, EngineFailure, RetryingEngine, check_same_model
from tokscore.scoring.engines.row_checks import check_scores
from tokscore.scoring.engines.settings import Sharing
from tokscore.scoring.estimates import RATE_KEY
from tokscore.scoring.planning import ReadJob, RunPlan, failure, plan_run
from tokscore.scoring.segments import SegmentPlan
from tokscore.scoring.selection import EVERY_TOKEN, Selection
from tokscore.scoring.shards import WHOLE, Shard
from tokscore.scoring.spool import Spool

if TYPE_CHECKING:
    from tokscore.rendering.source import TokenSource
    from tokscore.scoring.engines.spec import EngineSpec
    from tokscore.scoring.listed_ids import ListedIds
    from tokscore.scoring.planning import Reading
    from tokscore.scoring.spool import Item

T = TypeVar("T")

# Called with (tokens done, tokens in all): once when the engine is ready, then as sequences come back.
Progress = Callable[[int, int], None]
# Called with a line for the user.
Tell = Callable[[str], None]
Outcome = SequenceScores | EngineFailure


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

    Raises:
        UsageError: `out` holds another run.
        InputError: `listed` has another tokenizer.
        ConversationError: A conversation cannot be scored and `on_error` is fail.
        InputError: Every conversation failed.
        EngineError: The engine cannot start, failed on nothing in particular, or broke its contract.
    """
    started = perf_counter()
    out, on_error = output_location(out), choose(OnError, on_error, "on_error")
    choose_library(source, workers)
    manifest = score_manifest(source, engine, selection, max_length, listed)
    done = prepare_output(out, manifest, source.vocabulary)
    mine = [part for part in manifest.parts if shard.owns(part.index)]
    parts = [part for part in mine if part.index not in done]
    run = _Run(engine, selection, on_error, listed)
    if parts:
        with Spool(out) as spool:
            job = ReadJob(source, engine, selection, max_length, on_error, listed)
            plan = plan_run(job, parts, spool, workers=workers, reading=reading)
            if source.text_ids is not None and source.text_ids.has_differed:
                record_tokenizer_details(out, source.text_ids.details)
                tell(f"warning: {source.text_ids.reason}; {_earlier_parts(done)}")
            try:
                manifest = run.start(plan, out, manifest, tell)
                progress(0, plan.n_tokens)
                for part in parts:
                    with PartWriter(out, run.described(manifest), part.index, score_columns) as writer:
                        for _ in run.score_part(spool.read(part.index), writer):
                            progress(run.n_done, plan.n_tokens)
                        with run.writing_clock:
                            writer.describe(run.part_metadata())
                            if not writer.finish():
                                tell(finished_elsewhere(part.index))
            finally:
                run.close()
    check_some_succeeded(out, [part.index for part in mine], "scored")
    n_missing = forget_claims(out, manifest)
    elapsed_s = perf_counter() - started
    engine_s = run.engine_s
    return ScoreSummary(
        n_conversations=run.n_conversations,
        n_tokens=run.n_tokens,
        n_failed=run.n_failed,
        n_parts_skipped=len(mine) - len(parts),
        n_parts=len(mine),
        n_parts_missing=n_missing,
        n_scored=run.n_scored,
        n_engine_tokens=run.n_engine_tokens,
        n_logical=run.n_logical,
        n_unique=run.n_unique,
        n_rescored=run.n_rescored,
        load_s=run.load_s,
        engine_s=engine_s,
        other_s=elapsed_s - engine_s - run.load_s,
        write_s=run.writing_clock.elapsed_s,
    )


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


class _Clock:
    """Adds up seconds: those that an iterator takes to make its items, or those inside a `with` block."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self._entered = 0.0

    def __enter__(self) -> None:
        self._entered = perf_counter()

    def __exit__(self, *_error: object) -> None:
        self.elapsed_s += perf_counter() - self._entered

    def timed(self, items: Iterable[T]) -> Iterator[T]:
        iterator = iter(items)
        while True:
            started = perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.elapsed_s += perf_counter() - started
            yield item


class _Waiting(NamedTuple):
    """A conversation that was read and not yet written; its sequence is None if nothing is to be scored."""

    item: Item
    sequence: TokenSequence | None


class _Run:
    """One pass over the open parts."""

    def __init__(
        self, spec: EngineSpec, selection: Selection, on_error: OnError, listed: ListedIds | None
    ) -> None:
        self._spec = spec
        self._listed = listed
        self._selection = selection
        self._on_error = on_error
        self._engine: RetryingEngine | None = None
        self.n_done = self.n_logical = self.n_unique = 0
        self.n_conversations = self.n_tokens = self.n_failed = self.n_scored = 0
        self.reading_clock, self.engine_clock, self.writing_clock = _Clock(), _Clock(), _Clock()
        self.load_s = 0.0
        self._described = (0, 0.0)

    @property
    def engine_s(self) -> float:
        # The engine draws what is read.
        return self.engine_clock.elapsed_s - self.reading_clock.elapsed_s

    @property
    def n_engine_tokens(self) -> int:
        """Tokens that the engine computed after its start."""
        return 0 if self._engine is None else self._engine.n_computed

    @property
    def n_rescored(self) -> int:
        """Sequences that the engine scored again."""
        return 0 if self._engine is None else self._engine.n_rescored

    def part_metadata(self) -> dict[str, str]:
        """The engine's rate since the last call, where it had something to do."""
        n_before, s_before = self._described
        self._described = n_engine_tokens, engine_s = self.n_engine_tokens, self.engine_s
        n, elapsed_s = n_engine_tokens - n_before, engine_s - s_before
        return {RATE_KEY: f"{n / elapsed_s:.1f}"} if n and elapsed_s > 0 else {}

    def start(self, plan: RunPlan, out: Path, manifest: Manifest, tell: Tell) -> Manifest:
        """Start the engine, where there is something for it; returns the manifest with how it scores."""
        if not plan.n_for_engine:
            return manifest
        started = perf_counter()
        self.n_logical, self.n_unique = plan.n_tokens, plan.n_unique
        shares = self._spec.settings.sharing is Sharing.AUTO and plan.counts.are_worth_sharing
        self._engine = RetryingEngine(replace(self._spec, shares=shares), plan.longest, tell)
        self.load_s = perf_counter() - started
        if plan.n_tokens > plan.n_unique:
            tell(
                f"plan: {plan.n_tokens:,} tokens, {plan.n_unique:,} unique: what is shared "
                + ("is computed once." if self._engine.shares else "is computed for every sequence.")
            )
        details = dict(self._engine.details)
        if details:
            tell(
                "engine: "
                + ", ".join(
                    f"{name.replace('_', ' ')} {value}"
                    for name, value in details.items()
                    if name not in UNSHOWN
                )
            )
        check_same_model(self._spec.identity.engine, read_manifest(out).engine_details, details)
        differences = record_engine_details(out, details, but=CHANCE)
        if differences:
            tell(
                f"warning: the engine runs otherwise than when this dataset was begun: "
                f"{'; '.join(differences)}. The parts written now say so in their metadata."
            )
        return self.described(manifest)

    def described(self, manifest: Manifest) -> Manifest:
        """The manifest, with how the engine scores now, for the parts."""
        if self._engine is None:
            return manifest
        return msgspec.structs.replace(manifest, engine_details=dict(self._engine.details))

    def score_part(self, items: Iterator[Item], writer: PartWriter) -> Iterator[None]:
        """Write one part in input order; yields whenever the engine is done with a sequence."""
        waiting: deque[_Waiting] = deque()
        shared: dict[int, dedupe.SharedSequence] = {}
        plans: dict[int, SegmentPlan] = {}
        outcomes: dict[int, Outcome] = {}

        def sequences() -> Iterator[TokenSequence]:
            for key, item in enumerate(items):
                sequence = None
                if isinstance(item, RenderedConversation):
                    wanted = self._selection.wanted(item.tokens)
                    sequence = TokenSequence(key, item.tokens.token_ids, wanted)
                    sequence = sequence if sequence.n_rows > 0 else None
                    if sequence is not None and self._listed is not None:
                        sequence = sequence._replace(at_ids=self._listed.of(item))
                waiting.append(_Waiting(item, sequence))
                if sequence is not None:
                    yield sequence

        def for_engine() -> Iterator[TokenSequence]:
            shares = self._engine is not None and self._engine.shares
            for window in windows(sequences(), dedupe.WINDOW_TOKENS):
                for group in dedupe.share_sequences(window, self._spec.model.switch_length):
                    shared.update((each.sequence.key, each) for each in group)
                    plan = SegmentPlan([each.sequence for each in group], shares=shares)
                    for sequence in plan.sequences:
                        plans[sequence.key] = plan
                        yield sequence

        def finished(key: int, outcome: Outcome) -> None:
            each = shared.pop(key)
            for member in each.members:
                self.n_done += len(member.token_ids)
                outcomes[member.key] = self._outcome_of(member, each, outcome)

        for key, outcome in self.engine_clock.timed(self._score(self.reading_clock.timed(for_engine()))):
            plan = plans.pop(key)
            if isinstance(outcome, SequenceScores):
                for complete, rows in plan.add(key, outcome):
                    finished(complete, rows)
            elif key in shared:
                finished(key, outcome)
                # Its branches lack rows of it. The engine does nothing else now, so they are scored alone.
                for sequence in plan.fail(key):
                    finished(sequence.key, self._alone(sequence))
            with self.writing_clock:
                while waiting and _is_ready(waiting[0], outcomes):
                    self._write(waiting.popleft(), outcomes, writer)
            yield
        with self.writing_clock:
            for entry in waiting:
                if not _is_ready(entry, outcomes):
                    raise EngineError(
                        f"the engine returned nothing for conversation {_id(entry.item)}. "
                        "Nothing was written for this part."
                    )
                self._write(entry, outcomes, writer)

    def _score(self, sequences: Iterator[TokenSequence]) -> Iterator[tuple[int, Outcome]]:
        if self._engine is None:
            for _ in sequences:
                raise AssertionError("planning found nothing for the engine")
            return
        yield from self._engine.score(sequences)

    def _alone(self, sequence: TokenSequence) -> Outcome:
        assert self._engine is not None
        return self._engine.score_alone(sequence) or EngineFailure("it returned nothing for it")

    def _outcome_of(self, member: TokenSequence, each: dedupe.SharedSequence, outcome: Outcome) -> Outcome:
        if isinstance(outcome, SequenceScores):
            return each.rows_of(member, outcome)
        if len(member.token_ids) < len(each.sequence.token_ids) and self._engine is not None:
            # What ends the engine on a long sequence may be only its length.
            alone = self._engine.score_alone(member)
            return outcome if alone is None else alone
        return outcome

    def _write(self, entry: _Waiting, outcomes: dict[int, Outcome], writer: PartWriter) -> None:
        item, sequence = entry
        outcome = None if sequence is None else outcomes.pop(sequence.key)
        if isinstance(item, RenderedConversation):
            item = self._checked(item, sequence, outcome)
        if isinstance(item, FailedConversation):
            writer.fail(item)
            self.n_failed += 1
            return
        n_tokens = len(item.tokens)
        scored = ScoredTokens(n_tokens, None)
        if sequence is not None and isinstance(outcome, SequenceScores):
            scored = ScoredTokens(n_tokens, outcome, sequence.wanted)
            self.n_scored += sequence.n_rows
        writer.add(item, scored)
        self.n_conversations += 1
        self.n_tokens += n_tokens

    def _checked(
        self, item: RenderedConversation, sequence: TokenSequence | None, outcome: Outcome | None
    ) -> Item:
        """The conversation, or why what the engine returned for it cannot be used."""
        if sequence is None or outcome is None:
            return item
        if isinstance(outcome, EngineFailure):
            failed = failure(item, f"the engine failed on it twice: {outcome.reason}")
        else:
            try:
                check_scores(
                    outcome,
                    sequence.n_rows,
                    self._spec.settings.top_k,
                    item.row.conversation_id,
                    sequence.targets(),
                    sequence.at_rows(),
                )
            except ConversationError as error:
                failed = failure(item, error.reason, error.hint)
            else:
                return item
        if self._on_error is OnError.FAIL:
            raise failed.error()
        return failed

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def _is_ready(entry: _Waiting, outcomes: dict[int, Outcome]) -> bool:
    return entry.sequence is None or entry.sequence.key in outcomes


def _id(item: Item) -> str:
    return item.conversation_id if isinstance(item, FailedConversation) else item.row.conversation_id
