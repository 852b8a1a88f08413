"""Rendering from Python, and the tables of a dataset as frames."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from tokscore.cli.app import app
from tokscore.dataset import schema as tables
from tokscore.rendering import ConversationError, InputError, UsageError, load_table, load_tokens, render

Record = dict[str, Any]


def record(name: str, *texts: str) -> Record:
    roles = ("user", "assistant")
    return {
        "id": name,
        "messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)],
    }


RECORDS = [record("a", "Hi", "Yo!"), record("b", "Why?", "So.", "Oh", "Yes"), record("c", "Só\u200d", "🎉")]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """One file a record."""
    (tmp_path / "in").mkdir()
    for each in RECORDS:
        (tmp_path / "in" / f"{each['id']}.jsonl").write_text(json.dumps(each) + "\n")
    return tmp_path / "in"


def test_records_paths_patterns_and_the_command_give_the_same_tokens(
    tiny_model: Path, files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tokens"
    pattern = str(files / "*.jsonl")
    finished = CliRunner().invoke(app, ["render", pattern, "-m", str(tiny_model), "-o", str(out)])
    assert finished.exit_code == 0, finished.output
    expected = pl.read_parquet(out / "tokens" / "*.parquet")
    assert expected["conversation_id"].n_unique() == len(RECORDS)
    for source in (pattern, sorted(files.iterdir()), RECORDS, iter(RECORDS)):
        assert_frame_equal(load_tokens(render(source, tiny_model)), expected)
    for table in ("spans", "messages", "vocabulary"):
        assert_frame_equal(load_table(out, table), load_table(render(RECORDS, tiny_model), table))


def test_conversations_are_numpy_arrays(tiny_model: Path) -> None:
    dataset = render(RECORDS[0], tiny_model, add_generation_prompt=True)
    (found,) = dataset.conversations()
    frame = load_tokens(dataset)
    assert found.row.conversation_id == "a"
    np.testing.assert_array_equal(found.tokens.token_ids, frame["token_id"])
    np.testing.assert_array_equal(found.tokens.sampled_mask == 1, frame["is_sampled"])
    assert frame["message_index"][-1] == -1  # the generation prompt


def test_arrays_in_records_are_lists(tiny_model: Path) -> None:
    arrays = {"prompt_token_ids": np.arange(2, dtype=np.int32), "completion_token_ids": np.arange(2, 5)}
    arrays["logprobs"] = np.log(np.array([0.25, 0.5, 1.0], np.float32))
    lists = {name: array.tolist() for name, array in arrays.items()}
    frames = [load_tokens(render([each], tiny_model)) for each in (arrays, lists)]
    assert_frame_equal(*frames)
    assert frames[0]["token_id"].to_list() == [0, 1, 2, 3, 4]


def test_a_written_dataset_is_taken_as_it_is(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    render(RECORDS, tiny_model, out=out)
    written = next((out / "tokens").iterdir()).stat().st_mtime_ns
    assert render(RECORDS, tiny_model, out=str(out)).n_conversations() == len(RECORDS)
    assert next((out / "tokens").iterdir()).stat().st_mtime_ns == written


def test_columns_are_chosen_and_read_lazily(tiny_model: Path) -> None:
    dataset = render(RECORDS, tiny_model)
    whole = load_tokens(dataset)
    assert whole.columns == tables.TOKENS.names
    columns = ["token_id", "conversation_id"]
    assert_frame_equal(load_tokens(dataset, columns=columns), whole.select(columns))
    lazy = load_tokens(dataset, lazy=True)
    assert isinstance(lazy, pl.LazyFrame)
    assert_frame_equal(lazy.filter("is_sampled").collect(), whole.filter("is_sampled"))


def test_failures_are_raised_or_kept(tiny_model: Path) -> None:
    records = [RECORDS[0], {"messages": [{"role": 3, "content": ""}]}]
    with pytest.raises(ConversationError, match=r"records.jsonl:2: \$.messages\[0\].role"):
        render(records, tiny_model)
    dataset = render(records, tiny_model, on_error="skip")
    assert dataset.n_conversations() == 1
    assert [failure.source_line for failure in dataset.failures()] == [2]


def test_a_repeated_id_is_told(tiny_model: Path) -> None:
    told: list[str] = []
    dataset = render([RECORDS[0]] * 2, tiny_model, tell=told.append)
    assert load_table(dataset, "conversations")["conversation_id"].to_list() == ["a", "a#2"]
    assert told == ["warning: 1 conversation had an id that was taken: a is now a#2."]


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ([], {}, "there are no conversations"),
        ([3], {}, "record 1 is int"),
        ([RECORDS[0], "b.jsonl"], {}, "record 2 is str"),
        (["b.jsonl", RECORDS[0]], {}, "there is dict among the paths"),
        ({"messages": [{"role": "user", "content": {1, 2}}]}, {}, "record 1 cannot be written as JSON: it holds set"),
        (RECORDS, {"verify": "some"}, "`verify` is 'some'; expected sample, full, off"),
        (RECORDS, {"truncate": "left"}, "needs a length"),
        (RECORDS, {"truncate": "middle", "max_tokens": 5}, "expected error, left, right"),
        (RECORDS, {"max_tokens": 0}, "expected at least 1"),
        (RECORDS, {"template_kwargs": {"tokenize": True}}, "holds tokenize"),
        (RECORDS, {"on_error": "ignore"}, "expected fail, skip"),
        (RECORDS, {"tools": "no-such-file.json"}, "cannot read the tools"),
    ],
)  # fmt: skip
def test_wrong_usage_is_said(source: Any, settings: dict[str, Any], message: str, tiny_model: Path) -> None:
    with pytest.raises(UsageError, match=message):
        render(source, tiny_model, **settings)


def test_wrong_names_of_tables_and_columns_are_said(tiny_model: Path, tmp_path: Path) -> None:
    dataset = render(RECORDS[0], tiny_model)
    wrong: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: load_table(dataset, "turns"), UsageError, "no table 'turns'; expected tokens"),
        (lambda: load_tokens(dataset, columns=["logprob"]), UsageError, "no column 'logprob'"),
        (lambda: load_tokens(dataset, columns="token_id"), UsageError, r"such as \['token_id'\]"),
        (lambda: load_table(dataset, "scores"), InputError, "expected scores"),
        (lambda: load_tokens(tmp_path / "none"), InputError, "does not exist"),
        (lambda: render(dataset, tiny_model), UsageError, "is a dataset already"),
    ]
    for call, kind, message in wrong:
        with pytest.raises(kind, match=message):
            call()
