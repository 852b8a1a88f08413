"""The settings of rendering."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict

from tokscore.dataset.choices import MessageForm, TokenizerLibrary
from tokscore.dataset.errors import UsageError
from tokscore.dataset.settings import Settings, setting


class Truncate(StrEnum):
    """What happens to a conversation with more tokens than allowed."""

    ERROR = "error"  # it becomes an error row
    LEFT = "left"  # its last tokens are kept
    RIGHT = "right"  # its first tokens are kept


class Verify(StrEnum):
    """How much is compared with transformers' own rendering."""

    SAMPLE = "sample"  # the text of all, the ids of the first ten and of every hundredth
    FULL = "full"  # text and ids of all
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderSettings(Settings):
    """All that rendering is told beside the conversations and the model."""

    template: str | os.PathLike[str] | None = setting(
        None, "Chat template to use instead of the model's own.", metavar="FILE"
    )
    template_kwargs: Mapping[str, Any] = setting(  # Any: JSON values
        {}, "Variables for the template: '{\"enable_thinking\": false}'.", metavar="JSON"
    )
    tools: Sequence[Mapping[str, Any]] | str | os.PathLike[str] | None = setting(  # Any: JSON values
        None, "JSON list of tool definitions for records that carry none.", metavar="FILE"
    )
    add_generation_prompt: bool = setting(False, "End each conversation with the opener of the next answer.")
    max_tokens: int | None = setting(None, "Most tokens a conversation may have.", metavar="N", at_least=1)
    truncate: Truncate | None = setting(
        None,
        "Longer conversations: an error row each, or keep the last (left) or first (right) N tokens.",
        shown_default="error",
    )
    verify: Verify = setting(
        Verify.SAMPLE,
        "Compare with transformers: all texts and a sample of ids, all ids (full), or nothing (off).",
    )
    tokenizer: TokenizerLibrary = setting(
        TokenizerLibrary.AUTO,
        "Library that makes the ids, which are the same with each: fastokens where it is proven equal and "
        "the input is long enough to save time (auto), always (fastokens), or never (tokenizers).",
    )
    template_timeout: float = setting(
        30.0, "Processor seconds the template may take for one conversation.", metavar="S", at_least=0
    )
    template_characters: int = setting(
        2**26,
        "Characters the template may build for one conversation, beyond 50 times its length.",
        metavar="N",
        at_least=1,
    )
    revision: str | None = setting(None, "Branch, tag or commit on the hub.", metavar="REV")
    trust_remote_code: bool = setting(
        False, "Run Python code that comes with the model. It can do whatever you can: read it first."
    )
    template_time: str | None = setting(
        None,
        "Date, and time, that templates which print it take for now; the clock's if left out.",
        metavar="ISO",
    )
    input_format: str | None = setting(
        None,
        "Format of the input, as listed by tokscore formats; found by looking if left out.",
        metavar="NAME",
    )
    map: str | os.PathLike[str] | Mapping[str, Any] | None = setting(  # Any: JSON values
        None,
        "JSON file that says where a record of no known format has its messages, ids and name.",
        metavar="FILE",
    )
    messages: MessageForm = setting(
        MessageForm.AUTO,
        "Show messages to the template as they are (as-is), as servers do (server: arguments parsed, "
        'null content "", ...), or as servers do where the template refuses them or a server recorded them.',
    )

    chunk: int | None = setting(
        None, "Cut plain text into windows of so many tokens, each a branch.", metavar="N", at_least=2
    )
    stride: int | None = setting(
        None,
        "Tokens from one window to the next; what two of them share counts in the first.",
        metavar="S",
        at_least=1,
        shown_default="that of --chunk",
    )
    context: int | None = setting(
        None,
        "First tokens of every window that do not count; a last window that is not full is left out.",
        metavar="C",
        at_least=0,
    )

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        self._check_chunks()
        if self.truncate is not None and self.max_tokens is None:
            raise UsageError("`truncate` needs a length: give `max_tokens=N` as well.")

    def _check_chunks(self) -> None:
        size, stride, context = self.chunk, self.stride, self.context
        for name in ("stride", "context"):
            if size is None and getattr(self, name) is not None:
                raise UsageError(f"`{name}` is about chunks of text: give `chunk=N` as well.")
        if size is not None and stride is not None and stride > size:
            raise UsageError(
                f"`stride` is {stride}, and `chunk` {size}; expected at most as much, or tokens between two "
                "chunks are in neither."
            )
        if size is not None and context is not None and context >= size:
            raise UsageError(
                f"`context` is {context}, and `chunk` {size}; expected less, or no token counts."
            )

    def now(self) -> dt.datetime:
        """What templates that print the time take it to be; the time of this call by default.

        Raises:
            UsageError: The template time is no date.
        """
        if self.template_time is None:
            return dt.datetime.now().replace(microsecond=0)
        try:
            return dt.datetime.fromisoformat(self.template_time)
        except ValueError as error:
            raise UsageError(
                f"`template_time` is {self.template_time!r}; expected a date such as 2026-01-31."
            ) from error


class RenderKeywords(TypedDict, total=False):
    """The same as keyword arguments, for type checkers."""

    template: str | os.PathLike[str] | None
    template_kwargs: Mapping[str, Any] | None  # Any: JSON values
    tools: Sequence[Mapping[str, Any]] | str | os.PathLike[str] | None  # Any: JSON values
    add_generation_prompt: bool
    max_tokens: int | None
    truncate: str | None
    verify: str
    tokenizer: str
    template_timeout: float
    template_characters: int
    revision: str | None
    trust_remote_code: bool
    template_time: str | None
    input_format: str | None
    map: str | os.PathLike[str] | Mapping[str, Any] | None  # Any: JSON values
    messages: str
    chunk: int | None
    stride: int | None
    context: int | None
