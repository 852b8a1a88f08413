"""Paths in stores, with the methods of a path that datasets use."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PosixPath
from typing import IO, Any

from tokscore.dataset.stores.calls import filesystem, persistently
from tokscore.dataset.stores.range_file import RangeFile
from tokscore.dataset.stores.urls import WEB, shown, split_url

_BUFFER_BYTES = 2**16
_CHUNK_BYTES = 2**22


class StorePath(PosixPath):
    """A file or folder of a store, `s3://bucket/key`.

    As text it has no query. A folder is there while a file lies in it.
    """

    @property
    def url(self) -> str:
        """The whole URL."""
        found = split_url("/".join(self.parts))
        assert found is not None
        return f"{found.scheme}://{found.rest}"

    def __str__(self) -> str:
        return shown(self.url)

    @property
    def name(self) -> str:
        """Of the file, without the query of a web server."""
        name = super().name
        return name.partition("?")[0] if self.scheme in WEB else name

    @property
    def scheme(self) -> str:
        """Such as s3."""
        return self.parts[0].removesuffix(":")

    @property
    def store(self) -> Any:  # Any: fsspec has no types
        """The file system of fsspec."""
        return filesystem(self.scheme)

    @property
    def key(self) -> str:
        """The path as the file system has it."""
        found: str = self.store._strip_protocol(self.url)
        return found

    def size(self) -> int:
        """Bytes of the file, as the last listing of its folder says.

        Raises:
            OSError: It is not there, or the store cannot be reached.
        """
        found = persistently(lambda: self.store.info(self.key), self.url)
        if found["type"] != "file" or found["size"] is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file in the store", str(self))
        return int(found["size"])

    def is_file(self, **_unused: bool) -> bool:
        """Whether it is there, as the last listing of its folder says."""
        with suppress(FileNotFoundError):
            self.size()
            return True
        return False

    def is_dir(self, **_unused: bool) -> bool:
        """Whether a file lies in it, likewise."""
        with suppress(FileNotFoundError):
            return bool(persistently(lambda: self.store.info(self.key), self.url)["type"] == "directory")
        return False

    def exists(self, **_unused: bool) -> bool:
        """Whether a file is there, or a folder, as it is now."""
        self._forget()
        return self.is_file() or self.is_dir()

    def stat(self, **_unused: bool) -> os.stat_result:
        """Of its fields only `st_size`."""
        return os.stat_result((0, 0, 0, 0, 0, 0, self.size(), 0, 0, 0))

    def iterdir(self) -> Iterator[StorePath]:  # type: ignore[override]  # this class
        """All that lies in the folder now, from one listing.

        Raises:
            FileNotFoundError: Nothing does.
        """

        def names_now() -> list[str]:
            self.store.invalidate_cache(self.key)
            found: list[str] = self.store.ls(self.key, detail=False)
            return found

        found = persistently(names_now, self.url)
        names = sorted({name.rstrip("/").rpartition("/")[2] for name in found} - {""})
        return (self / name for name in names)

    def open(self, mode: str = "r", *_unused: Any, **_options: Any) -> IO[Any]:  # type: ignore[override]
        """The file for reading, as bytes or as UTF-8."""
        if mode not in ("r", "rb"):
            raise OSError(errno.EROFS, "files of a store are written as a whole", str(self))
        raw = io.BufferedReader(self.ranges(), _BUFFER_BYTES)
        return raw if mode == "rb" else io.TextIOWrapper(raw, encoding="utf-8")

    def ranges(self) -> RangeFile:
        """The file for reading, without a buffer: just the bytes that are asked for are fetched.

        Raises:
            OSError: It is not there, or the store cannot be reached.
        """
        return RangeFile(self.store, self.key, self.url, self.size)

    def chunks(self) -> Iterator[bytes]:
        """All of the file, in pieces; one that does not come is asked for again.

        Raises:
            OSError: It is not there, was cut, or the store cannot be reached.
        """
        at, opened = 0, None

        def more() -> bytes:
            nonlocal opened
            try:
                if opened is None:
                    opened = self.store.open(self.key, "rb")
                    if at:
                        opened.seek(at)
                found: bytes = opened.read(_CHUNK_BYTES)
            except BaseException:
                opened = None
                raise
            return found

        while chunk := persistently(more, self.url):
            at += len(chunk)
            yield chunk
        size = persistently(lambda: self.store.info(self.key), self.url)["size"]
        if size is not None and size != at:
            raise OSError(errno.EIO, f"{at:,} of its {size:,} bytes came", str(self))

    def read_bytes(self) -> bytes:
        """All of the file as it is now."""
        content: bytes = persistently(lambda: self.store.cat_file(self.key), self.url)
        return content

    def read_text(self, encoding: str | None = None, errors: str | None = None, **_unused: Any) -> str:
        """All of the file as text, of UTF-8 by default."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def write_bytes(self, data: Any) -> int:  # Any: a buffer
        """Put a small file in its place, whole."""
        content = bytes(data)
        persistently(lambda: self.store.pipe_file(self.key, content), self.url)
        return len(content)

    def mkdir(self, *_unused: Any, **_options: Any) -> None:
        """Nothing: folders of a store come with their first file."""

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the file."""
        try:
            persistently(lambda: self.store.rm_file(self.key), self.url)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def replace(self, target: str | os.PathLike[str]) -> StorePath:
        """Copy the file to another place of the store, then delete it here."""
        to = target if isinstance(target, StorePath) else StorePath(target)
        persistently(lambda: self.store.cp_file(self.key, to.key), self.url)
        self.unlink(missing_ok=True)
        return to

    def resolve(self, strict: bool = False) -> StorePath:  # noqa: ARG002
        """The same: stores have no links."""
        return self

    def absolute(self) -> StorePath:
        """The same: URLs are whole."""
        return self

    def expanduser(self) -> StorePath:
        """The same."""
        return self

    def _forget(self) -> None:
        """Look at the store again, not at the last listing."""
        with suppress(FileNotFoundError):  # some ask the store how much of the name is that of a bucket
            persistently(lambda: self.store.invalidate_cache(self.store._parent(self.key)), self.url)


def matching(pattern: str) -> list[str]:
    """URLs of the files that a pattern matches, in order of their names.

    Raises:
        OSError: The store cannot be reached.
    """
    found = split_url(pattern)
    assert found is not None
    store = filesystem(found.scheme)
    url = f"{found.scheme}://{found.rest}"
    listed = persistently(lambda: store.glob(url, detail=True), url)
    files = sorted(name for name, info in listed.items() if info["type"] == "file")
    return [store.unstrip_protocol(name) for name in files]


def modified_s(path: Path) -> float | None:
    """When a file was written, seconds since 1970; None where the store does not say, or it is not there."""
    try:
        if isinstance(path, StorePath):
            found = persistently(lambda: path.store.modified(path.key), path.url)
            return float(found.timestamp())
        return path.stat().st_mtime
    except OSError:
        return None


def is_store(path: Path) -> bool:
    """Whether a path is one of a store."""
    return isinstance(path, StorePath)
