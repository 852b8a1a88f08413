"""Rendered conversations, kept on disk between planning and scoring."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa

from tokscore.rendering.rendered import FailedConversation, RenderedConversation

Item = RenderedConversation | FailedConversation

# Conversations are compressed together until they have this many tokens.
BLOCK_TOKENS = 65_536
_CODEC = "lz4"


class _Block(NamedTuple):
    start: int
    n_stored: int
    n_bytes: int


class Spool:
    """A file without a name, which the system deletes when the process ends in whatever way.

    It takes a few bytes a token: what the writer needs and not the text.
    """

    def __init__(self, folder: Path) -> None:
        """Open it on the disk of `folder`."""
        self._file = tempfile.TemporaryFile(dir=folder, prefix=".spool.", suffix=".tmp")  # noqa: SIM115
        self._blocks: dict[int, list[_Block]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, part: int, items: Iterable[Item]) -> None:
        """Keep the conversations of one part."""
        blocks = self._blocks.setdefault(part, [])
        waiting: list[Item] = []
        n_tokens = 0
        for item in items:
            waiting.append(_without_text(item))
            n_tokens += len(item.tokens) if isinstance(item, RenderedConversation) else 1
            if n_tokens >= BLOCK_TOKENS:
                blocks.append(self._append(waiting))
                waiting, n_tokens = [], 0
        if waiting:
            blocks.append(self._append(waiting))

    def _append(self, items: list[Item]) -> _Block:
        plain = pickle.dumps(items, protocol=5)
        stored = pa.compress(plain, codec=_CODEC, asbytes=True)
        start = self._file.tell()
        self._file.write(stored)
        return _Block(start, len(stored), len(plain))

    def read(self, part: int) -> Iterator[Item]:
        """The conversations of one part, in order; not while another is written."""
        for block in self._blocks[part]:
            self._file.seek(block.start)
            stored = self._file.read(block.n_stored)
            # Only this process wrote it.
            yield from pickle.loads(  # noqa: S301
                pa.decompress(stored, decompressed_size=block.n_bytes, codec=_CODEC, asbytes=True)
            )


def _without_text(item: Item) -> Item:
    if isinstance(item, FailedConversation):
        return item
    return item._replace(tokens=replace(item.tokens, text=None, char_starts=None, char_stops=None))
