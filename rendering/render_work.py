"""Rendering as work that an executor hands to its processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokscore.dataset.manifest import Manifest, Part
from tokscore.dataset.resuming import finished_elsewhere
from tokscore.rendering.executors.work import Outcome
from tokscore.rendering.workers import PartJob

if TYPE_CHECKING:
    from tokscore.rendering.executors.work import Tell


@dataclass(frozen=True)
class RenderWork:
    """All that rendering a part needs besides the part.

    Attributes:
        job: Writes one part.
    """

    job: PartJob

    @property
    def out(self) -> Path:
        """The dataset."""
        return self.job.out

    @property
    def manifest(self) -> Manifest:
        """Sealed."""
        return self.job.manifest

    def start(self, tell: Tell) -> RenderWorker:
        """Renders parts in this process."""
        return RenderWorker(self.job, tell)


@dataclass(frozen=True)
class RenderWorker:
    """Renders one part after the other."""

    job: PartJob
    tell: Tell

    def run(self, part: Part, seen: Callable[[int], None]) -> Outcome:
        """Write one part.

        Raises:
            ConversationError: A conversation cannot be rendered and `on_error` is fail.
        """
        found = self.job.run(part, seen)
        if found.elsewhere is not None:
            self.tell(finished_elsewhere(part.index))
        counts = {
            "n_conversations": found.n_conversations,
            "n_tokens": found.n_tokens,
            "n_failed": found.n_failed,
        }
        return Outcome(counts, found.doubt)

    def close(self) -> None:
        """Nothing is held."""
