"""Limits on one rendering, so that a hostile chat template ends as one error and takes nothing down.

Templates can build gigabytes in one expression and loop for ever, and no signal reaches a worker thread or C
code. So whatever can grow is counted while it is made and guessed before it is made, and every loop, call,
filter, test and comparison asks how much processor time is gone: now and then, and whenever the texts that it
went through are long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter, thread_time
from typing import NamedTuple

from tokscore.dataset.errors import ConversationError

STEPS_BETWEEN_CHECKS = 256
CHARACTERS_BETWEEN_CHECKS = 2**20
# A conversation may cost this many times its own length on top of the limit.
FACTOR = 50
ITEM_CHARACTERS = 8  # what one reference in a list counts for
PIECE_CHARACTERS = 48  # what one small string object counts for
# Printed text is tokenized, which costs far more than making it.
PRINTED_SHARE = 128


class TemplateLimits(NamedTuple):
    """The most that rendering one conversation may take.

    Attributes:
        cpu_s: Seconds of processor time.
        n_characters: Characters held on the way, beyond fifty times those of the conversation; one in
            `PRINTED_SHARE` of them may be printed.
    """

    cpu_s: float = 30.0
    n_characters: int = 2**26


DEFAULT_LIMITS = TemplateLimits()


class TemplateLimitError(ConversationError):
    """The template went beyond a limit."""


class TemplateUsage:
    """Characters and processor time that one rendering has used, checked against its limits.

    Attributes:
        n_characters: Characters made so far; large strings give theirs back when they are gone.
        next_look: So many of them call for a `look`.
    """

    __slots__ = (
        "_allowed",
        "_deadline",
        "_limits",
        "_n_read",
        "_n_steps",
        "_started",
        "n_characters",
        "next_look",
    )

    def __init__(self, limits: TemplateLimits) -> None:
        self._limits = limits
        self._allowed = self.next_look = float("inf")
        self._started, self._deadline = perf_counter(), 0.0
        self._n_steps = self._n_read = self.n_characters = 0

    def begin(self) -> None:
        """All made so far is the conversation; count from here."""
        self._allowed = self._limits.n_characters + FACTOR * self.n_characters
        self.check(0)
        self.next_look = min(self._allowed, self.n_characters + CHARACTERS_BETWEEN_CHECKS)

    def step(self) -> None:
        """Count one iteration, call or filter."""
        self._n_steps += 1
        if not self._n_steps % STEPS_BETWEEN_CHECKS:
            self._check_time()

    def read(self, n: int) -> None:
        """Count `n` characters that were gone through without making any."""
        self._n_read += n
        if self._n_read > CHARACTERS_BETWEEN_CHECKS:
            self._n_read = 0
            self._check_time()

    def check_printed(self, n: int) -> None:
        """Refuse `n` characters as the text of the conversation where they are too many."""
        limit = self._limits.n_characters // PRINTED_SHARE
        if n > self._allowed - self._limits.n_characters + limit:
            raise TemplateLimitError(
                f"makes the chat template print {n:,} characters; "
                f"expected at most {limit:,} and {FACTOR} times those of the conversation.",
                hint=f"Allow more with `template_characters=N`: one in {PRINTED_SHARE} may be printed.",
            )

    def take(self, n: int) -> None:
        """Count `n` characters that were made."""
        self.n_characters += n
        if self.n_characters > self.next_look:
            self.look()

    def look(self) -> None:
        """Ask how much is used, and when to ask again."""
        self.check(0)
        self._check_time()
        self.next_look = min(self._allowed, self.n_characters + CHARACTERS_BETWEEN_CHECKS)

    def check(self, n: int) -> None:
        """Refuse to make `n` characters where that would go beyond the limit."""
        if self.n_characters + n > self._allowed:
            raise TemplateLimitError(
                f"makes the chat template build more than {self._limits.n_characters:,} characters.",
                hint="Allow more with `template_characters=N`.",
            )

    def _check_time(self) -> None:
        """Look at the clock of the processor, which takes a system call, only where the other one is late."""
        if not self._deadline:
            self._deadline = thread_time() + self._limits.cpu_s
        elif perf_counter() - self._started > self._limits.cpu_s and thread_time() > self._deadline:
            raise TemplateLimitError(
                f"keeps the chat template busy for more than {self._limits.cpu_s:g} s; it may never end.",
                hint="Allow more with `template_timeout=S`.",
            )


_USAGE: ContextVar[TemplateUsage | None] = ContextVar("usage", default=None)
current_usage = _USAGE.get


@contextmanager
def limited(limits: TemplateLimits) -> Iterator[TemplateUsage]:
    """Apply `limits` to all templates that run inside, in this thread."""
    usage = TemplateUsage(limits)
    token = _USAGE.set(usage)
    try:
        yield usage
    finally:
        _USAGE.reset(token)


def step() -> None:
    """Count one iteration, call or filter of the running template."""
    if (usage := _USAGE.get()) is not None:
        usage.step()


def take(n: int) -> None:
    """Count `n` characters that the running template made."""
    if (usage := _USAGE.get()) is not None:
        usage.take(n)


def read(*values: object) -> None:
    """Count the characters of the texts that an operation of the running template goes through."""
    n = 0
    for value in values:
        if isinstance(value, (str, bytes)):
            n += len(value)
    if n > PIECE_CHARACTERS and (usage := _USAGE.get()) is not None:
        usage.read(n)


def go_through(n_items: int) -> None:
    """Count items that an operation of the running template compares with another value."""
    if (usage := _USAGE.get()) is not None:
        usage.read(ITEM_CHARACTERS * n_items)


def check(n: int) -> None:
    """Refuse to make `n` characters where that goes beyond the limit of the running template."""
    if (usage := _USAGE.get()) is not None:
        usage.check(n)


def take_result(value: object) -> None:
    """Count what a call or filter returned; tracked strings count themselves."""
    if type(value) in (str, bytes):
        take(len(value))  # type: ignore[arg-type]
    elif isinstance(value, (list, tuple, dict, set)):
        take(ITEM_CHARACTERS * len(value))


def weigh(value: object) -> int:
    """About how many characters `str(value)` has; a list that holds itself often is counted as often.

    Raises:
        TemplateLimitError: More than the running template may build.
    """
    total, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (str, bytes)):
            total += len(item)
        elif isinstance(item, Mapping):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, Collection) and not isinstance(item, range):
            waiting.extend(item)
        step()
        total += 2
        check(total)
    return total
