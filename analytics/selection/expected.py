"""The records of a dataset, found again one after the other in the files that it was made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tokscore.analytics.selection.selected import PartRecords, Selection


class ExpectedRecords:
    """Takes the records of files in their order; memory holds those of one part that failed."""

    def __init__(self, selection: Selection) -> None:
        """Begin with the first part."""
        self._parts = selection.parts()
        self._part = PartRecords(iter(()), [])
        self._row: tuple[str, str, int, bool] | None = None
        self._failed = _Names(())

    def take(self, file: str, line: int, name: str) -> bool | None:
        """Whether the next record is kept; None where another one would have to follow.

        Args:
            file: Name of its file.
            line: Its line.
            name: That it gives itself: the dataset has it with a number where it was taken.
        """
        while True:
            if self._row is not None and self._row[1:3] == (file, line) and name in _names(self._row[0]):
                is_kept = self._row[3]
                self._row = next(self._part.rows, None)
                return is_kept
            # The line of a failure is that of what is wrong, which may be another one.
            if self._failed.take(name):
                return False
            if self._row is not None or len(self._failed) or not self._is_there_more():
                return None

    def _is_there_more(self) -> bool:
        part = next(self._parts, None)
        if part is None:
            return False
        self._part, self._row, self._failed = part, next(part.rows, None), _Names(part.failed)
        return True

    def following(self) -> str:
        """What would have to follow, for messages."""
        if self._row is not None:
            conversation_id, file, line, _ = self._row
            return f"{conversation_id!r} of {file}:{line}"
        return self._failed.first() if len(self._failed) else "no more records"


def _names(conversation_id: str) -> tuple[str, ...]:
    """What a record may have called itself that has this id."""
    name, separator, number = conversation_id.rpartition("#")
    return (conversation_id, name) if separator and number.isdecimal() else (conversation_id,)


class _Names:
    """Ids, each found once by the name that its record gives itself."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = dict.fromkeys(ids)
        self._by_name: defaultdict[str, list[str]] = defaultdict(list)
        for each in reversed(self._ids):
            for name in _names(each):
                self._by_name[name].append(each)

    def __len__(self) -> int:
        return len(self._ids)

    def first(self) -> str:
        """The first that is there."""
        return repr(next(iter(self._ids)))

    def take(self, name: str) -> bool:
        """Whether there is one of this name, which is no more then."""
        if name in self._ids:
            del self._ids[name]
            return True
        waiting = self._by_name.get(name, [])
        while waiting:
            found = waiting.pop()
            if found in self._ids:
                del self._ids[found]
                return True
        return False
