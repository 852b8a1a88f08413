"""`tokscore selfcheck`, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokscore.cli.app import app
from tokscore.cli.printing.option_names import as_options
from tokscore.cli.selfcheck import EPILOG
from tokscore.dataset.errors import UsageError

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS_VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]


def record(n_characters: int) -> dict[str, object]:
    answer = {"role": "assistant", "content": "xyz" * (n_characters // 3)}
    return {"messages": [{"role": "user", "content": "Name a fish."}, answer]}


@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=NEEDS_VLLM)])
def test_the_result_is_printed_and_written_as_json(
    tiny_model: Path, write_jsonl: Callable[..., Path], tmp_path: Path, engine: str
) -> None:
    conversations, out = write_jsonl(record(30), record(60), record(900), record(90)), tmp_path / "noise.json"
    arguments = [conversations, "-m", tiny_model, "--engine", engine, "--format", "json", "-o", out]
    done = CliRunner().invoke(app, ["selfcheck", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found == json.loads(out.read_text())
    assert found["passed"] is True
    assert found["n_conversations"] == 3
    assert found["n_left_out"] == 1
    assert found["dtype"] == found["reference"]["dtype"] == "float32"
    assert set(found["noise_floor"]) == {"max", "mean", "p99", "warm", "shuffled"}
    assert found["noise_floor"]["max"] >= found["noise_floor"]["p99"] >= 0
    assert set(found["against_reference"]) >= {"n_tokens", "mean", "p95", "p99", "max", "share_outside"}
    assert {line["name"]: line["limit"] for line in found["lines"]} == {
        "against_reference.max": 2e-4,
        "against_reference.mean": 2e-5,
        "noise_floor.max": 2e-4,
    }
    assert "1 conversation left out" in done.stderr


def test_a_missed_limit_exits_with_1_after_the_table(
    tiny_model: Path, write_jsonl: Callable[..., Path]
) -> None:
    conversations = write_jsonl(record(90))
    arguments = [conversations, "-m", tiny_model, "--engine", "transformers", "--dtype", "bfloat16"]
    done = CliRunner().invoke(app, ["selfcheck", *map(str, arguments), "--mean-delta", "1e-7"])
    assert done.exit_code == 1
    verdicts = dict(line.split()[:1] + line.split()[-1:] for line in done.stdout.splitlines() if "_" in line)
    assert verdicts == {
        "against_reference.max": "yes",
        "against_reference.mean": "no",
        "noise_floor.max": "yes",
    }


@pytest.mark.parametrize("engine", [pytest.param("vllm", marks=NEEDS_VLLM)])
def test_options_about_the_engine_reach_it_and_are_reported(
    tiny_model: Path, write_jsonl: Callable[..., Path], engine: str
) -> None:
    arguments = [write_jsonl(record(90)), "-m", tiny_model, "--engine", engine, "--dtype", "bfloat16"]
    asked = ["--head-dtype", "float32", "--engine-path", "fused", "--batch-tokens", "64"]
    asked += ["--engine-arg", "max_num_seqs=7", "--format", "json"]
    done = CliRunner().invoke(app, ["selfcheck", *map(str, arguments), *asked])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["options"] == {
        "head_dtype": "float32",
        "engine_path": "fused",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "quantization": None,
        "batch_tokens": 64,
        "engine_arg": {"max_num_seqs": 7},
    }
    assert found["details"]["head_dtype"] == "float32"
    assert found["details"]["batch_tokens"] == 64
    assert "engine: path fused, batch tokens 64, head dtype float32" in done.stderr
    assert found["reference"]["dtype"] == "float32"


def test_options_that_only_vllm_has_are_refused_for_another_engine(tiny_model: Path) -> None:
    done = CliRunner().invoke(
        app, ["selfcheck", "-m", str(tiny_model), "--engine", "transformers", "--quantization", "fp8"]
    )
    assert isinstance(done.exception, UsageError)
    assert "--quantization is for vllm" in as_options(str(done.exception))


def test_the_conversations_that_come_with_it_need_no_system_role_or_tools() -> None:
    from tokscore.scoring.selfcheck import SAMPLE_CONVERSATIONS

    records = [json.loads(line) for line in SAMPLE_CONVERSATIONS.read_text().splitlines()]
    assert len(records) == 9
    for found in records:
        roles = [message["role"] for message in found["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2), found["id"]
        assert all(set(message) == {"role", "content"} for message in found["messages"])


@pytest.mark.model
@pytest.mark.slow
def test_the_examples_of_the_help_pass(
    teacher_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    examples = EPILOG.replace("\\\n", "").split("\b\n")[1].strip().splitlines()
    for example in examples:
        arguments = example.replace("~/.cache/tokscore/models", str(teacher_model.parent)).split()[1:]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "noise.json").read_text())["passed"] is True
