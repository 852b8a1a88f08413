"""Tokens in the colours of their owners, as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

# Pale enough for black text in light notebooks, and with borders that show in dark ones.
_COLOURS = ("#dbe9ff", "#ffe3c2", "#d8f3d4", "#f6d9f2", "#fff3b0", "#d5f2f2")
_NO_COLOUR = "#ececec"
_SHOWN_TOKENS = 4_000
_SAMPLED = {1: "sampled", 0: "not sampled", -1: "cannot be told whether sampled"}


class _Tokens(Protocol):
    """The attributes of `RenderedTokens` that are shown."""

    @property
    def token_ids(self) -> NDArray[np.int32]: ...
    @property
    def message_indices(self) -> NDArray[np.int32]: ...
    @property
    def sampled_mask(self) -> NDArray[np.int8]: ...
    @property
    def is_content(self) -> NDArray[np.bool_]: ...
    @property
    def source_codes(self) -> NDArray[np.int16]: ...
    @property
    def sources(self) -> tuple[str, ...]: ...
    @property
    def message_roles(self) -> Sequence[str]: ...
    @property
    def text(self) -> str | None: ...
    @property
    def char_stops(self) -> NDArray[np.int64] | None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: slice) -> Self: ...


def token_html(tokens: _Tokens, counted: Callable[[int, str], str]) -> str:
    """A stretch of text for each run of tokens with one owner; sampled ones are underlined.

    Of tokens without text, as datasets have them, the ids are shown. Text is escaped.

    Args:
        tokens: Of one conversation; the first 4,000 are shown.
        counted: Gives a number with its noun; the module that does imports none from here.
    """
    n_sampled = int((tokens.sampled_mask == 1).sum())
    head = (
        f"{counted(len(tokens), 'token')}, {n_sampled:,} sampled, "
        f"{counted(len(tokens.message_roles), 'message')}"
    )
    cut = f"<div>… and {len(tokens) - _SHOWN_TOKENS:,} more</div>" if len(tokens) > _SHOWN_TOKENS else ""
    body = "".join(_runs(tokens[:_SHOWN_TOKENS]))
    return (
        f'<div style="font-family:monospace"><div>{head}</div>'
        f'<div style="white-space:pre-wrap;color:#111;line-height:1.7">{body}</div>{cut}</div>'
    )


def _runs(tokens: _Tokens) -> Iterator[str]:
    columns = tokens.message_indices, tokens.source_codes, tokens.sampled_mask, tokens.is_content
    changes = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(tokens)] if len(tokens) else []
    for start, stop in pairwise(bounds):
        message = int(tokens.message_indices[start])
        owner = "no message" if message < 0 else f"message {message}, {tokens.message_roles[message]}"
        sampled = int(tokens.sampled_mask[start])
        source = tokens.sources[tokens.source_codes[start]]
        title = f"{owner}, {source}, {_SAMPLED[sampled]}, tokens {start} to {stop - 1}"
        colour = _NO_COLOUR if message < 0 else _COLOURS[message % len(_COLOURS)]
        line = "underline" if sampled == 1 else "none"
        weight = "bold" if tokens.is_content[start] else "normal"
        style = f"background:{colour};text-decoration:{line};font-weight:{weight}"
        yield f'<span title="{escape(title)}" style="{style}">{escape(_text(tokens, start, stop))}</span>'


def _text(tokens: _Tokens, start: int, stop: int) -> str:
    if tokens.text is None or tokens.char_stops is None:
        return "".join(f"{token} " for token in tokens.token_ids[start:stop].tolist())
    # Tokens that share a character have all of it each.
    first = tokens.char_stops[start - 1] if start else 0
    return tokens.text[first : max(first, tokens.char_stops[stop - 1])]
