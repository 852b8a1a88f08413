from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

from tokscore.dataset import schema as tables

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]


@pytest.fixture
def rendered(tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path) -> Path:
    path = write_jsonl(
        {
            "id": "a",
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "Hi 你好"},
                {"role": "assistant", "content": "Hello!"},
            ],
            "metadata": {"reward": 1},
        },
        {"messages": [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "No."}]},
    )
    out = tmp_path / "tokens"
    finished = tokscore("render", path, "-m", tiny_model, "-o", out)
    assert finished.returncode == 0, finished.stderr
    return out


def test_tables_have_the_documented_columns(rendered: Path) -> None:
    for folder, schema in {
        "tokens": tables.TOKENS,
        "spans": tables.SPANS,
        "messages": tables.MESSAGES,
        "conversations": tables.CONVERSATIONS,
    }.items():
        found = pq.read_schema(rendered / folder / "part-00000.parquet")
        assert found.equals(schema), folder
        assert found.metadata[b"tokscore.plan_hash"]
    assert pq.read_schema(rendered / "vocab.parquet").equals(tables.VOCABULARY)


def test_spans_tile_every_conversation_and_counts_add_up(rendered: Path) -> None:
    spans = pl.read_parquet(rendered / "spans/*.parquet")
    tokens = pl.read_parquet(rendered / "tokens/*.parquet")
    messages = pl.read_parquet(rendered / "messages/*.parquet")
    conversations = pl.read_parquet(rendered / "conversations/*.parquet")
    assert conversations["conversation_id"].to_list() == ["a", "convs.jsonl:2"]
    assert json.loads(conversations["metadata"][0]) == {"reward": 1}
    for row in conversations.iter_rows(named=True):
        mine = spans.filter(pl.col("conversation_id") == row["conversation_id"])
        assert mine["start"].to_list() == [0, *mine["stop"].to_list()[:-1]]
        assert mine["stop"][-1] == row["n_tokens"]
        counted = messages.filter(pl.col("conversation_id") == row["conversation_id"])
        assert counted["n_tokens"].sum() + row["n_no_message"] == row["n_tokens"]
        assert counted["n_sampled"].sum() == row["n_sampled"]
        assert counted["n_content"].sum() == row["n_content"]
        positions = tokens.filter(pl.col("conversation_id") == row["conversation_id"])["position"]
        assert positions.to_list() == list(range(row["n_tokens"]))
        assert tokens["conversation_id"][row["first_row"]] == row["conversation_id"]


def test_the_vocabulary_gives_the_bytes_of_every_token(rendered: Path) -> None:
    vocabulary = dict(pl.read_parquet(rendered / "vocab.parquet").select("token_id", "bytes").iter_rows())
    tokens = pl.read_parquet(rendered / "tokens/*.parquet").filter(pl.col("conversation_id") == "a")
    text = b"".join(vocabulary[token] for token in tokens["token_id"]).decode()
    assert text == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi 你好<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
    )


def test_content_and_sampled_tokens_are_what_they_should_be(rendered: Path) -> None:
    vocabulary = dict(pl.read_parquet(rendered / "vocab.parquet").select("token_id", "bytes").iter_rows())
    tokens = pl.read_parquet(rendered / "tokens/*.parquet").filter(pl.col("conversation_id") == "a")

    def text(condition: pl.Expr) -> str:
        return b"".join(vocabulary[token] for token in tokens.filter(condition)["token_id"]).decode()

    assert text(pl.col("is_content")) == "Be kind.Hi 你好Hello!"
    assert text(pl.col("is_sampled")) == "Hello!<|im_end|>"
    assert text(pl.col("role") == "user") == "<|im_start|>user\nHi 你好<|im_end|>\n"


def test_parquet_opens_in_polars_duckdb_and_pandas(rendered: Path) -> None:
    n = pl.scan_parquet(rendered / "tokens/*.parquet").select(pl.len()).collect().item()
    assert duckdb.sql(f"select count(*) from '{rendered}/tokens/*.parquet'").fetchall() == [(n,)]
    assert len(pd.read_parquet(rendered / "tokens")) == n


def test_the_summary_counts_tokens_by_role_and_message(
    tokscore: Run, rendered: Path, tiny_model: Path, tmp_path: Path
) -> None:
    again = tokscore("render", tmp_path / "convs.jsonl", "-m", tiny_model, "-o", rendered, "--format", "json")
    assert "was complete already, there was nothing to do." in again.stderr
    summary = json.loads(again.stdout)
    tokens = pl.read_parquet(rendered / "tokens/*.parquet")
    assert {row["role"]: row["n_tokens"] for row in summary["by_role"]} == {
        "system": tokens.filter(pl.col("role") == "system").height,
        "user": tokens.filter(pl.col("role") == "user").height,
        "assistant": tokens.filter(pl.col("role") == "assistant").height,
        "(no message)": 0,
    }
    assert sum(row["n_tokens"] for row in summary["by_message"]) == tokens.height
    assert [row["flags"] for row in summary["by_message"]][3] == ["control_tokens_in_content"]


def test_standard_input_is_read(tokscore: Run, tiny_model: Path, conversation: Any, tmp_path: Path) -> None:
    line = json.dumps({"messages": conversation["messages"]}).encode()
    finished = tokscore("render", "-", "-m", tiny_model, "-o", tmp_path / "out", stdin=line)
    assert finished.returncode == 0, finished.stderr
    assert pl.read_parquet(tmp_path / "out/conversations/*.parquet")["conversation_id"].to_list() == [
        "stdin:1"
    ]


def test_a_dry_run_writes_nothing(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, conversation: Any, tmp_path: Path
) -> None:
    path = write_jsonl(conversation)
    finished = tokscore(
        "render", path, "-m", tiny_model, "-o", tmp_path / "out", "--dry-run", "--format", "json"
    )
    plan = json.loads(finished.stdout)
    assert plan["inputs"] == [{"input": "convs.jsonl", "size_bytes": path.stat().st_size, "n_parts": 1}]
    assert (plan["n_conversations"], plan["n_sequences"], plan["is_exact"]) == (1, 1, True)
    assert plan["n_logical_tokens"] == plan["n_unique_tokens"] > 0
    assert not (tmp_path / "out").exists()


def test_repeated_ids_are_renamed_with_a_warning(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, conversation: Any, tmp_path: Path
) -> None:
    finished = tokscore(
        "render", write_jsonl(conversation, conversation), "-m", tiny_model, "-o", tmp_path / "out"
    )
    assert "warning: 1 conversation had an id that was taken: greeting is now greeting#2." in finished.stderr


@pytest.mark.slow
def test_workers_do_not_change_the_dataset(
    tokscore: Run, tiny_model: Path, tmp_path: Path, write_jsonl: Write
) -> None:
    record = {"messages": [{"role": "user", "content": "hi"}], "metadata": {"padding": "x" * 2**20}}
    path = write_jsonl(*[record] * 17)
    for workers in ("1", "2"):
        finished = tokscore("render", path, "-m", tiny_model, "-o", tmp_path / workers, "--workers", workers)
        assert finished.returncode == 0, finished.stderr
    one, two = (pq.read_table(tmp_path / workers / "spans") for workers in ("1", "2"))
    assert len(list((tmp_path / "2" / "tokens").iterdir())) == 5
    assert one.equals(two)
    # Workers that start anew import the main module of a script, and not that of a package.
    out = tmp_path / "module"
    command = [
        sys.executable,
        "-m",
        "tokscore",
        "render",
        path,
        "-m",
        tiny_model,
        "-o",
        out,
        "--workers",
        "2",
    ]
    module = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert module.returncode == 0, module.stderr
    assert pq.read_table(out / "spans").equals(one)
    assert module.stderr == finished.stderr.replace(str(tmp_path / "2"), str(out))


def test_the_module_says_how_the_command_is_used(tokscore: Run, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tokscore", "render", "--nope"]
    module = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert module.returncode == 2
    assert module.stderr == tokscore("render", "--nope").stderr
    assert module.stderr.startswith("Usage: tokscore render [OPTIONS]")
