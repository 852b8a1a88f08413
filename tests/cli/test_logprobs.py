"""The options of `tokscore logprobs`, in this process, and what signals do to a real one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from tokscore.cli.app import app
from tokscore.cli.options.settings import parse_arguments
from tokscore.cli.printing.option_names import as_options
from tokscore.cli.printing.progress import duration
from tokscore.cli.printing.tables import size_in_words
from tokscore.dataset.errors import TokscoreError, UsageError
from tokscore.dataset.manifest import read_manifest
from tokscore.dataset.reading import Dataset

Write = Callable[..., Path]
RECORDS = [
    {"messages": [{"role": "user", "content": f"Hi {i}"}, {"role": "assistant", "content": "Hello!"}]}
    for i in range(4)
]


def logprobs(*arguments: str | Path) -> Result:
    """Run the command here; expected failures become its standard error, as `main` prints them."""
    result = CliRunner().invoke(app, ["logprobs", *map(str, arguments), "--engine", "transformers"])
    if result.exception is not None and not isinstance(result.exception, TokscoreError | SystemExit):
        raise result.exception
    return result


def test_groups_that_are_none_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    result = logprobs("no.jsonl", "-m", "no-model", "-o", tmp_path / "out", "--by", "role,colour")
    assert isinstance(result.exception, UsageError)
    assert "cannot group by 'colour'" in str(result.exception)


def test_only_sampled_tokens_of_short_conversations(
    tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 90}, {"role": "assistant", "content": "y"}]}
    out = tmp_path / "out"
    result = logprobs(
        *(write_jsonl(*RECORDS, RECORDS[0], long), "-m", tiny_model, "-o", out, "--on-error", "skip"),
        *("--score", "sampled", "--max-length", "80", "--batch-tokens", "64", "--head-dtype", "model"),
        *("--by", "role", "--by", "is_sampled"),
    )
    assert result.exit_code == 0, result.stderr
    assert "assistant, true" in result.stdout
    rows = pl.read_parquet(out / "scores/*.parquet")
    assert rows["logprob"].is_not_null().equals(rows["is_sampled"].alias("logprob"))
    settings = read_manifest(out).settings
    assert (settings["score"], settings["max_length"], settings["head_dtype"]) == ("sampled", 80, "model")
    assert [f.reason for f in Dataset(out).failures()] == ["has 112 tokens; `max_length` is 80."]
    n_written, n_read = rows.height, rows.height // 5 * 4
    assert "engine: device cpu, batch tokens 64" in result.stderr
    assert f"{n_written:,} tokens, {rows['is_sampled'].sum()} with scores; of " in result.stderr
    computed = re.search(r"of 155 logical and 97 unique tokens the engine computed (\d+) in", result.stderr)
    assert computed is not None
    assert 97 <= int(computed[1]) <= n_read, "equal records are scored once, and beginnings too"
    assert "s writing." in result.stderr
    # diff skips what neither dataset has.
    compared = CliRunner().invoke(app, ["diff", str(out), str(out), "--format", "json"])
    total = json.loads(compared.stdout)["total"]
    assert total["n_unscored"] == (~rows["is_sampled"]).sum()
    assert total["log_ratio"] == 0


def test_shards_one_after_the_other_and_the_statistics_at_the_end(
    tiny_model: Path, write_jsonl: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokscore.rendering import inputs as opening
    from tokscore.rendering.reading import plan

    monkeypatch.setattr(
        opening, "plan_files", lambda inputs, *_, **_more: plan.plan_files(inputs, part_bytes=120)
    )
    given = (write_jsonl(*RECORDS), "-m", tiny_model, "-o", tmp_path / "out")
    first = logprobs(*given, "--shard", "2/3")
    assert first.exit_code == 0, first.stderr
    assert first.stdout == ""
    n_parts = len(read_manifest(tmp_path / "out").parts)
    assert n_parts == 2
    assert "shard 2/3 is done (1 part); 1 part of other shards is missing still." in first.stderr

    # What is done tells what the rest takes.
    plan_of = json.loads(logprobs(*given, "--dry-run", "--format", "json").stdout)
    assert plan_of["n_parts_open"] == 1
    assert plan_of["is_measured"]
    assert plan_of["elapsed_s"] == pytest.approx(plan_of["n_tokens_to_compute"] / plan_of["tokens_per_s"])

    nothing = logprobs(*given, "--shard", "3/3")
    assert nothing.exit_code == 0
    assert "shard 3/3 has nothing to do: there are only 2 parts." in nothing.stderr
    last = logprobs(*given, "--shard", "1/3")
    assert last.exit_code == 0, last.stderr
    assert "assistant" in last.stdout
    assert Dataset(tmp_path / "out").n_conversations() == 4


def test_a_plan_without_parts_takes_the_bytes_from_the_schema(
    tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    records = write_jsonl(*RECORDS, RECORDS[1])
    given = (records, "-m", tiny_model, "-o", tmp_path / "out", "--dry-run", "--top-k", "20")
    plan = json.loads(logprobs(*given, "--format", "json", "--tokens-per-s", "8").stdout)
    assert not plan["is_measured"]
    # 5 whole numbers, 3 flags, and floats or whole numbers of the scores and 20 alternatives.
    assert plan["output_bytes"] == round(plan["n_logical_tokens"] * (5 * 4 + 3 / 8 + 8 + 12 + 20 * 8))
    # What the records share is computed once, unless that is off.
    assert plan["n_unique_tokens"] < plan["n_whole_tokens"] < plan["n_logical_tokens"]
    assert plan["n_tokens_to_compute"] == plan["n_unique_tokens"]
    assert plan["elapsed_s"] == plan["n_unique_tokens"] / 8
    assert plan["elapsed_s_on"] == {"1": plan["elapsed_s"], "8": plan["elapsed_s"], "64": plan["elapsed_s"]}
    assert plan["load_s"] is None
    apart = json.loads(logprobs(*given, "--sharing", "off", "--format", "json", "--tokens-per-s", "8").stdout)
    assert apart["elapsed_s"] == plan["n_whole_tokens"] / 8
    assert "no time can be told before a part is done; --probe measures a rate" in logprobs(*given).stderr
    probed = logprobs(*given, "--probe", "--score", "role=nobody").stderr
    assert "no time can be told before a part is done; --tokens-per-s N assumes a rate" in probed
    assert not (tmp_path / "out").exists()
    nowhere = (*given[:3], *given[5:])
    assert json.loads(logprobs(*nowhere, "--format", "json", "--tokens-per-s", "8").stdout) == plan
    refused = logprobs(*given[:3]).exception
    assert isinstance(refused, UsageError)
    assert str(refused).startswith("there is nowhere to write: give -o DIR")


def test_a_probe_measures_the_rate_and_the_bytes_and_leaves_nothing(
    tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    records = write_jsonl(*({**RECORDS[1], "id": f"r{i}"} for i in range(4)))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    given = (records, "-m", tiny_model, "-o", tmp_path / "out", "--engine", "transformers", "--dry-run")
    probed = logprobs(*given, "--probe", "--scratch", scratch, "--format", "json")
    assert probed.exit_code == 0, probed.exception
    plan = json.loads(probed.stdout)
    assert plan["tokens_per_s"] > 0
    assert plan["load_s"] > 0
    assert plan["is_measured"]
    assert plan["elapsed_s"] == pytest.approx(plan["n_tokens_to_compute"] / plan["tokens_per_s"])
    assert plan["elapsed_s_on"]["64"] == pytest.approx(plan["load_s"] + plan["elapsed_s"]), "one part"
    assert not (tmp_path / "out").exists()
    assert [*scratch.iterdir()] == []
    said = logprobs(*given, "--tokens-per-s", "8").stderr
    assert "with replicas that each have that rate: " in said
    refused = logprobs(*given, "--probe", "--tokens-per-s", "8").exception
    assert isinstance(refused, UsageError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--score", "everything"], "--score is 'everything'; expected all, sampled, content, role=ROLE"),
        (["--shard", "0/4"], "--shard is '0/4'; expected I/N"),
        (["--head-dtype", "int8"], "'int8' is not one of 'auto', 'model', 'float32'"),
        (["--engine-path", "slow"], "'slow' is not one of 'auto', 'fused', 'tensors', 'flat'"),
        (["--engine-arg", "max_num_seqs"], "expected NAME=VALUE"),
        (
            ["--engine-arg", "max_num_seqs=4"],
            "--engine-arg max_num_seqs is for vllm and server; the engine is transformers",
        ),
        (["--tensor-parallel-size", "0"], "--tensor-parallel-size"),
        (["--max-length", "0"], "--max-length"),
        (["--batch-tokens", "0"], "--batch-tokens"),
    ],
)
def test_unknown_values_are_wrong_usage(
    tiny_model: Path, write_jsonl: Write, tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = logprobs(write_jsonl(RECORDS[0]), "-m", tiny_model, "-o", tmp_path / "out", *arguments)
    if isinstance(result.exception, UsageError):
        assert message in as_options(str(result.exception))
    else:
        assert result.exit_code == 2
        assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_engine_arguments_are_json_otherwise_text() -> None:
    found = parse_arguments(
        ["max-num-seqs=64", "enforce_eager=true", "load_format=dummy", 'a={"b": [1]}', "c=x=y"]
    )
    assert found == {
        "max_num_seqs": 64,
        "enforce_eager": True,
        "load_format": "dummy",
        "a": {"b": [1]},
        "c": "x=y",
    }
    with pytest.raises(UsageError, match="max_num_seqs is given twice"):
        parse_arguments(["max_num_seqs=64", "max-num-seqs=65"])


def test_times_and_sizes_are_printed_in_their_units() -> None:
    assert [duration(s) for s in (0.4, 99, 150, 7_500)] == ["0 s", "99 s", "2 min", "2 h 5 min"]
    assert [size_in_words(n) for n in (999, 1_500, 2_000_000, 3 * 10**15)] == [
        "999 B",
        "1.5 kB",
        "2.0 MB",
        "3,000.0 TB",
    ]


def test_progress_is_a_line_every_30_seconds_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokscore.cli.printing import progress as output

    times = iter([0.0, 60.0, 85.0, 110.0, 130.0, 140.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(times))
    with output.ProgressLine("scoring", None, "tokens") as line:
        # The engine takes a minute to start, which is no part of the rate.
        for done in (0, 500, 1_000, 1_500, 1_600):
            line.update(done, done, 9_000)
    assert capsys.readouterr().err.splitlines() == [
        "scoring: 0/9,000 tokens, 0 tokens/s",
        "scoring: 1,000/9,000 tokens, 20 tokens/s, 7 min left",
        "scoring: 1,600/9,000 tokens, 20 tokens/s, 6 min left",
    ]


def test_reading_shows_before_scoring_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokscore.cli.printing import progress as output

    times = iter([0.0, 40.0, 50.0, 50.0, 90.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(times))
    with output.ProgressLine("reading", 30, "conversations") as line:
        line.update(10, 4_000)
        line.turn_to("scoring", 12_000, "tokens")
        line.update(0, 0)
        line.update(8_000, 8_000)
    assert capsys.readouterr().err.splitlines() == [
        "reading: 10/30 conversations, 100 tokens/s, 80 s left",
        "scoring: 8,000/12,000 tokens, 200 tokens/s, 20 s left",
    ]


@pytest.mark.parametrize(("signal_number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.slow
def test_a_signal_leaves_finished_parts_and_no_temporary_files(
    tiny_model: Path, write_jsonl: Write, tmp_path: Path, signal_number: int, code: int
) -> None:
    # Each file is a part: the first is done at once, the second takes a while.
    out = tmp_path / "out"
    small = write_jsonl(RECORDS[0], name="small.jsonl")
    text = "z" * 200
    large = write_jsonl(
        *({"messages": [{"role": "user", "content": f"{i} {text}"}]} for i in range(1_500)),
        name="large.jsonl",
    )
    command = [sys.executable, "-m", "tokscore.cli.main", "logprobs", small, large, "-m", tiny_model]
    process = subprocess.Popen(
        [*map(str, command), "-o", str(out), "--engine", "transformers", "--verify", "off", "--top-k", "259"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    try:
        while not (out / "scores/part-00000.parquet").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(signal_number)
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, stderr
    assert stdout == ""
    assert "stopped: 1 of 2 parts are done; run it again for the others." in stderr
    assert "Traceback" not in stderr
    assert not [path for path in out.rglob(".*") if path.is_file()]
    assert [path.name for path in (out / "scores").iterdir()] == ["part-00000.parquet"]
