"""Where the windows of a text lie, and which of their tokens count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tokscore.rendering.attribution.settings import RenderSettings


class Chunk(NamedTuple):
    """One window of a text.

    Attributes:
        start: Its first token in the text.
        stop: One past its last.
        n_context: Its first tokens, which are context alone; the others count.
    """

    start: int
    stop: int
    n_context: int


class Chunking(NamedTuple):
    """How a text is cut into windows of tokens.

    Attributes:
        size: Tokens of a window.
        stride: Tokens from the start of a window to that of the next.
        context: First tokens of every window that do not count; None: not asked for.
    """

    size: int
    stride: int
    context: int | None

    @classmethod
    def of(cls, settings: RenderSettings) -> Chunking | None:
        """What the settings ask for, None where a text stays whole."""
        if settings.chunk is None:
            return None
        return cls(settings.chunk, settings.stride or settings.chunk, settings.context)

    def n_left_out(self, n_tokens: int) -> int:
        """Tokens at the end of a text that are in no window: those that fill none, where there is context."""
        if self.context is None:
            return 0
        return n_tokens if n_tokens < self.size else (n_tokens - self.size) % self.stride

    def chunks(self, n_tokens: int) -> Iterator[Chunk]:
        """The windows of a text, in order.

        Every token but those left out is in one. With a stride below the size, all but the last `stride`
        tokens of a window behind the first are context: they counted in the one before.
        """
        overlap = self.size - self.stride
        end = n_tokens - self.n_left_out(n_tokens)
        start = stop = 0
        while stop < end:
            stop = min(start + self.size, end)
            yield Chunk(start, stop, max(self.context or 0, overlap if start else 0))
            start += self.stride
