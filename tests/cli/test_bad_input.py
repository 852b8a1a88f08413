"""Every kind of bad input: exit code, message, and never a traceback."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]

GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
LONG = {"messages": [{"role": "user", "content": "x" * 300}]}


def refused(finished: subprocess.CompletedProcess[str], exit_code: int, *messages: str) -> None:
    assert "Traceback" not in finished.stderr
    for message in messages:
        assert message in finished.stderr
    assert finished.returncode == exit_code, finished.stderr
    assert finished.stdout == ""


@pytest.mark.parametrize("command", ["render", "logprobs"])
class TestRecords:
    def test_missing_file(self, tokscore: Run, tiny_model: Path, tmp_path: Path, command: str) -> None:
        finished = tokscore(command, tmp_path / "no.jsonl", "-m", tiny_model, "-o", tmp_path / "out")
        refused(finished, 3, "no.jsonl does not exist; expected a file of conversations")

    def test_empty_file(self, tokscore: Run, tiny_model: Path, tmp_path: Path, command: str) -> None:
        (tmp_path / "empty.jsonl").touch()
        finished = tokscore(command, tmp_path / "empty.jsonl", "-m", tiny_model, "-o", tmp_path / "out")
        refused(finished, 3, "empty.jsonl is empty; expected one conversation a line")

    def test_broken_json(
        self, tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path, command: str
    ) -> None:
        path = write_jsonl(GOOD, GOOD, '{"messages": [')
        finished = tokscore(command, path, "-m", tiny_model, "-o", tmp_path / "out")
        refused(finished, 3, "convs.jsonl:3: is not JSON", "--on-error skip")

    def test_messages_missing(
        self, tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path, command: str
    ) -> None:
        finished = tokscore(command, write_jsonl({"body": "x"}), "-m", tiny_model, "-o", tmp_path / "out")
        refused(
            finished,
            3,
            "convs.jsonl:1: $.messages is missing; expected a list of messages, found the keys body",
        )

    def test_role_is_no_string(
        self, tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path, command: str
    ) -> None:
        path = write_jsonl(GOOD, {"messages": [{"role": 7, "content": "x"}]})
        finished = tokscore(command, path, "-m", tiny_model, "-o", tmp_path / "out")
        refused(finished, 3, "convs.jsonl:2: $.messages[0].role is 7; expected a string")

    def test_unknown_model_directory(
        self, tokscore: Run, write_jsonl: Write, tmp_path: Path, command: str
    ) -> None:
        finished = tokscore(command, write_jsonl(GOOD), "-m", tmp_path / "no-model", "-o", tmp_path / "out")
        refused(finished, 3, "no-model does not exist; expected a model directory or a hub id")

    def test_unknown_hub_id(self, tokscore: Run, write_jsonl: Write, tmp_path: Path, command: str) -> None:
        finished = tokscore(command, write_jsonl(GOOD), "-m", "nobody/nothing", "-o", tmp_path / "out")
        refused(finished, 3, "nobody/nothing is no directory here and was not found on the hub")

    def test_model_without_template(
        self, tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path, command: str
    ) -> None:
        bare = tmp_path / "bare"
        bare.mkdir()
        for file in tiny_model.iterdir():
            (bare / file.name).write_bytes(file.read_bytes())
        config = json.loads((bare / "tokenizer_config.json").read_text())
        del config["chat_template"]
        (bare / "tokenizer_config.json").write_text(json.dumps(config))
        finished = tokscore(command, write_jsonl(GOOD), "-m", bare, "-o", tmp_path / "out")
        refused(finished, 3, "bare has no chat template; give one with --template FILE")

    def test_template_that_does_not_parse(
        self, tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path, command: str
    ) -> None:
        (tmp_path / "bad.jinja").write_text("{% for m in messages %}")
        finished = tokscore(
            command,
            write_jsonl(GOOD),
            "-m",
            tiny_model,
            "-o",
            tmp_path / "out",
            "--template",
            tmp_path / "bad.jinja",
        )
        refused(finished, 3, "the chat template does not parse: line 1")

    def test_output_holds_something_else(
        self, tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path, command: str
    ) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine.txt").touch()
        finished = tokscore(command, write_jsonl(GOOD), "-m", tiny_model, "-o", tmp_path / "out")
        refused(finished, 2, "is not empty and holds no dataset")
        assert (tmp_path / "out" / "mine.txt").exists()

    def test_output_holds_another_run(
        self, tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path, command: str
    ) -> None:
        path = write_jsonl(GOOD)
        assert tokscore(command, path, "-m", tiny_model, "-o", tmp_path / "out").returncode == 0
        write_jsonl(GOOD, GOOD)
        finished = tokscore(command, path, "-m", tiny_model, "-o", tmp_path / "out")
        refused(
            finished,
            2,
            "holds another run: it was made from other input than convs.jsonl, or that changed since",
        )

    def test_on_error_skip_keeps_the_rest(
        self, tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path, command: str
    ) -> None:
        path = write_jsonl(GOOD, '{"messages": [', GOOD, {"messages": []}, {"messages": [{"role": None}]})
        finished = tokscore(command, path, "-m", tiny_model, "-o", tmp_path / "out", "--on-error", "skip")
        assert finished.returncode == 0, finished.stderr
        assert "3 conversations failed, listed in" in finished.stderr
        kept = pl.read_parquet(tmp_path / "out/conversations/*.parquet")["source_line"].to_list()
        assert kept == [1, 3]
        errors = [
            json.loads(line) for line in (tmp_path / "out/errors/part-00000.jsonl").read_text().splitlines()
        ]
        assert [(error["source_line"], error["path"]) for error in errors] == [
            (2, "$"),
            (4, "$.messages"),
            (5, "$.messages[0].role"),
        ]

    def test_nothing_but_bad_records_is_bad_input(
        self, tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path, command: str
    ) -> None:
        path = write_jsonl({}, {})
        finished = tokscore(command, path, "-m", tiny_model, "-o", tmp_path / "out", "--on-error", "skip")
        refused(finished, 3, "none of the 2 conversations could be", "convs.jsonl:1: $.messages is missing")


def test_longer_than_the_model(tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path) -> None:
    path = write_jsonl(GOOD, LONG)
    finished = tokscore("logprobs", path, "-m", tiny_model, "-o", tmp_path / "out")
    refused(finished, 3, "convs.jsonl:2: has 308 tokens; the model's maximum is 256")
    finished = tokscore("logprobs", path, "-m", tiny_model, "-o", tmp_path / "out", "--on-error", "skip")
    assert finished.returncode == 0, finished.stderr
    assert pl.read_parquet(tmp_path / "out/conversations/*.parquet")["source_line"].to_list() == [1]


def test_wrong_template_kwargs(tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path) -> None:
    arguments = ("render", write_jsonl(GOOD), "-m", tiny_model, "-o", tmp_path / "out", "--template-kwargs")
    refused(tokscore(*arguments, "{"), 2, "--template-kwargs is not JSON")
    refused(tokscore(*arguments, "[]"), 2, "--template-kwargs is no object")


@pytest.fixture
def scores(tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path) -> Path:
    finished = tokscore("logprobs", write_jsonl(GOOD), "-m", tiny_model, "-o", tmp_path / "scores")
    assert finished.returncode == 0, finished.stderr
    return tmp_path / "scores"


def test_diff_of_different_tokens(
    tokscore: Run, tiny_model: Path, scores: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    changed: Any = json.loads(json.dumps(GOOD))
    changed["messages"][1]["content"] = "Hullo!"
    other = tmp_path / "other"
    tokscore("logprobs", write_jsonl(changed), "-m", tiny_model, "-o", other)
    finished = tokscore("diff", scores, other)
    refused(finished, 3, "convs.jsonl:1", "position")


def test_diff_of_what_is_no_dataset(tokscore: Run, scores: Path, tmp_path: Path) -> None:
    refused(tokscore("diff", scores, tmp_path / "nothing"), 2, "nothing is none; expected two score datasets")
    (tmp_path / "empty").mkdir()
    refused(tokscore("diff", tmp_path / "empty", scores), 3, "has neither manifest.json nor config.json")


def test_diff_of_a_token_dataset(
    tokscore: Run, tiny_model: Path, scores: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    tokscore("render", write_jsonl(GOOD), "-m", tiny_model, "-o", tmp_path / "tokens")
    refused(tokscore("diff", scores, tmp_path / "tokens"), 3, "is a dataset of tokens; expected scores")


@pytest.mark.parametrize("alpha", ["0", "1", "2", "nan"])
def test_alpha_outside_its_range(tokscore: Run, scores: Path, alpha: str) -> None:
    refused(tokscore("diff", scores, scores, "--alpha", alpha), 2, "alpha")


def test_a_dataset_with_missing_parts(tokscore: Run, scores: Path) -> None:
    (scores / "scores" / "part-00000.parquet").unlink()
    refused(tokscore("stats", scores), 3, "is not finished: 1 of 1 part is missing")


@pytest.mark.slow
def test_options_that_do_not_fit_a_token_dataset(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    tokscore("render", write_jsonl(GOOD), "-m", tiny_model, "-o", tmp_path / "tokens")
    finished = tokscore(
        "logprobs", tmp_path / "tokens", "-m", tiny_model, "-o", tmp_path / "out", "--add-generation-prompt"
    )
    refused(finished, 2, "is rendered already")
    refused(
        tokscore("render", tmp_path / "tokens", "-m", tiny_model, "-o", tmp_path / "out"),
        2,
        "is a dataset already",
    )


def test_a_token_dataset_of_another_tokenizer(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    other = tmp_path / "other-model"
    other.mkdir()
    for file in tiny_model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert tokscore("render", write_jsonl(GOOD), "-m", other, "-o", tmp_path / "tokens").returncode == 0
    finished = tokscore("logprobs", tmp_path / "tokens", "-m", tiny_model, "-o", tmp_path / "scores")
    refused(
        finished, 3, "was rendered with the tokenizer of other-model, and tiny has another: id", "'A'", "'B'"
    )


@pytest.mark.parametrize("name", ["messages", "tools", "tokenize", "add_generation_prompt", "self"])
def test_template_kwargs_that_are_no_variables(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path, name: str
) -> None:
    path = write_jsonl(GOOD, {**GOOD, "chat_template_kwargs": {name: 1}})
    arguments = ("render", path, "-m", tiny_model, "-o", tmp_path / "out")
    refused(
        tokscore(*arguments, "--template-kwargs", json.dumps({name: 1})), 2, f"--template-kwargs holds {name}"
    )
    refused(tokscore(*arguments), 3, f"convs.jsonl:2: $.chat_template_kwargs.{name} is not for templates")


def test_a_run_in_which_all_failed_fails_again(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    arguments = ("render", write_jsonl({}), "-m", tiny_model, "-o", tmp_path / "out")
    for _ in range(2):
        refused(tokscore(*arguments, "--on-error", "skip"), 3, "the only conversation could not be rendered")


def test_a_failed_attempt_leaves_the_directory_free(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    assert tokscore("render", write_jsonl({}), "-m", tiny_model, "-o", tmp_path / "out").returncode == 3
    assert tokscore("render", write_jsonl(GOOD), "-m", tiny_model, "-o", tmp_path / "out").returncode == 0


@pytest.mark.parametrize("table", ["messages", "conversations", "spans"])
@pytest.mark.slow
def test_a_dataset_whose_small_tables_are_damaged(tokscore: Run, scores: Path, table: str) -> None:
    part = scores / table / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    refused(tokscore("diff", scores, scores), 3, f"{table}/part-00000.parquet is no whole Parquet file")
    part.unlink()
    refused(tokscore("stats", scores), 3, f"{table}/part-00000.parquet is missing")


def test_a_changed_byte_is_noticed(tokscore: Run, tiny_model: Path, scores: Path) -> None:
    import pyarrow.parquet as pq

    part = scores / "scores" / "part-00000.parquet"
    group = pq.read_metadata(part).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    column = next(each for each in columns if each.path_in_schema == "logprob")
    damaged = bytearray(part.read_bytes())
    damaged[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    part.write_bytes(bytes(damaged))
    finished = tokscore("diff", scores, scores)
    assert finished.returncode != 0
    assert "Traceback" not in finished.stderr


def test_an_output_that_cannot_be_written(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    path = write_jsonl(GOOD)
    refused(tokscore("render", path, "-m", tiny_model, "-o", path / "x"), 1, "Not a directory")
    refused(tokscore("render", path, "-m", tiny_model, "-o", path), 2, "is a file; expected a directory")


def test_an_array_that_is_cut_off(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    whole = json.dumps([GOOD, {**GOOD, "id": "second"}])
    path = write_jsonl(whole[:-20])
    finished = tokscore("render", path, "-m", tiny_model, "-o", tmp_path / "out")
    refused(finished, 3, "convs.jsonl:2: is not JSON")
    refused(tokscore("render", write_jsonl("["), "-m", tiny_model, "-o", tmp_path / "out"), 3, "convs.jsonl")


def test_a_broken_generation_config(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    for text in ("{", "[]", '{"eos_token_id": "x"}'):
        (broken / "generation_config.json").write_text(text)
        finished = tokscore("render", write_jsonl(GOOD), "-m", broken, "-o", tmp_path / "out")
        refused(finished, 3, "generation_config.json")
