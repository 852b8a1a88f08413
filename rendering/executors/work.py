"""The work of a run as processes are given it, and what comes back of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tokscore.dataset.errors import InputError

if TYPE_CHECKING:
    from tokscore.dataset.manifest import Manifest, Part

# Called with a line for the user.
Tell = Callable[[str], None]
# Called with parts done and tokens done, by all processes.
Progress = Callable[[int, int], None]


class Outcome(NamedTuple):
    """The outcome of one part.

    Attributes:
        counts: Numbers to be added up, by name; `n_tokens` is one of them.
        doubt: Why fastokens was given up meanwhile, so that the ids it made cannot be trusted.
    """

    counts: Mapping[str, float]
    doubt: str | None = None


class Worker(Protocol):
    """What a process does with one part after the other."""

    def run(self, part: Part, seen: Callable[[int], None]) -> Outcome:
        """Write one part.

        Args:
            part: Of the manifest.
            seen: Called with the number of tokens done since the last call; may raise.

        Raises:
            TokscoreError: The run has to end.
        """
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Work(Protocol):
    """All that a process needs besides the parts; picklable."""

    @property
    def out(self) -> Path:
        """The dataset."""
        ...

    @property
    def manifest(self) -> Manifest:
        """Sealed."""
        ...

    def start(self, tell: Tell) -> Worker:
        """What does it in this process."""
        ...


@dataclass
class Totals:
    """What all processes have done.

    Attributes:
        n_parts: Parts put in place.
        counts: Sums by name.
        n_replicas: Processes that worked side by side.
        doubt: Why the ids that fastokens made cannot be trusted.
    """

    n_parts: int = 0
    counts: dict[str, float] = field(default_factory=dict)
    n_replicas: int = 1
    doubt: str | None = None

    def add(self, outcome: Outcome) -> None:
        """Count one more part."""
        self.n_parts += 1
        for name, number in outcome.counts.items():
            self.counts[name] = self.counts.get(name, 0) + number
        self.doubt = self.doubt or outcome.doubt

    def count(self, name: str) -> int:
        """A sum that is a number of things."""
        return int(self.counts.get(name, 0))


def largest_first(parts: Sequence[Part], sizes: Mapping[int, int]) -> list[int]:
    """Indices of the parts, so that what takes longest is begun first; equal ones in order."""
    return [part.index for part in sorted(parts, key=lambda part: (-sizes[part.index], part.index))]


def doubted(doubt: str) -> InputError:
    """The end of a run that nobody can begin anew in place."""
    return InputError(
        f"fastokens made other ids than tokenizers: {doubt}. The parts that it made were removed; run the "
        "command again with --tokenizer tokenizers."
    )
