"""`--url`: commands that score through a server, in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from tests.scoring.engines.server.served import Model, Served, load, serving
from tokscore.cli.app import app
from tokscore.dataset.errors import EngineError, TokscoreError, UsageError

Write = Callable[..., Path]
Serve = Callable[..., tuple[Served, str]]
KEY = "sk-qT7-never-seen"
RECORDS = [
    {"messages": [{"role": "user", "content": f"Hi {i}"}, {"role": "assistant", "content": "Hello!"}]}
    for i in range(6)
]
FAST = ("--engine-arg", "retry_s=0.5")


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Model:
    return load(tiny_model)


@pytest.fixture
def serve(tiny: Model) -> Iterator[Serve]:
    with ExitStack() as stack:

        def started(kind: str = "vllm", **changes: Any) -> tuple[Served, str]:
            served = Served(changes.pop("model", tiny), kind, max_model_len=256, **changes)
            return served, stack.enter_context(serving(served))

        yield started


def run(*arguments: str | Path) -> Result:
    """Run a command here; expected failures stay in the result."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, TokscoreError | SystemExit):
        raise result.exception
    return result


def rows(out: Path) -> pl.DataFrame:
    return pl.read_parquet(out / "scores/*.parquet")


def files(write_jsonl: Write) -> list[Path]:
    """Records in files of their own, which are parts."""
    return [write_jsonl(record, name=f"{n}.jsonl") for n, record in enumerate(RECORDS)]


def test_a_dataset_is_that_of_the_model_loaded_here(
    serve: Serve, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    conversations, (_, url) = write_jsonl(*RECORDS), serve()
    frames = []
    for name, options in (("here", ["--engine", "transformers"]), ("there", ["--url", url])):
        result = run(
            "logprobs", conversations, "-m", tiny_model, "-o", tmp_path / name, "--top-k", "5", *options
        )
        assert result.exit_code == 0, result.stderr
        frames.append(rows(tmp_path / name))
    here, there = frames
    numbers = ["logprob", "top_logprobs", "entropy"]
    assert here.drop(numbers).equals(there.drop(numbers))
    for name in ("logprob", "top_logprobs"):
        one, other = (
            (frame[name].explode() if name == "top_logprobs" else frame[name]).drop_nulls().to_numpy()
            for frame in frames
        )
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert there["entropy"].null_count() == len(there)
    compared = run("diff", tmp_path / "here", tmp_path / "there", "--format", "json")
    assert json.loads(compared.stdout)["total"]["top1_agreement"] == 1
    manifest = json.loads((tmp_path / "there" / "manifest.json").read_text())
    assert manifest["model"]["engine_version"] == "vllm 1.2.3"
    assert manifest["engine_details"]["server_kind"] == "vllm"


def test_commands_read_scores_without_ranks(
    serve: Serve, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    _, url = serve("sglang")
    out = tmp_path / "out"
    result = run("logprobs", write_jsonl(*RECORDS), "-m", tiny_model, "-o", out, "--url", url)
    assert result.exit_code == 0, result.stderr
    assert rows(out)["rank"].null_count() == len(rows(out))
    first = rows(out)["conversation_id"][0]
    for command in (["stats", out], ["stats", out, "--by", "role"], ["diff", out, out], ["show", out, first]):
        done = run(*command)
        assert done.exit_code == 0, done.output
    total = json.loads(run("stats", out, "--format", "json").stdout)
    assert "nan" not in json.dumps(total).lower()


@pytest.mark.slow
def test_a_dead_server_keeps_finished_parts_and_the_same_command_goes_on(
    serve: Serve, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    served, url = serve()
    whole, out = tmp_path / "whole", tmp_path / "out"
    command = ["logprobs", *files(write_jsonl), "-m", tiny_model, "--url", url, *FAST, "-o"]
    assert run(*command, whole).exit_code == 0
    n_parts = len(list((whole / "scores").iterdir()))
    assert n_parts > 2
    served.die_after = served.n_requests + 21
    result = run(*command, out)
    assert isinstance(result.exception, EngineError)
    assert result.exception.exit_code == 4
    assert "run the same command again when the server is back" in str(result.exception)
    kept = {path: path.read_bytes() for path in (out / "scores").glob("part-*.parquet")}
    assert 0 < len(kept) < n_parts
    served.die_after = None
    result = run(*command, out)
    assert result.exit_code == 0, result.stderr
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert rows(out).equals(rows(whole))


@pytest.mark.slow
def test_another_model_behind_the_address_is_refused(
    serve: Serve, tiny: Model, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    served, url = serve()
    command = ["logprobs", *files(write_jsonl), "-m", tiny_model, "-o", tmp_path / "out", "--url", url, *FAST]
    served.die_after = 24
    assert isinstance(run(*command).exception, EngineError)
    served.die_after = None
    served.model = lambda ids: np.roll(tiny(ids), 1, axis=1)
    result = run(*command)
    assert isinstance(result.exception, UsageError)
    assert "the server has another model than the one that scored before" in str(result.exception)


def test_a_key_is_sent_and_appears_nowhere(
    serve: Serve, tiny_model: Path, write_jsonl: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = serve(key=KEY)
    conversations, out = write_jsonl(*RECORDS), tmp_path / "out"
    command = ["logprobs", conversations, "-m", tiny_model, "-o", out, "--url", url, *FAST]
    outputs = []
    # No key, one that the server repeats in its refusal, and the right one.
    for key in (None, KEY + "-wrong", KEY):
        if key is not None:
            monkeypatch.setenv("TOKSCORE_SERVER_KEY", key)
        outputs.append(run(*command))
        outputs.append(run("selfcheck", "-m", tiny_model, "--url", url, "-o", tmp_path / "check.json"))
    refused, scored = outputs[:4], outputs[4:]
    for result in refused:
        assert isinstance(result.exception, EngineError)
        assert "answered 401" in str(result.exception)
        assert "TOKSCORE_SERVER_KEY" in str(result.exception)
    assert [result.exit_code for result in scored] == [0, 0], scored[0].output + scored[1].output
    outputs.append(run("stats", out))
    texts = [f"{result.output}{result.stderr}{result.exception}" for result in outputs]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".json", ".parquet"}
    assert all(KEY not in text for text in texts)
    assert all(KEY.encode() not in path.read_bytes() for path in files)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are listed elsewhere")
def test_a_key_reaches_replicas_and_is_in_no_list_of_processes(
    serve: Serve, tiny: Model, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    listed: set[bytes] = set()
    holders: set[Path] = set()

    def watched(ids: list[int]) -> np.ndarray:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                listed.add((process / "cmdline").read_bytes())
                if KEY.encode() in (process / "environ").read_bytes():
                    holders.add(process)
        return tiny(ids)

    _, url = serve(key=KEY, model=watched)
    command = [sys.executable, "-m", "tokscore.cli.main", "logprobs", *map(str, files(write_jsonl))]
    command += ["-m", str(tiny_model), "-o", str(tmp_path / "out"), "--url", url, *FAST]
    outputs = ""
    for options in (["--executor", "local", "--replicas", "2"], ["--executor", "slurm", "--print"]):
        done = subprocess.run(
            [*command, *options],
            env=os.environ | {"TOKSCORE_SERVER_KEY": KEY},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        outputs += done.stdout + done.stderr
    assert "2 replicas work on" in outputs
    assert "#SBATCH" in outputs
    assert len(holders) >= 3  # the command and its replicas, while they asked
    assert any(url.encode() in each for each in listed)
    assert all(KEY.encode() not in each for each in listed)
    assert KEY not in outputs
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_server_is_held_against_transformers(serve: Serve, tiny: Model, tiny_model: Path) -> None:
    limits = ["--max-delta", "2e-4", "--mean-delta", "2e-5", "--format", "json"]
    command = ["selfcheck", "-m", tiny_model, *limits, "--url"]
    result = run(*command, serve()[1])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["engine"], found["dtype"], found["passed"]) == ("server", "unknown", True)
    # Served from weights that were rounded too far.
    _, coarse = serve(model=lambda ids: _cooled(tiny(ids)))
    assert run(*command, coarse).exit_code == 1


@pytest.mark.slow
def test_the_tokenizer_is_what_the_server_says_that_it_has(
    serve: Serve, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    served, url = serve(root=str(tiny_model))
    conversations = write_jsonl(*RECORDS)
    for name, options in (("given", ["-m", tiny_model]), ("asked", [])):
        result = run("logprobs", conversations, "-o", tmp_path / name, "--url", url, *options)
        assert result.exit_code == 0, result.output
    assert f"the server has {tiny_model}, whose tokenizer is taken." in " ".join(result.stderr.split())
    assert rows(tmp_path / "given").equals(rows(tmp_path / "asked"))
    result = run("selfcheck", "--url", url)
    assert result.exit_code == 0, result.output
    # From a machine that has no such directory.
    served.root = "/models/elsewhere"
    result = run("logprobs", conversations, "-o", tmp_path / "none", "--url", url)
    assert isinstance(result.exception, UsageError)
    assert "names /models/elsewhere, of which no tokenizer can be loaded here" in str(result.exception)
    assert "Give `model`" in str(result.exception)
    # GGUF files are served with the tokenizer of another place, which vLLM tells where it is asked to.
    served.tokenizer = str(tiny_model)
    result = run("logprobs", conversations, "--dry-run", "--url", url)
    assert result.exit_code == 0, result.output


def test_without_a_server_a_model_must_be_given(write_jsonl: Write, tmp_path: Path) -> None:
    for command in (["logprobs", write_jsonl(*RECORDS), "-o", tmp_path / "out"], ["selfcheck"]):
        result = run(*command)
        assert isinstance(result.exception, UsageError)
        assert "there is no model: give `model`" in str(result.exception)


def _cooled(logprobs: np.ndarray) -> np.ndarray:
    warm = logprobs.astype(np.float64) * 1.01
    return (warm - np.log(np.exp(warm).sum(1, keepdims=True))).astype(np.float32)
