"""A new format is one module and one row of the registry; every command reads it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from tokscore.cli.app import app
from tokscore.rendering.reading.formats import FORMATS, load_format

MODULE = """
import numpy as np

from tokscore.rendering.conversations.trace import NO_PARENT, Node, NodeTokens, Trace
from tokscore.rendering.reading.fields.values import id_array, need
from tokscore.rendering.reading.formats.format import Format


def _matches(record):
    return "dialogue" in record


def _parse(record, _place):
    nodes = []
    for i, turn in enumerate(need(record, "dialogue", list, "$", "a list of turns")):
        path = f"$.dialogue[{i}]"
        ids = id_array(need(turn, "sequence", list, path, "a list of token ids"), f"{path}.sequence")
        is_sampled = need(turn, "speaker", str, path, "a name") == "machine"
        message = {"role": "assistant" if is_sampled else "user", "content": turn["words"]}
        mask = np.full(len(ids), is_sampled, np.int8)
        nodes.append(Node(i - 1 if i else NO_PARENT, (message,), is_sampled, NodeTokens(ids, mask)))
    return Trace(nodes)


FORMAT = Format(
    name="dialogue",
    fields="dialogue[speaker, words, sequence]",
    has_logprobs=False,
    has_branches=False,
    example='{"key": "a", "dialogue": []}',
    matches=_matches,
    parse=_parse,
    holds_ids=_matches,
    token_id_keys=frozenset({"dialogue"}),
    id_keys=("key",),
)
"""
RECORD = {
    "key": "first",
    "dialogue": [
        {"speaker": "human", "words": "Hi", "sequence": [3, 4, 5]},
        {"speaker": "machine", "words": "Hello", "sequence": [6, 7]},
    ],
}
Command = Callable[..., Result]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Run a command in this process, which has the new format."""
    (tmp_path / "dialogue_format.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(FORMATS, "dialogue", "dialogue_format:FORMAT")  # type: ignore[arg-type]

    def run(*arguments: object) -> Result:
        found = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return found

    yield run
    load_format.cache_clear()
    sys.modules.pop("dialogue_format", None)


@pytest.fixture(params=["jsonl", "parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of one record in the new format."""
    found = tmp_path / f"records.{request.param}"
    if request.param == "parquet":
        pl.DataFrame([RECORD]).write_parquet(found)
    else:
        found.write_text(json.dumps(RECORD) + "\n")
    return found


def test_every_command_reads_it(command: Command, path: Path, tiny_model: Path, tmp_path: Path) -> None:
    command("render", path, "-m", tiny_model, "-o", tmp_path / "tokens")
    tokens = pl.read_parquet(tmp_path / "tokens/tokens/*.parquet")
    assert tokens["conversation_id"].unique().to_list() == ["first"]
    assert tokens["token_id"].to_list() == [3, 4, 5, 6, 7]
    assert tokens["is_sampled"].to_list() == [False] * 3 + [True] * 2
    settings = json.loads((tmp_path / "tokens/manifest.json").read_text())["settings"]
    assert settings["input_format"] == "dialogue"

    stats = json.loads(command("stats", path, "--format", "json").stdout)
    assert (stats["input_format"], stats["input"], stats["output"]) == ("dialogue", 3, 2)
    plan = json.loads(
        command(
            "logprobs", path, "-m", tiny_model, "-o", tmp_path / "scores", "--dry-run", "--format", "json"
        ).stdout
    )
    assert plan["n_logical_tokens"] == 5
    found = json.loads(command("drift", path, "-m", tiny_model, "--format", "json").stdout)
    assert found["n_same"] + found["n_drifted"] == 1


def test_it_is_listed(command: Command) -> None:
    listed = json.loads(command("formats", "--format", "json").stdout)
    assert [row["has_ids"] for row in listed if row["name"] == "dialogue"] == [True]
