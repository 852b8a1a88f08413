"""The rows of one part: its conversations through the engine, in input order to the writer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import msgspec

from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import ConversationError, EngineError
from tokscore.dataset.manifest import Manifest, read_manifest
from tokscore.dataset.resuming import record_engine_details
from tokscore.dataset.tokens import FailedConversation, RenderedConversation
from tokscore.dataset.writing import PartWriter
from tokscore.scoring.columns import ScoredTokens
from tokscore.scoring.engines.contract import SequenceScores, TokenSequence, windows
from tokscore.scoring.engines.retries import CHANCE, UNSHOWN, EngineFailure, RetryingEngine, check_same_model
from tokscore.scoring.engines.row_checks import check_scores
from tokscore.scoring.engines.settings import Sharing
from tokscore.scoring.estimates import RATE_KEY
from tokscore.scoring.planning import failure
from tokscore.scoring.sharing import dedupe
from tokscore.scoring.sharing.segments import SegmentPlan

if TYPE_CHECKING:
    from tokscore.rendering.executors.work import Totals
    from tokscore.scoring.engines.spec import EngineSpec
    from tokscore.scoring.listed_ids import ListedIds
    from tokscore.scoring.planning import RunPlan
    from tokscore.scoring.selection import Selection
    from tokscore.scoring.sharing.segments import TokenCounts
    from tokscore.scoring.spool import Item

T = TypeVar("T")

# Called with a line for the user.
Tell = Callable[[str], None]
Outcome = SequenceScores | EngineFailure


class Clock:
    """Adds up seconds: those that an iterator takes to make its items, or those inside a `with` block."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self._entered = 0.0

    def __enter__(self) -> None:
        self._entered = perf_counter()

    def __exit__(self, *_error: object) -> None:
        self.elapsed_s += perf_counter() - self._entered

    def timed(self, items: Iterable[T]) -> Iterator[T]:
        """The items, whose making is timed."""
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


class ScoreCounts(NamedTuple):
    """Counts of what an engine and its writer have done, in the words of `ScoreSummary`."""

    n_conversations: int = 0
    n_tokens: int = 0
    n_failed: int = 0
    n_scored: int = 0
    n_engine_tokens: int = 0
    n_logical: int = 0
    n_unique: int = 0
    n_rescored: int = 0
    load_s: float = 0.0
    engine_s: float = 0.0
    write_s: float = 0.0

    @classmethod
    def of(cls, totals: Totals) -> Self:
        """What replicas have done; of their seconds the mean, as they work side by side."""
        n_replicas = max(totals.n_replicas, 1)
        sums: dict[str, Any] = {  # Any: integers, and seconds
            name: totals.counts.get(name, 0.0) / n_replicas if name.endswith("_s") else totals.count(name)
            for name in cls._fields
        }
        return cls(**sums)


class PartScorer:
    """An engine, and what it has scored of one part after the other."""

    def __init__(
        self, spec: EngineSpec, selection: Selection, on_error: OnError, listed: ListedIds | None
    ) -> None:
        self._spec = spec
        self._listed = listed
        self._selection = selection
        self._on_error = on_error
        self._engine: RetryingEngine | None = None
        self._ended = (0, 0)  # what engines before it computed, and scored again
        self.n_done = self.n_logical = self.n_unique = 0
        self.n_conversations = self.n_tokens = self.n_failed = self.n_scored = 0
        self.reading_clock, self.engine_clock, self.writing_clock = Clock(), Clock(), Clock()
        self.load_s = 0.0
        self._described = (0, 0.0)

    @property
    def engine_s(self) -> float:
        """Seconds in the engine, which draws what is read."""
        return self.engine_clock.elapsed_s - self.reading_clock.elapsed_s

    @property
    def n_engine_tokens(self) -> int:
        """Tokens that engines computed after their start."""
        return self._ended[0] + (0 if self._engine is None else self._engine.n_computed)

    @property
    def n_rescored(self) -> int:
        """Sequences that engines scored again."""
        return self._ended[1] + (0 if self._engine is None else self._engine.n_rescored)

    @property
    def shares(self) -> bool:
        """Whether the engine computes once what sequences have in common."""
        return self._engine is not None and self._engine.shares

    def counts(self) -> ScoreCounts:
        """All that was done so far."""
        return ScoreCounts(
            self.n_conversations,
            self.n_tokens,
            self.n_failed,
            self.n_scored,
            self.n_engine_tokens,
            self.n_logical,
            self.n_unique,
            self.n_rescored,
            self.load_s,
            self.engine_s,
            self.writing_clock.elapsed_s,
        )

    def part_metadata(self) -> dict[str, str]:
        """The engine's rate since the last call, where it had something to do."""
        n_before, s_before = self._described
        self._described = n_engine_tokens, engine_s = self.n_engine_tokens, self.engine_s
        n, elapsed_s = n_engine_tokens - n_before, engine_s - s_before
        return {RATE_KEY: f"{n / elapsed_s:.1f}"} if n and elapsed_s > 0 else {}

    def plan(self, plan: RunPlan) -> None:
        """Count what is to be scored."""
        self.n_logical += plan.n_tokens
        self.n_unique += plan.n_unique

    def start(self, longest: int, counts: TokenCounts, tell: Tell) -> None:
        """Start the engine.

        Args:
            longest: Most tokens of a sequence.
            counts: Of the tokens that it will get, as far as they are known.
            tell: Called with lines for the user.

        Raises:
            EngineError: It cannot start.
        """
        started = perf_counter()
        shares = self._spec.settings.sharing is Sharing.AUTO and counts.are_worth_sharing
        self._engine = RetryingEngine(replace(self._spec, shares=shares), longest, tell)
        self.load_s += perf_counter() - started

    def record(self, out: Path, tell: Tell) -> None:
        """Say how the engine scores, and write it into the manifest where no run has done so."""
        if self._engine is None:
            return
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
                    dtype=self._spec.identity.dtype,
                )
            except ConversationError as error:
                failed = failure(item, error.reason, error.hint)
            else:
                return item
        if self._on_error is OnError.FAIL:
            raise failed.error()
        return failed

    def close(self) -> None:
        """Free the model."""
        engine, self._engine = self._engine, None
        if engine is not None:
            self._ended = self._ended[0] + engine.n_computed, self._ended[1] + engine.n_rescored
            engine.close()


def _is_ready(entry: _Waiting, outcomes: dict[int, Outcome]) -> bool:
    return entry.sequence is None or entry.sequence.key in outcomes


def _id(item: Item) -> str:
    return item.conversation_id if isinstance(item, FailedConversation) else item.row.conversation_id
