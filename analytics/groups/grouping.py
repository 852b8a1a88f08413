"""Groupings of the tokens of a report: by one column or several, joined by commas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tokscore.dataset.choices import GroupBy
from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.table_files import WRITE_AGAIN
from tokscore.dataset.token_rows import conversation_name

if TYPE_CHECKING:
    from tokscore.dataset.reading import Dataset
    from tokscore.dataset.token_rows import Place

# The value that tokens of one group share; None for tokens of no message, or where it cannot be told.
GroupValue = str | int | float | bool | None
# With several columns, their values in the order of the columns.
GroupKey = GroupValue | tuple[GroupValue, ...]

METADATA_PREFIX = "metadata."
_OBJECT = re.compile(rb"[ \t\r\n]*\{")


# Positions in bins that double, named by their first: 0, 1, 2-3, 4-7. Tokens that have none are in None.
BINNED = frozenset({GroupBy.POSITION_IN_MESSAGE, GroupBy.ANSWER_POSITION})
# Token columns that make a group, where it is no column itself.
_MADE_OF: Mapping[str, tuple[str, ...]] = {
    GroupBy.POSITION_IN_MESSAGE: ("position_in_message", "message_index"),
    GroupBy.ANSWER_POSITION: ("is_sampled",),
}

# What the messages table has too: groups of these are sets of messages.
MESSAGE_COLUMNS = frozenset({GroupBy.ROLE, GroupBy.MESSAGE_INDEX, GroupBy.BRANCH})

# A group of these is no larger than a conversation or than the number of conversations.
_NARROW = frozenset({GroupBy.POSITION, GroupBy.CONVERSATION_ID})


@dataclass(frozen=True, slots=True)
class Grouping:
    """Columns whose values, taken together, make the groups.

    Attributes:
        names: As the user gave them, each a member of `GroupBy` or `metadata.X`.
    """

    names: tuple[str, ...]

    @property
    def value(self) -> str:
        """All names, as on the command line."""
        return ",".join(self.names)

    @property
    def token_columns(self) -> tuple[str, ...]:
        """Those of the token table that the groups are made of."""
        names = (name for name in self.names if not name.startswith(METADATA_PREFIX))
        return tuple(dict.fromkeys(column for name in names for column in _MADE_OF.get(name, (name,))))

    @property
    def metadata_names(self) -> tuple[str, ...]:
        """Those that come from the metadata of the conversation."""
        return tuple(name for name in self.names if name.startswith(METADATA_PREFIX))

    @property
    def is_narrow(self) -> bool:
        """Whether there are as many groups as positions or conversations."""
        return not _NARROW.isdisjoint(self.names)

    def key(self, values: Sequence[GroupValue]) -> GroupKey:
        """The key of the group with these values, one a name."""
        return values[0] if len(self.names) == 1 else tuple(values)

    def values(self, key: GroupKey) -> tuple[GroupValue, ...]:
        """The values of a key, one a name."""
        return key if isinstance(key, tuple) else (key,)

    def absent_metadata(self, keys: Sequence[GroupKey]) -> list[str]:
        """Names of metadata that no group has a value of."""
        rows = [self.values(key) for key in keys]
        return [
            name
            for index, name in enumerate(self.names)
            if name in self.metadata_names and all(row[index] is None for row in rows)
        ]

    def is_nowhere(self, key: GroupKey) -> bool:
        """Whether the tokens of a group have no position where groups are made of positions."""
        values = zip(self.names, self.values(key), strict=True)
        return any(value is None and name in BINNED for name, value in values)

    def labels(self, key: GroupKey) -> dict[str, str]:
        """The values by name, as tables print them."""
        return {
            name: value_label(value, name) for name, value in zip(self.names, self.values(key), strict=True)
        }


def parse_group_by(names: str | Sequence[str]) -> Grouping:
    """The grouping called `names`: one name, several joined by commas, or a list of such.

    Raises:
        UsageError: One of them is unknown, or given twice.
    """
    listed = list(names) if isinstance(names, Sequence) and not isinstance(names, str) else [names]
    if not all(isinstance(text, str) for text in listed):
        raise UsageError(
            f"cannot group by {names!r}; expected {', '.join(GroupBy)} or {METADATA_PREFIX}NAME."
        )
    found = [name.strip() for text in listed for name in text.split(",")]
    for name in found:
        is_metadata = name.startswith(METADATA_PREFIX) and len(name) > len(METADATA_PREFIX)
        if not is_metadata and name not in set(GroupBy):
            raise UsageError(
                f"cannot group by {name!r}; expected {', '.join(GroupBy)} or {METADATA_PREFIX}NAME, "
                "or several joined by commas."
            )
    if len(set(found)) < len(found):
        raise UsageError(f"cannot group by {','.join(found)}; expected every name once.")
    if not found:
        raise UsageError(f"cannot group by nothing; expected {', '.join(GroupBy)} or {METADATA_PREFIX}NAME.")
    return Grouping(tuple(found))


def group_label(key: GroupKey, by: Grouping) -> str:
    """The key as tables print it in one column."""
    return ", ".join(by.labels(key).values())


def value_label(value: GroupValue, name: str) -> str:
    """One value of a key as tables print it."""
    if value is None and (name == GroupBy.IS_SAMPLED or name.startswith(METADATA_PREFIX)):
        return "(unknown)" if name == GroupBy.IS_SAMPLED else "(none)"
    if value is None and name == GroupBy.ANSWER_POSITION:
        return "(no answer)"
    if name in BINNED and isinstance(value, int) and value > 1:
        return f"{value}-{2 * value - 1}"
    if value is None or (value == -1 and name == GroupBy.MESSAGE_INDEX):
        return "(no message)"
    return str(value).lower() if isinstance(value, bool) else str(value)


def group_order(key: GroupKey) -> list[tuple[bool, float, str]]:
    """Sorts keys by number or alphabet, column after column, those of no message last."""
    values = key if isinstance(key, tuple) else (key,)
    return [
        (value is None or value == -1, value if isinstance(value, int | float) else 0.0, str(value))
        for value in values
    ]


def metadata_value(metadata: str | None, name: str) -> GroupValue:
    """The value of `metadata.X` in the metadata of a conversation.

    Args:
        metadata: JSON text of the conversations table, or None.
        name: With its prefix. X is a key, or a path of keys joined by dots. Lists, objects, true and
            false are given as JSON text, since True is equal to 1.
    """
    if metadata is None:
        return None
    # What is not asked for stays text: of a large object most of the memory would be the rest.
    found = msgspec.Raw(metadata.encode())
    path = name.removeprefix(METADATA_PREFIX)
    for step in [path] if path in _members(found) else path.split("."):
        members = _members(found)
        if step not in members:
            return None
        found = members[step]
    value: object = msgspec.json.decode(found)
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    return msgspec.json.encode(value, order="sorted").decode()


def _members(value: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The values of an object; empty for what is none."""
    if _OBJECT.match(memoryview(value)) is None:
        return {}
    return msgspec.json.decode(value, type=dict[str, msgspec.Raw])


def place_metadata(place: Place, name: str) -> GroupValue:
    """The value of `metadata.X` for a conversation; see `metadata_value`.

    Raises:
        InputError: They are no JSON.
    """
    try:
        return metadata_value(place.metadata, name)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{conversation_name(*place.key)} has no JSON in column metadata of its conversations table "
            f"({error}). {WRITE_AGAIN}"
        ) from error


def message_counts_by(dataset: Dataset, by: Grouping) -> dict[GroupKey, int]:
    """Number of messages in each group, rendered or not; empty where a group is no set of messages."""
    import polars as pl

    from tokscore.dataset.frames import scan_table

    if not {*by.names} <= MESSAGE_COLUMNS:
        return {}
    messages = scan_table(dataset, "messages")
    counts = messages.group_by(by.names).agg(pl.len()).collect(engine="streaming")
    return {by.key(values): n for *values, n in counts.iter_rows()}
