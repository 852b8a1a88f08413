"""Datasets with changed bytes, columns and values: every reading command refuses them or prints what it did.

Of a dataset with checksums no change is taken without a word. Without checksums, as older versions wrote it,
values may change what is printed, but nothing ends in a traceback.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fuzz.fuzzing import Printed, commands, run_cases
from tokscore.dataset.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")
IDS = [256, 257, 72, 105, 258]
RECORDS = [
    {
        "id": f"c{number}",
        "metadata": {"task": f"t{number % 2}", "n": number},
        "prompt_token_ids": [*IDS, 257],
        "completion_token_ids": [65 + number, 66, 258],
        "logprobs": [None] * 6 + [-1.0, -2.5, -0.25],
        "mask": [False] * 6 + [True, True, number != 2 or None],
        "roles": [["user", 5, 0], ["assistant", 4, 1]],
        "is_content": [False, False, True, True, False, False, True, True, False],
    }
    for number in range(4)
]
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("stats", "teacher"),
    ("stats", "tokens"),
    ("stats", "teacher", "--by", "role,source,conversation_id,branch,message_index,metadata.task"),
    ("stats", "teacher", "--by", "position,is_sampled,metadata.n"),
    ("stats", "teacher", "--spans"),
    ("stats", "teacher", "--limit", "output=2"),
    ("diff", "teacher", "student"),
    ("diff", "student", "teacher", "--by", "role,metadata.task"),
    ("diff", "--recorded", "teacher"),
    ("show", "teacher", "c3"),
    ("show", "teacher", "c0", "--against", "student"),
    ("show", "student", "c1", "--against", "teacher"),
    ("logprobs", "tokens", "--dry-run"),
)
HTML = (("stats", "teacher"), ("diff", "teacher", "student"))


@pytest.fixture(scope="module")
def whole(tiny_model: Path, other_tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the datasets `tokens`, `teacher` and `student`, each of two parts with a failure each."""
    root = tmp_path_factory.mktemp("whole")
    for name, records in (("a.jsonl", RECORDS[:2]), ("b.jsonl", RECORDS[2:])):
        lines = [json.dumps(record) for record in records]
        (root / name).write_text("\n".join([lines[0], '{"id": "bad"}', lines[1]]) + "\n")
    inputs = (str(root / "a.jsonl"), str(root / "b.jsonl"))
    skip = ("--on-error", "skip", "--input-format", "tokens")
    call("render", *inputs, "-m", str(tiny_model), "-o", str(root / "tokens"), *skip)
    for name, model in (("teacher", tiny_model), ("student", other_tiny_model)):
        call(
            "logprobs", *inputs, "-m", str(model), "-o", str(root / name), "--engine", "transformers",
            "--top-k", "3", *skip,
        )  # fmt: skip
    for name in ("tokens", "teacher", "student"):
        assert len(list((root / name / "errors").iterdir())) == 2
    return root


def call(*arguments: str) -> str:
    """What a command prints to stdout; raises what it raises."""
    with Printed() as printed:
        code = commands()(list(arguments), prog_name="tokscore", standalone_mode=False)
    assert not code, printed.stderr
    return printed.stdout


def run(root: Path, command: tuple[str, ...], model: Path) -> str:
    named = [str(root / each) if each in ("tokens", "teacher", "student") else each for each in command]
    more = ["-m", str(model), "--engine", "transformers"] if command[0] == "logprobs" else []
    return call(*named, *more, "--format", "json").replace(str(root), "ROOT")


def change_bytes(path: Path, chance: random.Random) -> None:
    """One to eight bytes changed, a run of them zeroed, or the file cut, doubled or emptied."""
    content = bytearray(path.read_bytes())
    # The footer of a small Parquet file is longer than its pages, and gets as many changes.
    first = len(content) // 2 if chance.random() < 0.3 else 0
    way = chance.random()
    if way < 0.8:
        for _ in range(1 if way < 0.6 else chance.randint(2, 8)):
            if content:
                content[chance.randrange(first, len(content))] = chance.randrange(256)
    elif way < 0.88:
        start = chance.randrange(len(content) + 1)
        n_zeros = min(64, len(content) - start)
        content[start : start + n_zeros] = bytes(n_zeros)
    elif way < 0.94:
        del content[chance.randrange(len(content) + 1) :]
    elif way < 0.97:
        content *= 2
    else:
        content.clear()
    path.write_bytes(content)


NUMBERS = (-1, 0, 1, 2, 3, 9, 9999, -7, 2**31 - 1, 2**40, -(2**31), 2**62)
TEXTS = ("", "user", "c0", "system", "x" * 5_000, "\x1b[2J", "{", "[" * 5_000, '{"task": 1e400}', '{"n": {}}')


def other_value(dtype: pa.DataType, chance: random.Random) -> Any:
    if pa.types.is_list(dtype):
        return [other_value(dtype.value_type, chance) for _ in range(chance.choice((0, 1, 3, 5)))]
    if pa.types.is_boolean(dtype):
        return chance.random() < 0.5
    if pa.types.is_floating(dtype):
        return chance.choice((0.0, -1.0, 1.0, -1e30, float("inf"), float("-inf"), float("nan")))
    if pa.types.is_integer(dtype):
        return chance.choice(
            [each for each in NUMBERS if -(2 ** (dtype.bit_width - 1)) <= each < 2 ** (dtype.bit_width - 1)]
        )
    text = chance.choice(TEXTS)
    return text.encode() if pa.types.is_binary(dtype) else text


def change_values(path: Path, chance: random.Random) -> None:
    """A Parquet file written again with other values, rows or columns."""
    table = pq.read_table(path)
    metadata = table.schema.metadata
    index = chance.randrange(table.num_columns)
    name, column = table.column_names[index], table.column(index)
    way = chance.random()
    n = table.num_rows
    if way < 0.45 and n:
        values = column.to_pylist()
        for _ in range(chance.choice((1, 1, 1, 2, n))):
            row = chance.randrange(n)
            values[row] = None if chance.random() < 0.2 else other_value(column.type, chance)
        field = pa.field(name, column.type)
        table = table.set_column(index, field, pa.array(values, column.type))
    elif way < 0.55:
        table = table.set_column(index, pa.field(name, column.type), pa.nulls(n, column.type))
    elif way < 0.65:
        other = chance.choice(
            (pa.string(), pa.int64(), pa.list_(pa.int32()), pa.null(), pa.float64(), pa.binary())
        )
        table = table.set_column(
            index,
            name,
            pa.nulls(n, other)
            if chance.random() < 0.5 or pa.types.is_list(other)
            else pa.array(
                [
                    None
                    if pa.types.is_null(other)
                    else b"1"
                    if pa.types.is_binary(other)
                    else 1
                    if other != pa.string()
                    else "1"
                ]
                * n,
                other,
            ),
        )
    elif way < 0.72:
        table = table.drop_columns([name])
    elif way < 0.8:
        order = np.arange(n)
        chance.shuffle(order)
        table = table.take(pa.array(order))
    elif way < 0.88:
        table = table.slice(0, chance.randint(0, n))
    elif way < 0.94:
        table = pa.concat_tables([table, table])
    else:
        others = [each for each in table.column_names if table[each].type == column.type]
        table = table.set_column(index, pa.field(name, column.type), table[chance.choice(others)])
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=chance.choice((3, 1000)))


def swap(path: Path, _: random.Random) -> None:
    """The file of the other part in its place."""
    other = path.with_name(
        path.name.replace("00000", "0000X").replace("00001", "00000").replace("0000X", "00001")
    )
    if other.exists() and other != path:
        shutil.copy(other, path)


def cases(
    whole: Path, tmp_path: Path, model: Path, *, has_checksums: bool
) -> Callable[[int, random.Random], str]:
    """A case of `run_cases`: change a file, run some commands, put the file back."""
    root = tmp_path / "datasets"
    shutil.copytree(whole, root)
    if not has_checksums:
        for name in ("tokens", "teacher", "student"):
            shutil.rmtree(root / name / "checksums", ignore_errors=True)
    files = sorted(path for path in root.glob("t*/**/*") if path.is_file())
    assert len(files) > 20

    @cache
    def unharmed(command: tuple[str, ...]) -> str:
        return run(whole, command, model)

    for command in COMMANDS:
        unharmed(command)

    def case(_: int, chance: random.Random) -> str:
        path = chance.choice(files)
        content = path.read_bytes()
        ways = (
            [change_bytes, swap]
            if not has_checksums or path.suffix != ".parquet"
            else [change_bytes, change_values, swap]
        )
        if not has_checksums:
            ways = [change_values] if path.suffix == ".parquet" else [change_bytes]
        # Commands on the dataset that was changed.
        dataset = path.relative_to(root).parts[0]
        chosen = chance.sample([each for each in COMMANDS if dataset in each], 2)
        way = chance.choices(ways, weights=[4, 4, 1][: len(ways)])[0]
        outcomes = []
        try:
            way(path, chance)
            for command in chosen:
                try:
                    found = run(root, command, model)
                except InputError:
                    outcomes.append("refused")
                    continue
                if found == unharmed(command):
                    outcomes.append("same")
                else:
                    assert not has_checksums, (
                        f"silent change of {path.relative_to(root)} by {way.__name__}: {command}"
                    )
                    outcomes.append("other")
        finally:
            path.write_bytes(content)
        return "refused" if "refused" in outcomes else outcomes[-1]

    return case


def test_no_change_to_a_dataset_is_taken_without_a_word(
    whole: Path, tmp_path: Path, tiny_model: Path
) -> None:
    outcomes = run_cases(60, 100_000, cases(whole, tmp_path, tiny_model, has_checksums=True))
    assert outcomes["refused"] > outcomes["same"] > 0


@pytest.mark.slow
def test_values_that_cannot_be_end_in_no_traceback(whole: Path, tmp_path: Path, tiny_model: Path) -> None:
    outcomes = run_cases(60, 20_000, cases(whole, tmp_path, tiny_model, has_checksums=False))
    assert outcomes["refused"] > 0
