"""An engine that is started again when it fails, and what it failed on tried again alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tokscore.dataset.errors import EngineError, agreeing, counted
from tokscore.scoring.engines.contract import SequenceScores, TokenSequence
from tokscore.scoring.engines.registry import ENGINES, load_target

if TYPE_CHECKING:
    from tokscore.dataset.manifest import Setting
    from tokscore.scoring.engines.contract import Engine
    from tokscore.scoring.engines.spec import EngineSpec

# Sequences that fail alone, one after the other, before the engine is taken to be broken.
MAX_FAILURES = 8
# Details that differ from one start to the next without a reason.
CHANCE = {"sharing", "self_test_max_difference", "transformers_max_difference", "noise", "fingerprint"}
# Details that are for manifests alone.
UNSHOWN = {"fingerprint"}


def check_same_model(engine: str, earlier: Mapping[str, Setting] | None, now: Mapping[str, Setting]) -> None:
    """Refuse to go on where details of an engine say that it has another model than before.

    Args:
        engine: Its name.
        earlier: Details of the one that scored before; None where there was none.
        now: Of the one that is to go on.

    Raises:
        UsageError: They have different models.
    """
    row = ENGINES.get(engine)
    if earlier is not None and row is not None and row.check_same is not None:
        load_target(row.check_same)(earlier, now)


class EngineFailure(NamedTuple):
    """The engine failed twice on a sequence, the second time with nothing else in it.

    Attributes:
        reason: What it said.
    """

    reason: str


class RetryingEngine:
    """Runs an engine; a failure of it costs the sequences that it fails on alone, not the run.

    Attributes:
        details: How the engine scores; of the latest start.
    """

    def __init__(self, spec: EngineSpec, longest: int, tell: Callable[[str], None]) -> None:
        """Start the engine.

        Raises:
            EngineError: It cannot start.
        """
        self._spec = spec
        self._longest = longest
        self._tell = tell
        self._n_failures = 0
        self._engine: Engine | None = spec.start(longest)
        self.details: Mapping[str, Setting] = getattr(self._engine, "details", {})
        # Of the engine as it started, and of engines before it.
        self._at_start, self._ended = self._counts(), (0, 0)

    @property
    def shares(self) -> bool:
        """Whether the engine computes once what sequences have in common with their trunk."""
        return self._engine is not None and getattr(self._engine, "shares", False)

    @property
    def n_computed(self) -> int:
        """Tokens that were computed for sequences; those of checks at the start are left out."""
        return self._ended[0] + self._counts()[0] - self._at_start[0]

    @property
    def n_rescored(self) -> int:
        """Sequences that an engine scored again."""
        return self._ended[1] + self._counts()[1] - self._at_start[1]

    def _count(self, sequence: TokenSequence | None) -> None:
        """Take an engine that does not count to compute all of a sequence."""
        if sequence is not None and not hasattr(self._engine, "n_computed"):
            self._ended = self._ended[0] + len(sequence.token_ids), self._ended[1]

    def _counts(self) -> tuple[int, int]:
        engine = self._engine
        return getattr(engine, "n_computed", 0), getattr(engine, "n_rescored", 0)

    def _running(self) -> Engine:
        if self._engine is None:
            self._engine = self._spec.start(self._longest)
            self._at_start = self._counts()
            before, self.details = self.details, getattr(self._engine, "details", {})
            check_same_model(self._spec.identity.engine, before, self.details)
            differences = [
                f"{name.replace('_', '-')} was {before.get(name)} and is {self.details.get(name)}"
                for name in sorted({*before, *self.details} - CHANCE)
                if before.get(name) != self.details.get(name)
            ]
            if differences:
                self._tell(
                    f"warning: the engine that was started again runs otherwise: {'; '.join(differences)}."
                )
        return self._engine

    def score(
        self, sequences: Iterable[TokenSequence]
    ) -> Iterator[tuple[int, SequenceScores | EngineFailure]]:
        """Key and scores of every sequence, in any order.

        Raises:
            EngineError: The engine failed on nothing in particular or on too many, or does not start again.
        """
        in_flight: dict[int, TokenSequence] = {}

        def drawn() -> Iterator[TokenSequence]:
            for sequence in sequences:
                in_flight[sequence.key] = sequence
                yield sequence

        remaining = drawn()
        while True:
            try:
                for key, scores in self._running().score(remaining):
                    self._count(in_flight.pop(key, None))
                    self._n_failures = 0
                    yield key, scores
            except EngineError as error:
                if not in_flight:
                    raise
                n = len(in_flight)
                self._tell(
                    f"warning: {error}\nStarting the engine again; "
                    f"{counted(n, 'sequence')} that it had {agreeing(n, 'is', 'are')} scored one at a time."
                )
                self.close()
            else:
                return
            for key in list(in_flight):
                result = self.score_alone(in_flight.pop(key))
                if result is not None:
                    yield key, result

    def score_alone(self, sequence: TokenSequence) -> SequenceScores | EngineFailure | None:
        """Score one sequence with nothing else in the engine; None where it returns nothing.

        Raises:
            EngineError: This failed too often in a row, or the engine does not start again.
        """
        engine = self._running()
        try:
            scores = dict(engine.score([sequence])).get(sequence.key)
            self._count(sequence)
        except EngineError as error:
            self.close()
            self._n_failures += 1
            if self._n_failures >= MAX_FAILURES:
                raise EngineError(
                    f"the engine failed on {MAX_FAILURES} sequences in a row, each alone. "
                    f"The last time it said: {error}"
                ) from error
            return EngineFailure(str(error))
        self._n_failures = 0
        return scores

    def close(self) -> None:
        """Free the model; the next sequence starts the engine again."""
        self._ended = self.n_computed, self.n_rescored
        engine, self._engine = self._engine, None
        self._at_start = (0, 0)
        if engine is not None:
            with suppress(Exception):  # one that failed may fail at this, too
                engine.close()
