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

from tokscore.dataset.stores.path import is_store
from tokscore.dataset.tokens import FailedConversation, RenderedConversation

Item = RenderedConversation | FailedConversation

# Conversations are compressed together until they have this many tokens.
BLOCK_TOKENS = 65_536
_CODEC = "lz4"


class Block(NamedTuple):
    """Some conversations, compressed.

    Attributes:
        stored: lz4.
        n_bytes: Of what is in it.
    """

    stored: bytes
    n_bytes: int


class _Place(NamedTuple):
    start: int
    n_stored: int
    n_bytes: int


def blocks_of(items: Iterable[Item]) -> Iterator[Block]:
    """Conversations in compressed blocks: a few bytes a token, what the writer needs and not the text."""
    waiting: list[Item] = []
    n_tokens = 0
    for item in items:
        waiting.append(_without_text(item))
        n_tokens += len(item.tokens) if isinstance(item, RenderedConversation) else 1
        if n_tokens >= BLOCK_TOKENS:
            yield _block(waiting)
            waiting, n_tokens = [], 0
    if waiting:
        yield _block(waiting)


def _block(items: list[Item]) -> Block:
    plain = pickle.dumps(items, protocol=5)
    return Block(pa.compress(plain, codec=_CODEC, asbytes=True), len(plain))


class Spool:
    """A file without a name, which the system deletes when the process ends in whatever way."""

    def __init__(self, folder: Path) -> None:
        """Open it on the disk of `folder`; where that is in a store, in the temporary directory."""
        place = None if is_store(folder) else folder
        self._file = tempfile.TemporaryFile(dir=place, prefix=".spool.", suffix=".tmp")  # noqa: SIM115
        self._blocks: dict[int, list[_Place]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, part: int, blocks: Iterable[Block]) -> None:
        """Keep the conversations of one part."""
        places = self._blocks.setdefault(part, [])
        for block in blocks:
            places.append(_Place(self._file.tell(), len(block.stored), block.n_bytes))
            self._file.write(block.stored)

    def clear(self) -> None:
        """Forget all conversations."""
        self._blocks.clear()
        self._file.seek(0)
        self._file.truncate()

    def read(self, part: int) -> Iterator[Item]:
        """The conversations of one part, in order; not while another is written."""
        for place in self._blocks[part]:
            self._file.seek(place.start)
            yield from items_of([Block(self._file.read(place.n_stored), place.n_bytes)])


def items_of(blocks: Iterable[Block]) -> Iterator[Item]:
    """The conversations in blocks that a process of this run made."""
    for block in blocks:
        yield from pickle.loads(  # noqa: S301
            pa.decompress(block.stored, decompressed_size=block.n_bytes, codec=_CODEC, asbytes=True)
        )


def _without_text(item: Item) -> Item:
    if isinstance(item, FailedConversation):
        return item
    return item._replace(tokens=replace(item.tokens, text=None, char_starts=None, char_stops=None))
