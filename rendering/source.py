"""Where tokens come from: conversation files rendered on the way, or a token dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tokscore.rendering.manifest import InputFile, Part, Setting, TokenizerIdentity
from tokscore.rendering.rendered import FailedConversation, RenderedConversation


class TokenSource(Protocol):
    """Planned input that yields attributed tokens part by part."""

    @property
    def inputs(self) -> Sequence[InputFile]:
        """The files behind it."""
        ...

    @property
    def parts(self) -> Sequence[Part]:
        """The plan, in order."""
        ...

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """What made the ids."""
        ...

    @property
    def settings(self) -> dict[str, Setting]:
        """Rendering settings that change ids or attribution."""
        ...

    def read(self, part: Part) -> Iterator[RenderedConversation | FailedConversation]:
        """The conversations of one part in input order; one that cannot be used comes as a failure."""
        ...
