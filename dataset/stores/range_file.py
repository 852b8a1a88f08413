"""A file of a store of which only the bytes that are read are fetched."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tokscore.dataset.stores.calls import persistently

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Footers of Parquet files fit into their last bytes, and small files as a whole.
TAIL_BYTES = 2**16

# Ends of files that were fetched together, by URL: their size, and the bytes.
FETCHED: dict[str, tuple[int, bytes]] = {}


class RangeFile(io.RawIOBase):
    """A file open for reading; seeking fetches nothing."""

    def __init__(self, store: Any, key: str, url: str, size: Callable[[], int]) -> None:
        """Look for the file.

        Args:
            store: File system of fsspec.
            key: Of the file there.
            url: Of the file.
            size: Asks the store for its bytes, where that is not known.

        Raises:
            OSError: It is not there, or the store cannot be reached.
        """
        super().__init__()
        self._store, self._key, self._url = store, key, url
        known = FETCHED.get(url)
        self._size = size() if known is None else known[0]
        self._tail: bytes | None = None if known is None else known[1]
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Have the next read begin elsewhere."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill a buffer with what comes next, as far as there is some.

        Raises:
            OSError: The store cannot be reached.
        """
        with memoryview(buffer).cast("B") as view:
            content = self._range(self._at, min(self._at + len(view), self._size))
            view[: len(content)] = content
        self._at += len(content)
        return len(content)

    def _range(self, start: int, stop: int) -> bytes:
        if start >= stop:
            return b""
        tail_start = max(0, self._size - TAIL_BYTES)
        if start < tail_start:
            return self._fetch(start, stop)
        if self._tail is None:
            self._tail = self._fetch(tail_start, self._size)
        return self._tail[start - tail_start : stop - tail_start]

    def _fetch(self, start: int, stop: int) -> bytes:
        def fetch() -> bytes:
            content: bytes = self._store.cat_file(self._key, start=start, end=stop)
            if len(content) != stop - start:
                raise ConnectionError(f"{len(content)} of {stop - start} bytes came")
            return content

        return persistently(fetch, self._url)
