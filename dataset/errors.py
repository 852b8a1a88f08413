"""Failures that a user can act on. Each reaches the terminal as a message without a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum

_OR_SKIP = re.compile(r", or [^,]* with `on_error='skip'`")


class ExitCode(IntEnum):
    """Process exit codes of every command.

    Attributes:
        DONE: All is done.
        FAILED: A check did not hold, or something else failed.
        WRONG_USAGE: Options or arguments that do not exist, or do not go together.
        BAD_INPUT: An input, model directory or dataset that cannot be used as it is.
        ENGINE: A scoring engine that is missing, cannot start, or broke.
        INTERRUPTED: Ctrl-C; finished parts are kept.
        TERMINATED: SIGTERM; finished parts are kept.
    """

    DONE = 0
    FAILED = 1
    WRONG_USAGE = 2
    BAD_INPUT = 3
    ENGINE = 4
    INTERRUPTED = 130
    TERMINATED = 143


class TokscoreError(Exception):
    """An expected failure; its text says where, what was found, what was expected and what to do next."""

    exit_code = ExitCode.FAILED


class UsageError(TokscoreError):
    """Options or paths that do not go together."""

    exit_code = ExitCode.WRONG_USAGE


class InputError(TokscoreError):
    """An input file, model directory or dataset that cannot be used as it is."""

    exit_code = ExitCode.BAD_INPUT


class OtherTokenizerError(InputError):
    """A model has another tokenizer than the one that made the ids of a dataset.

    Attributes:
        dataset: Where it is.
        made_by: Name of its tokenizer.
        model: Name of the model.
        difference: An id, and what it is in both.
    """

    def __init__(self, dataset: str, made_by: str, model: str, difference: str) -> None:
        super().__init__(dataset, made_by, model, difference)
        self.dataset, self.made_by, self.model, self.difference = dataset, made_by, model, difference

    def __str__(self) -> str:
        return (
            f"{self.dataset} was rendered with the tokenizer of {self.made_by}, and {self.model} has "
            f"another: {self.difference}.\n"
            f"Give the conversations instead, and they are rendered with {self.model}."
        )


class EngineError(TokscoreError):
    """A scoring engine that is missing, cannot start, or broke its contract."""

    exit_code = ExitCode.ENGINE


class ConversationError(InputError):
    """One conversation that cannot be used; `on_error='skip'` lists it and goes on.

    Attributes:
        reason: What was found and what was expected, without the place.
        path: JSON path inside the record, such as `$.messages[2].role`.
        hint: What the user can do next.
        source: `file:line` of the record, empty until known.
    """

    def __init__(self, reason: str, *, path: str = "$", hint: str = "", source: str = "") -> None:
        self.reason = reason
        self.path = path
        self.hint = hint
        self.source = source
        super().__init__(reason)

    def at(self, source: str) -> ConversationError:
        """The same error with its `file:line`."""
        return ConversationError(self.reason, path=self.path, hint=self.hint, source=source)

    def skipped(self) -> ConversationError:
        """The same error where it is skipped already, or cannot be: its hint does not say to skip it."""
        return ConversationError(
            self.reason, path=self.path, hint=without_skip(self.hint), source=self.source
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.reason, self.path, self.hint, self.source))

    def __str__(self) -> str:
        place = f"{self.source}: " if self.source else ""
        where = "" if self.path == "$" else f"{foreign(self.path)} "
        hint = f"\n{self.hint}" if self.hint else ""
        return f"{place}{where}{self.reason}{hint}"


class DifferenceError(ConversationError):
    """A conversation that transformers renders otherwise.

    Attributes:
        character: First character of the text that differs, None where the texts are equal.
        token: First token that differs, None where the texts differ already.
    """

    character: int | None = None
    token: int | None = None


def _rebuild(
    cls: type[ConversationError], reason: str, path: str, hint: str, source: str
) -> ConversationError:
    return cls(reason, path=path, hint=hint, source=source)


def or_skip(first: str, skip: str) -> str:
    """The hint to do something, or to skip what cannot be used: `skip` says what that means."""
    return f"{first}, or {skip} with `on_error='skip'`."


def without_skip(hint: str) -> str:
    """The hint without what `or_skip` added."""
    return _OR_SKIP.sub("", hint)


def foreign(text: object) -> str:
    """Text that others wrote, for a message: only the library names arguments in backticks."""
    return str(text).replace("`", "'")


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """The number with its noun: 1 message, 2 messages.

    Args:
        n: How many.
        noun: Of one.
        plural: Of several; with an s by default.
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {plural or noun + 's'}"


def agreeing(n: int, one: str, several: str) -> str:
    """The word that goes with so many: 1 part is, 2 parts are."""
    return one if n == 1 else several


def none_could(n: int, noun: str, be: str, first: object) -> str:
    """The message for several of which none could be used.

    Args:
        n: How many there are.
        noun: Of one.
        be: What none could, such as be rendered.
        first: What is wrong with the first.
    """
    if n == 1:
        return f"the only {noun} could not {be}: {first}"
    return f"none of the {counted(n, noun)} could {be}. The first: {first}"


def is_about_code(error: Exception) -> bool:
    """Whether transformers or vLLM refused to run code of a model's folder."""
    return "trust_remote_code" in str(error)


def needs_code(name: str) -> str:
    """The message for a model that needs code of its own."""
    return (
        f"{name} needs Python code that comes with it, which is not run.\n"
        "Read that code, and give `trust_remote_code=True` if you trust it."
    )


def expected_name(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: those that are close, and all there are."""
    from difflib import get_close_matches

    names = list(known)
    close = get_close_matches(name, names, n=3)
    listed = f"xpected one of {', '.join(names)}."
    return f"did you mean {' or '.join(close)}? E{listed}" if close else f"e{listed}"
