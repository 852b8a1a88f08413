"""`tokscore stats` from outside: spans, and groups by metadata."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tokscore.cli.app import app
from tokscore.dataset.errors import UsageError

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import
METADATA = (
    '{"task": "math", "run": {"seed": 1}, "x": true}',
    '{"task": null, "run": {"seed": 2, "tags": ["a"]}, "x": 1}',
    None,
    '{"run": {"seed": 1}, "x": "1", "run.seed": 5}',
)


def stats(*arguments: object, form: str = "json") -> str:
    finished = CliRunner().invoke(app, ["stats", *map(str, arguments), "--format", form])
    if finished.exception is not None:
        raise finished.exception
    return finished.stdout


@pytest.fixture
def conversations(conversation: Make) -> list[Any]:
    made = [
        conversation(f"c{index}", [("user", 1 + index), ("assistant", 2)], seed=index) for index in range(4)
    ]
    return [each._replace(metadata=text) for each, text in zip(made, METADATA, strict=True)]


@pytest.fixture
def dataset(conversations: list[Any], write_dataset: Make) -> Path:
    path: Path = write_dataset(conversations, n_parts=2)
    return path


def test_spans_are_every_run_of_tokens_with_one_owner(conversation: Make, write_dataset: Make) -> None:
    dataset = write_dataset([conversation("a", n_header=1)._replace(sampled=-1)])
    found = json.loads(stats(dataset, "--spans"))
    keys = ("message_index", "role", "source", "is_content", "is_sampled", "start", "stop", "n_tokens")
    assert [tuple(row[key] for key in keys) for row in found] == [
        (-1, None, "template", False, False, 0, 1, 1),
        (0, "user", "template", False, False, 1, 2, 1),
        (0, "user", "content", True, False, 2, 5, 3),
        (1, "assistant", "template", False, None, 5, 6, 1),
        (1, "assistant", "content", True, None, 6, 10, 4),
    ]
    assert {(row["conversation_id"], row["branch"]) for row in found} == {("a", 0)}
    rows = list(csv.DictReader(io.StringIO(stats(dataset, "--spans", form="csv"))))
    assert [(row["role"], row["is_sampled"]) for row in rows[2:4]] == [("user", "False"), ("assistant", "")]
    assert "-" in stats(dataset, "--spans", form="table").splitlines()[-2].split()


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("metadata.task", {"math": [0], None: [1, 2, 3]}),
        ("metadata.run.seed", {1: [0], 2: [1], 5: [3], None: [2]}),
        ("metadata.x", {"true": [0], 1: [1], "1": [3], None: [2]}),
        ("metadata.run.tags", {'["a"]': [1], None: [0, 2, 3]}),
        ("metadata.absent", {None: [0, 1, 2, 3]}),
    ],
)
def test_groups_by_metadata_hold_the_conversations_with_the_value(
    conversations: list[Any], dataset: Path, name: str, groups: dict[Any, list[int]]
) -> None:
    report = json.loads(stats(dataset, "--by", name))
    assert report["by"] == name
    found = {(type(row["group"]), row["group"]): row for row in report["groups"]}
    assert set(found) == {(type(value), value) for value in groups}
    for value, members in groups.items():
        row = found[type(value), value]
        ids = [conversations[index] for index in members]
        logprobs = [each.logprobs[range(1, len(each.token_ids)), each.token_ids[1:]] for each in ids]
        assert row["n_tokens"] == sum(len(each.token_ids) for each in ids)
        assert row["sum_logprob"] == pytest.approx(sum(each.sum() for each in logprobs), abs=1e-5)
        assert row["n_messages"] is None


def test_metadata_and_columns_make_groups_together_as_in_diff(dataset: Path) -> None:
    by = "role,metadata.task"
    report = json.loads(stats(dataset, "--by", "role", "--by", "metadata.task"))
    finished = CliRunner().invoke(app, ["diff", str(dataset), str(dataset), "--by", by, "--format", "json"])
    compared = json.loads(finished.stdout)
    sizes = {tuple(row["group"]): row["n_tokens"] for row in report["groups"]}
    assert sizes["user", "math"] == 1
    assert sizes == {tuple(row["group"]): row["n_tokens"] + row["n_unscored"] for row in compared["groups"]}
    assert "assistant, (none)" in stats(dataset, "--by", by, form="table")


@pytest.mark.parametrize(
    "options",
    [
        ("--spans", "--by", "role"),
        ("--spans", "--limit", "output=1"),
        ("--by", "role", "--limit", "output=1"),
    ],
)
def test_two_reports_at_once_are_refused(dataset: Path, options: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--limit print one report each"):
        stats(dataset, *options)


def test_files_have_no_spans_and_no_groups(write_jsonl: Make) -> None:
    with pytest.raises(UsageError, match="all but the last of a dataset"):
        stats(write_jsonl({"messages": []}), "--spans")
