"""`--messages`, and what `render` says of messages that were changed or not printed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tokscore.dataset.manifest import read_manifest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SAMPLE = Path(__file__).parents[1] / "data" / "tau_airline_sample.jsonl"


@pytest.mark.slow
def test_published_trajectories_render_with_notes_of_what_was_changed(
    tokscore: Run, qwen3: Path, tmp_path: Path
) -> None:
    finished = tokscore("render", SAMPLE, "-m", qwen3, "-o", tmp_path / "out", "--format", "json")
    assert finished.returncode == 0, finished.stderr
    records = [json.loads(line)["messages"] for line in SAMPLE.read_text().splitlines()]
    n_null = sum(message["content"] is None for messages in records for message in messages)
    assert json.loads(finished.stdout)["changed"] == {"empty_content_added": n_null}
    assert f"as servers show them: empty_content_added {n_null}" in finished.stderr
    assert read_manifest(tmp_path / "out").settings["messages"] == "auto"
    flags = pl.read_parquet(tmp_path / "out/messages/*.parquet").filter(
        pl.col("flags").list.contains("empty_content_added")
    )
    assert len(flags) == n_null


def test_as_is_refuses_them_and_says_what_works(tokscore: Run, qwen3: Path, tmp_path: Path) -> None:
    finished = tokscore("render", SAMPLE, "-m", qwen3, "-o", tmp_path / "out", "--messages", "as-is")
    assert finished.returncode == 3
    assert "].content is missing" in finished.stderr
    assert "--messages auto" in finished.stderr


def test_keys_that_were_not_printed_are_counted_by_name(
    tokscore: Run, tiny_model: Path, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    call = {"name": "f", "arguments": "{}"}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "function_call": call},
    ]
    path = write_jsonl(
        {"messages": [*messages, {**messages[1], "re\x1bfusal": "no"}]}, {"messages": messages}
    )
    finished = tokscore("render", path, "-m", tiny_model, "-o", tmp_path / "out", "--format", "json")
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["not_printed"] == {"function_call": 3, "re\x1bfusal": 1}
    assert "function_call of 3 messages was not printed." in finished.stderr
    assert "re\\x1bfusal of 1 message was not printed." in finished.stderr


@pytest.mark.slow
def test_where_all_keys_are_is_said_to_whoever_does_not_look_there(
    tokscore: Run, tiny_model: Path, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    many = {f"key{n}": "text" for n in range(12)}
    path = write_jsonl({"messages": [{"role": "user", "content": "q", **many}]})
    given = ("render", path, "-m", tiny_model, "-o", tmp_path / "out")
    here = "2 more keys not printed; standard output has all."
    there = "2 more keys not printed; --format json without --by has all."
    assert here in tokscore(*given, "--format", "json").stderr
    assert there in tokscore(*given).stderr
    assert there in tokscore(*given, "--format", "json", "--by", "message").stderr


def test_mistyped_roles_are_named_with_their_counts_and_the_first_place(
    tokscore: Run, tiny_model: Path, tmp_path: Path
) -> None:
    def record(*roles: str) -> str:
        return json.dumps({"messages": [{"role": role, "content": "hi"} for role in roles]}) + "\n"

    (tmp_path / "a.jsonl").write_text(record("user", "assistant") + record("user", "asistant", "narrator"))
    (tmp_path / "b.jsonl").write_text(record("sytem", "user", "asistant"))
    command = ("render", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "-m", tiny_model, "-o", tmp_path / "out")
    said = (
        "warning: 3 messages have roles that no chat format uses: asistant (2; assistant?), sytem (1; system?). "
        "The first is message 1 of a.jsonl:2."
    )
    finished = tokscore(*command)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count(said) == 1
    in_json = tokscore(*command, "--format", "json")
    assert in_json.stderr.count(said) == 1
    assert json.loads(in_json.stdout)["meant_roles"] == {"asistant": "assistant", "sytem": "system"}
    # What was there counts as what is made now.
    part_of_b = max((tmp_path / "out" / "tokens").iterdir())
    part_of_b.unlink()
    assert tokscore(*command).stderr.count(said) == 1
    own = tmp_path / "own.jinja"
    own.write_text(
        "{% for m in messages if m.role in ['user', 'asistant', 'sytem'] %}{{ m.content }}{% endfor %}"
    )
    known = tokscore(*command[:-1], tmp_path / "known", "--template", own)
    assert known.returncode == 0, known.stderr
    assert "no chat format" not in known.stderr
