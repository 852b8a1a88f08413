"""Scoring as work that an executor hands to its processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokscore.dataset.choices import OnError
from tokscore.dataset.manifest import Manifest, Part
from tokscore.dataset.resuming import finished_elsewhere
from tokscore.dataset.writing import PartWriter
from tokscore.rendering.executors.work import Outcome
from tokscore.scoring.columns import score_columns
from tokscore.scoring.part_scorer import PartScorer
from tokscore.scoring.planning import ReadJob
from tokscore.scoring.spool import items_of

if TYPE_CHECKING:
    from tokscore.rendering.executors.work import Tell
    from tokscore.rendering.source import TokenSource
    from tokscore.scoring.engines.spec import EngineSpec
    from tokscore.scoring.listed_ids import ListedIds
    from tokscore.scoring.selection import Selection

# The engine is started for sequences of at least so many tokens, and of powers of two above.
LEAST_LENGTH = 2_048


@dataclass(frozen=True)
class ScoreWork:
    """All that scoring a part needs besides the part.

    Attributes:
        source: Yields the conversations.
        out: The dataset.
        manifest: Sealed.
        spec: Engine and model.
        selection: Which tokens get scores.
        max_length: Longer conversations become error rows.
        on_error: What one bad conversation does.
        listed: Every token is scored also at the ids that it lists there.
    """

    source: TokenSource
    out: Path
    manifest: Manifest
    spec: EngineSpec
    selection: Selection
    max_length: int | None
    on_error: OnError
    listed: ListedIds | None = None

    def reading(self) -> ReadJob:
        """What reads its parts."""
        return ReadJob(self.source, self.spec, self.selection, self.max_length, self.on_error, self.listed)

    def start(self, tell: Tell) -> ScoreWorker:
        """Reads, scores and writes parts in this process."""
        return ScoreWorker(self, tell)


class ScoreWorker:
    """One engine, which stays loaded from part to part.

    It is started when the first part with something to score was read, and again where a later part has
    longer sequences than it was started for; lengths are doubled, so that this happens seldom.
    """

    def __init__(self, work: ScoreWork, tell: Tell) -> None:
        self._work, self._tell = work, tell
        self._reading = work.reading()
        self._scorer = PartScorer(work.spec, work.selection, work.on_error, work.listed)
        self._length = 0

    def run(self, part: Part, seen: Callable[[int], None]) -> Outcome:
        """Write one part.

        Raises:
            ConversationError: A conversation cannot be scored and `on_error` is fail.
            EngineError: The engine cannot start, failed on nothing in particular, or broke its contract.
        """
        work, scorer = self._work, self._scorer
        before = scorer.counts()
        found = self._reading.run(part, lambda _n_tokens: seen(0))
        if found.doubt is not None:
            return Outcome({}, found.doubt)
        scorer.plan(found.plan)
        if found.plan.longest > self._length:
            scorer.close()
            self._length = self._length_for(found.plan.longest)
            scorer.start(self._length, found.plan.counts, self._tell)
            scorer.record(work.out, self._tell)
        seen(0)
        manifest = scorer.described(work.manifest)
        with PartWriter(work.out, manifest, part.index, score_columns) as writer:
            n_done = scorer.n_done
            for _ in scorer.score_part(items_of(found.blocks), writer):
                seen(scorer.n_done - n_done)
                n_done = scorer.n_done
            with scorer.writing_clock:
                writer.describe(scorer.part_metadata())
                if not writer.finish():
                    self._tell(finished_elsewhere(part.index))
        now = scorer.counts()
        return Outcome({name: n - getattr(before, name) for name, n in now._asdict().items()})

    def _length_for(self, longest: int) -> int:
        most = self._work.spec.model.max_length
        if self._work.max_length is not None:
            most = min(most, self._work.max_length)
        return max(longest, min(most, max(LEAST_LENGTH, 1 << (longest - 1).bit_length())))

    def close(self) -> None:
        """Free the model."""
        self._scorer.close()
