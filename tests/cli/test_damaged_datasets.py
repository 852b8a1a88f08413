"""Every command that reads a dataset gives exit code 3 and one message for one kind of damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.rewriting import without_checksums
from tokscore.cli.app import app
from tokscore.dataset.errors import ExitCode, TokscoreError
from tokscore.dataset.schema import COLUMNS, SCHEMAS

CONVERSATION = "first"
RECORDS = [
    {
        "id": name,
        "metadata": {"task": name},
        "messages": [{"role": "user", "content": f"Hi {name}"}, {"role": "assistant", "content": "Hello!"}],
    }
    for name in (CONVERSATION, "second", "third")
]
STORED = {"position", "token_id", "message_index", "source", "is_content", "is_sampled"}
RECORDED = {"recorded_is_content", "recorded_logprob", "trainer_logprob"}
SCORED = {"logprob", "rank", "top_ids", "top_logprobs"}
GIVEN = {"at_ids", "at_logprobs"}


class Command(NamedTuple):
    """A command on the datasets `tokens`, `teacher` and `student`.

    Attributes:
        arguments: With the names of datasets.
        table: The token table that it reads.
        columns: Of that, the columns it reads.
    """

    arguments: tuple[str, ...]
    table: str
    columns: set[str]


COMMANDS = {
    "logprobs": Command(("logprobs", "tokens"), "tokens", STORED | RECORDED),
    "stats": Command(
        ("stats", "teacher"), "scores", {"role", "is_content", "is_sampled", "logprob", "rank", "entropy"}
    ),
    "stats --by": Command(
        ("stats", "teacher", "--by", "message_index,metadata.task"),
        "scores",
        {"position", "message_index", "is_content", "is_sampled", "logprob", "rank", "entropy"},
    ),
    "stats --limit": Command(("stats", "teacher", "--limit", "output=3"), "scores", STORED | RECORDED),
    "stats --spans": Command(("stats", "teacher", "--spans"), "scores", set()),
    "diff": Command(
        ("diff", "teacher", "student"), "scores", {"token_id", "position", "role"} | SCORED | GIVEN
    ),
    "diff as student": Command(
        ("diff", "student", "teacher"), "scores", {"token_id", "position"} | SCORED | GIVEN
    ),
    "show": Command(
        ("show", "teacher", CONVERSATION),
        "scores",
        STORED | RECORDED | SCORED | {"position_in_message", "entropy", "role"},
    ),
}


class Damage(NamedTuple):
    """A change to a file, and the message of commands about it, in which PATH stands for the file.

    Attributes:
        table: Folder of the file; "" is the token table of the command, or a file of the dataset.
        change: Changes it.
        message: How the message begins.
        columns: Commands that read none of these do as if nothing was; all refuse where it is empty.
    """

    table: str
    change: Callable[[Path], object]
    message: str
    columns: frozenset[str] = frozenset()


def flipped(column: str) -> Callable[[Path], None]:
    """Change the last byte of a column."""

    def change(path: Path) -> None:
        names = [name.split(".")[0] for name in pq.ParquetFile(path).schema.names]
        metadata = pq.read_metadata(path)
        at = [metadata.row_group(0).column(i).path_in_schema.split(".")[0] for i in range(len(names))]
        chunk = metadata.row_group(0).column(at.index(column))
        start = (
            chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
        )
        content = bytearray(path.read_bytes())
        content[start + chunk.total_compressed_size - 1] ^= 0xFF
        path.write_bytes(content)

    return change


def rewritten(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        table = pq.read_table(path)
        pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path)

    return write


def with_column(
    name: str, values: Callable[[pa.ChunkedArray], pa.Array], dtype: pa.DataType | None = None
) -> Callable[[Path], None]:
    def change(table: pa.Table) -> pa.Table:
        field = pa.field(name, dtype or table.field(name).type)
        return table.set_column(table.column_names.index(name), field, values(table[name]))

    return rewritten(change)


def at_row_5(value: int) -> Callable[[pa.ChunkedArray], pa.Array]:
    def change(column: pa.ChunkedArray) -> pa.Array:
        values = column.to_pylist()
        values[5] = value
        return pa.array(values, column.type)

    return change


def swapped(table: pa.Table) -> pa.Table:
    order = np.arange(table.num_rows)
    order[[5, 6]] = 6, 5
    return table.take(pa.array(order))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def of_another_plan(path: Path) -> None:
    table = pq.read_table(path)
    said = table.schema.metadata | {b"tokscore.plan_hash": b"0" * 64}
    pq.write_table(table.replace_schema_metadata(said), path)


def edited(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        content = json.loads(path.read_bytes())
        change(content)
        path.write_text(json.dumps(content))

    return write


TOKEN_DAMAGES: Mapping[str, Damage] = {
    "cut": Damage("", cut, "PATH is no whole Parquet file ("),
    "other plan": Damage("", of_another_plan, "PATH belongs to another plan than the manifest."),
    "rows missing": Damage(
        "", rewritten(lambda table: table.slice(0, 9)), "PATH has 9 rows; expected 106, the tokens"
    ),
    "rows doubled": Damage(
        "",
        rewritten(lambda table: pa.concat_tables([table, table])),
        "PATH has 212 rows; expected 106, the tokens",
    ),
    **{
        f"{column.name} lost": Damage(
            "",
            rewritten(lambda table, name=column.name: table.drop_columns([name])),
            f"PATH has no column {column.name}; expected {column.dtype}.",
        )
        for column in COLUMNS["tokens"]
        if not column.is_added
    },
    **{
        f"{column.name} as bytes": Damage(
            "",
            with_column(column.name, lambda values: pa.array([b"?"] * len(values)), pa.binary()),
            f"PATH has binary in column {column.name}; expected {column.dtype}.",
        )
        for column in COLUMNS["tokens"]
    },
    **{
        f"byte in {column.name}": Damage(
            "",
            flipped(column.name),
            f"PATH is damaged: column {column.name} cannot be read (",
            frozenset([column.name]),
        )
        for column in COLUMNS["scores"]
    },
    **{
        f"nulls in {column.name}": Damage(
            "",
            with_column(column.name, lambda values: pa.nulls(len(values), values.type)),
            f"PATH has nulls in column {column.name}; expected none.",
            frozenset([column.name]),
        )
        for column in COLUMNS["tokens"]
        if not column.nullable
    },
    **{
        f"{name} is {value}": Damage(
            "",
            with_column(name, at_row_5(value)),
            f"PATH has {value} in column {name}; expected at least {least}.",
            frozenset([name]),
        )
        for name, value, least in (("token_id", -1, 0), ("message_index", -7, -1), ("position", -1, 0))
    },
    "message_index too large": Damage(
        "",
        with_column("message_index", at_row_5(9999)),
        f"PATH: conversation '{CONVERSATION}': position 5 has message_index 9999; expected less than 2,",
        frozenset(["message_index"]),
    ),
    "position beyond the end": Damage(
        "",
        with_column("position", at_row_5(2**31 - 1)),
        f"PATH: conversation '{CONVERSATION}': row 5 has position 2147483647; expected rows in order.",
        frozenset(["position"]),
    ),
    "rows swapped": Damage(
        "",
        rewritten(swapped),
        f"PATH: conversation '{CONVERSATION}': row 5 has position 6; expected rows in order.",
        frozenset(["position"]),
    ),
}
OTHER_DAMAGES: Mapping[str, Damage] = {
    **{
        f"{table} cut": Damage(table, cut, "PATH is no whole Parquet file (")
        for table in ("spans", "messages", "conversations")
    },
    **{
        f"{table} of another plan": Damage(
            table, of_another_plan, "PATH belongs to another plan than the manifest."
        )
        for table in ("spans", "messages", "conversations")
    },
    **{
        f"{table}.{column.name} lost": Damage(
            table,
            rewritten(lambda found, name=column.name: found.drop_columns([name])),
            f"PATH has no column {column.name}; expected ",
        )
        for table in ("spans", "messages", "conversations")
        for column in COLUMNS[table]
    },
    **{
        f"conversations.{name} is {value}": Damage(
            "conversations",
            with_column(name, lambda values, value=value: pa.array([value] * len(values), values.type)),
            message,
        )
        for name, value, message in (
            ("first_row", 2**40, f"PATH has {2**40} in column first_row, row 0; expected 0."),
            ("first_row", -5, "PATH has -5 in column first_row; expected at least 0."),
            ("n_tokens", -1, "PATH has -1 in column n_tokens; expected at least 0."),
            ("n_messages", -1, "PATH has -1 in column n_messages; expected at least 0."),
            ("part", 1, "PATH has 1 in column part, row 0; expected 0."),
        )
    },
    "conversations fewer": Damage("conversations", rewritten(lambda table: table.slice(0, 2)), "ROOT/"),
    "messages fewer": Damage(
        "messages", rewritten(lambda table: table.slice(0, 2)), "PATH has 2 rows; expected 6, the messages of"
    ),
    "manifest cut": Damage("manifest.json", cut, "PATH is not a manifest of tokscore: "),
    "manifest nested": Damage(
        "manifest.json",
        lambda path: path.write_text('{"a":' + "[" * 100_000),
        "PATH is not a manifest of tokscore: ",
    ),
    "manifest without parts": Damage(
        "manifest.json",
        edited(lambda content: content.update(parts=[])),
        "PATH was changed after it was written: its plan_hash is not that of its contents.",
    ),
    "manifest with other settings": Damage(
        "manifest.json",
        edited(lambda content: content["settings"].update(max_tokens=7)),  # type: ignore[attr-defined]
        "PATH was changed after it was written: its plan_hash is not that of its contents.",
    ),
}
# Of what only some commands read: with those that do.
READ_BY_SOME: Mapping[str, tuple[Damage, set[str]]] = {
    "byte in spans": (
        Damage("spans", flipped("start"), "PATH is damaged: column start cannot be read ("),
        {"stats --spans"},
    ),
    "byte in messages": (
        Damage("messages", flipped("flags"), "PATH is damaged: column flags cannot be read ("),
        {"logprobs", "stats --limit", "show"},
    ),
    "messages of another conversation": (
        Damage(
            "messages",
            with_column("conversation_id", lambda values: pc.binary_join_element_wise(values, "2", "-")),
            "PATH has another conversation_id than its conversations.",
        ),
        {"logprobs", "stats --limit", "show"},
    ),
    "byte in conversations": (
        Damage("conversations", flipped("metadata"), "PATH is damaged: column metadata cannot be read ("),
        {"logprobs", "stats --by", "stats --limit", "show", "diff", "diff as student"},
    ),
    "metadata that are no JSON": (
        Damage(
            "conversations",
            with_column("metadata", lambda values: pa.array(['{"task": ' + "[" * 100_000] * len(values))),
            f"conversation '{CONVERSATION}' has no JSON in column metadata of its conversations table (",
        ),
        {"stats --by"},
    ),
    "line of errors": (
        Damage("errors", lambda path: path.write_text('{"reason": 1}\n'), "PATH:1 is no line of tokscore ("),
        {"logprobs", "stats", "stats --by", "stats --limit"},
    ),
    "byte of errors": (
        Damage("errors", lambda path: path.write_bytes(b"\xff\xfe\n"), "PATH:1 is no line of tokscore ("),
        {"logprobs", "stats", "stats --by", "stats --limit"},
    ),
    "vocabulary cut": (
        Damage("vocab.parquet", cut, "PATH is no whole Parquet file ("),
        {"logprobs", "diff", "show"},
    ),
    "vocabulary without text": (
        Damage(
            "vocab.parquet",
            rewritten(lambda table: table.drop_columns(["text"])),
            "PATH has no column text; expected string.",
        ),
        {"logprobs", "diff", "show"},
    ),
}


@pytest.fixture(scope="module")
def whole(tiny_model: Path, other_tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the datasets `tokens`, `teacher` and `student`, and what commands print of them."""
    root = tmp_path_factory.mktemp("whole")
    (root / "conversations.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    engine = ("--engine", "transformers")
    call(root, "render", "conversations.jsonl", "-m", tiny_model, "-o", "tokens")
    call(root, "logprobs", "tokens", "-m", tiny_model, "-o", "teacher", *engine)
    call(root, "logprobs", "tokens", "-m", other_tiny_model, "-o", "student", *engine)
    for name in ("tokens", "teacher", "student"):  # as older versions wrote them
        without_checksums(root / name)
    return root


def call(root: Path, *arguments: object) -> tuple[int, str]:
    """Exit code, and what went to stdout or was wrong; other errors than expected ones are raised."""
    names = {name: str(root / name) for name in ("conversations.jsonl", "tokens", "teacher", "student")}
    result = CliRunner().invoke(app, [names.get(str(each), str(each)) for each in arguments])
    if isinstance(result.exception, TokscoreError):
        return int(result.exception.exit_code), str(result.exception)
    if result.exception is not None:
        raise result.exception
    return result.exit_code, result.stdout


def run(whole: Path, tmp_path: Path, model: Path, command: Command, damage: Damage | None) -> tuple[int, str]:
    """Run a command on a copy with the damage; PATH is the damaged file in what comes back."""
    for name in ("tokens", "teacher", "student"):
        shutil.copytree(whole / name, tmp_path / name)
    root = tmp_path / ("tokens" if command.table == "tokens" else "teacher")
    more: tuple[object, ...] = ("--format", "json")
    if command.table == "tokens":
        more = (*more, "-m", model, "-o", tmp_path / "out", "--engine", "transformers")
    path = root
    if damage is not None:
        table = damage.table or command.table
        path = root / table
        if path.is_dir():
            path /= "part-00000.jsonl" if table == "errors" else "part-00000.parquet"
        damage.change(path)
    code, text = call(tmp_path, *command.arguments, *more)
    return code, text.replace(str(path), "PATH").replace(str(root), "ROOT")


@pytest.fixture(scope="module")
def unharmed(
    whole: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[int, str]]:
    """The exit code and output of a command where nothing is damaged."""

    @cache
    def found(name: str) -> tuple[int, str]:
        return run(whole, tmp_path_factory.mktemp("unharmed"), tiny_model, COMMANDS[name], None)

    return found


# Of what is the same for every column, one of each kind; `-m slow` runs all.
_SHOWN = ("token_id", "is_sampled", "recorded_logprob", "top_ids")


def _cases() -> Iterator[object]:
    for damage, done in {**TOKEN_DAMAGES, **OTHER_DAMAGES}.items():
        column = damage.removeprefix("byte in ").removeprefix("nulls in ").partition(" ")[0]
        is_one_of_many = damage.endswith((" lost", " as bytes")) or damage.startswith(
            ("byte in ", "nulls in ")
        )
        marks = [pytest.mark.slow] if is_one_of_many and column not in _SHOWN else []
        for name, command in COMMANDS.items():
            if done.columns <= set(SCHEMAS[command.table].names):
                yield pytest.param(damage, name, marks=marks)


@pytest.mark.parametrize(("damage", "name"), [*_cases()])
def test_damage_has_one_message_and_exit_code_3(
    whole: Path,
    tiny_model: Path,
    tmp_path: Path,
    unharmed: Callable[[str], tuple[int, str]],
    name: str,
    damage: str,
) -> None:
    command, done = COMMANDS[name], {**TOKEN_DAMAGES, **OTHER_DAMAGES}[damage]
    code, text = run(whole, tmp_path, tiny_model, command, done)
    if done.columns and done.columns.isdisjoint(command.columns):
        assert (code, text) == unharmed(name)
        return
    assert text.startswith(done.message), text
    assert "Write the dataset again." in text
    assert code == ExitCode.BAD_INPUT


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("damage", READ_BY_SOME)
def test_damage_to_a_small_table_is_told_by_those_who_read_it(
    whole: Path,
    tiny_model: Path,
    tmp_path: Path,
    unharmed: Callable[[str], tuple[int, str]],
    name: str,
    damage: str,
) -> None:
    done, readers = READ_BY_SOME[damage]
    code, text = run(whole, tmp_path, tiny_model, COMMANDS[name], done)
    if name not in readers:
        assert (code, text) == unharmed(name)
        return
    assert text.startswith(done.message), text
    assert code == ExitCode.BAD_INPUT
