"""The ends of many files of a store, fetched together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tokscore.dataset.stores.path import StorePath
from tokscore.dataset.stores.range_file import FETCHED, TAIL_BYTES


@contextmanager
def ends_of(paths: Sequence[StorePath]) -> Iterator[None]:
    """Inside, the ends of these files are here: they are fetched together, not one after the other.

    What cannot be fetched fails when it is read.
    """
    sizes: dict[StorePath, int] = {}
    for path in paths:
        try:
            sizes[path] = path.size()
        except OSError:
            continue
    there = [path for path, size in sizes.items() if size]
    if there:
        starts = [max(0, sizes[path] - TAIL_BYTES) for path in there]
        stops = [sizes[path] for path in there]
        found = there[0].store.cat_ranges([path.key for path in there], starts, stops, on_error="return")
        for path, start, stop, content in zip(there, starts, stops, found, strict=True):
            if isinstance(content, bytes) and len(content) == stop - start:
                FETCHED[path.url] = (stop, content)
    try:
        yield
    finally:
        for path in paths:
            FETCHED.pop(path.url, None)
