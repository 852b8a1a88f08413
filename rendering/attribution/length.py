"""Conversations that are longer than allowed: refused, or cut with their attribution."""

from __future__ import annotations

from typing import NamedTuple

from tokscore.dataset.errors import ConversationError, counted
from tokscore.dataset.tokens import RenderedTokens
from tokscore.rendering.attribution.settings import RenderSettings, Truncate


class LengthLimit(NamedTuple):
    """Most tokens a conversation may have, and what happens to longer ones."""

    max_tokens: int
    truncate: Truncate = Truncate.ERROR

    @classmethod
    def of(cls, settings: RenderSettings) -> LengthLimit | None:
        """The limit that the settings ask for, if any."""
        if settings.max_tokens is None:
            return None
        return cls(settings.max_tokens, settings.truncate or Truncate.ERROR)

    def kept(self, n_tokens: int) -> slice:
        """The tokens that stay of so many."""
        if n_tokens <= self.max_tokens or self.truncate is Truncate.ERROR:
            return slice(0, n_tokens)
        if self.truncate is Truncate.LEFT:
            return slice(n_tokens - self.max_tokens, n_tokens)
        return slice(0, self.max_tokens)

    def apply(self, tokens: RenderedTokens) -> tuple[RenderedTokens, str | None]:
        """The tokens that are kept, with their owners, and the status of a conversation that was cut.

        Raises:
            ConversationError: It is too long, and `truncate` is error.
        """
        n = len(tokens)
        if n <= self.max_tokens:
            return tokens, None
        if self.truncate is Truncate.ERROR:
            raise ConversationError(
                f"has {counted(n, 'token')}; `max_tokens` allows {self.max_tokens:,}.",
                hint="Keep its first or last tokens with `truncate='right'` or `truncate='left'`.",
            )
        return tokens[self.kept(n)], f"truncated_{self.truncate.value}"
