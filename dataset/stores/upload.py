"""Files on their way into a store: sent as a whole, and visible from one moment to the next."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokscore.dataset.stores.calls import persistently
from tokscore.dataset.stores.path import StorePath

# Stores that take a file in parts and show nothing before the last call, which their library makes when told
# to. Others are sent a file as a whole, when its turn has come.
_IN_PARTS = ("s3", "s3a")
_BLOCK_BYTES = 16 * 2**20
# What stores say to whoever makes a file that another makes, too.
_CONFLICTS = ("PreconditionFailed", "pre-condition", "ConditionalRequestConflict")


def is_sent_ahead(path: StorePath) -> bool:
    """Whether a file is sent before its place is asked for, so that what makes it visible is one call."""
    return path.scheme in _IN_PARTS


class Upload:
    """A file that is sent already, as far as the store can keep one that nobody sees.

    Source:
        Amazon S3, CompleteMultipartUpload: an object is there when this call succeeds, and not before.
    """

    def __init__(self, source: Path, target: StorePath) -> None:
        """Send it.

        Args:
            source: File of this machine, which has to stay until `commit`.
            target: Where it will be.

        Raises:
            OSError: The store cannot be reached.
        """
        self._source, self._target = source, target
        self._file: Any = None  # Any: fsspec has no types
        if is_sent_ahead(target):
            self._file = persistently(self._sent, target.url)

    def _sent(self) -> Any:  # Any: as above
        file = self._target.store.open(self._target.key, "wb", block_size=_BLOCK_BYTES, autocommit=False)
        try:
            with self._source.open("rb") as content:
                shutil.copyfileobj(content, file, _BLOCK_BYTES)
            file.close()
        except BaseException:
            _give_up(file)
            raise
        return file

    def commit(self) -> None:
        """Make it visible.

        Raises:
            OSError: The store cannot be reached.
        """
        target = self._target
        if self._file is None:
            persistently(lambda: target.store.put_file(str(self._source), target.key), target.url)
            return
        n_tries = 0

        def complete() -> None:
            nonlocal n_tries
            n_tries += 1
            try:
                self._file.commit()
            except FileNotFoundError:
                # The answer to the call before was lost, and not the call.
                if n_tries == 1 or not target.exists() or target.size() != self._source.stat().st_size:
                    raise

        persistently(complete, target.url)
        self._file = None

    def discard(self) -> None:
        """Have the store forget what was not committed."""
        file, self._file = self._file, None
        if file is not None:
            _give_up(file)


def _give_up(file: Any) -> None:  # Any: as above
    # Where the network is away, the store forgets it by a rule of its own.
    with suppress(Exception):
        file.discard()


def create(path: StorePath, content: bytes) -> bool:
    """Make a small file; False where there is one already, whoever is faster.

    Source:
        Amazon S3, conditional writes: of calls with If-None-Match: *, one succeeds.
    """

    def put() -> bool:
        try:
            path.store.pipe_file(path.key, content, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if any(name in str(error) for name in _CONFLICTS):
                return False
            raise
        return True

    if persistently(put, path.url):
        return True
    # The answer to a call before may have been lost.
    try:
        return path.read_bytes() == content
    except FileNotFoundError:
        return False
