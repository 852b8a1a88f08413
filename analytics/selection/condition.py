"""Conditions over the numbers of conversations, written as in SQL's WHERE."""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from tokscore.analytics.groups.grouping import METADATA_PREFIX
from tokscore.dataset.errors import UsageError, expected_name

# Text, names in quotes, and names with dots, which SQL would take for columns of a table.
_WORDS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|[A-Za-z_]\w*(?:\.\w+)+")
_EXAMPLE = "'mean_logprob > -2 and n_tokens < 4096'"


def parse_condition(text: str) -> pl.Expr:
    """The expression that `text` is in SQL, in which names may have dots.

    Raises:
        UsageError: It is none.
    """
    if not isinstance(text, str):
        raise UsageError(f"{text!r} is no condition; expected one such as {_EXAMPLE}.")
    quoted = _WORDS.sub(lambda word: word[0] if word[0][0] in "'\"" else f'"{word[0]}"', text)
    try:
        return pl.sql_expr(quoted)
    except (pl.exceptions.PolarsError, pl.exceptions.SQLInterfaceError, TypeError) as error:
        raise UsageError(f"{text!r} is no condition ({error}); expected one such as {_EXAMPLE}.") from error


def names_in(condition: pl.Expr) -> list[str]:
    """The columns that a condition is about, each once."""
    return list(dict.fromkeys(condition.meta.root_names()))


def check_names(names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse names of columns that are not there; metadata may have any.

    Raises:
        UsageError: With the one that was meant, where one is close.
    """
    for name in names:
        if name in known or name.startswith(METADATA_PREFIX):
            continue
        raise UsageError(
            f"there is no {name!r}; {expected_name(name, [*known, 'metadata.NAME'])} "
            "Text stands in single quotes."
        )


def holds(condition: pl.Expr, rows: pl.LazyFrame, text: str) -> pl.DataFrame:
    """Whether the condition holds in each row, and which of its numbers are missing there.

    Returns:
        `holds`, null where a number that it needs is not there; and for every name of the condition whether
        it is null.

    Raises:
        UsageError: It gives no true or false, or compares what cannot be compared.
    """
    missing = (pl.col(name).is_null() for name in names_in(condition))
    try:
        asked = rows.select(condition.alias("holds"), *(each.name.prefix("no ") for each in missing))
        found = asked.collect(engine="streaming")
    except pl.exceptions.PolarsError as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"{text!r} cannot be told of a conversation: {reason}.") from error
    if found["holds"].dtype != pl.Boolean:
        raise UsageError(
            f"{text!r} is {found['holds'].dtype}, not true or false; expected a condition: {_EXAMPLE}."
        )
    return found
