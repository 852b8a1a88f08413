"""Code in a model's folder runs only with --trust-remote-code, whatever is typed or piped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scoring.tiny_models import change_config, make
from tokscore.dataset.errors import InputError
from tokscore.scoring.engines.checkpoint.config import load_config

COMMANDS = ("render", "logprobs", "selfcheck", "drift", "diff")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose configuration, weights, tokenizer and ways to generate are all in code of its folder."""
    path = make("code", tmp_path)
    names = {"AutoTokenizer": [None, "custom.OwnTokenizer"], "AutoProcessor": "custom.OwnTokenizer"}
    settings = json.loads((path / "tokenizer_config.json").read_text()) | {"auto_map": names}
    settings["tokenizer_class"] = "OwnTokenizer"
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "custom_generate").mkdir()
    (path / "custom_generate/generate.py").write_text(
        f"from pathlib import Path\nPath({str(path / 'ran')!r}).touch()\n"
        "def generate(*_, **__):\n    raise NotImplementedError\n"
    )
    return path


def run(command: str, model: Path, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """A command with a `y` for whoever asks."""
    (folder / "convs.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]})
    )
    inputs = {"diff": [str(model), str(model), "--on"]}.get(command, [])
    models = [] if command == "diff" else ["-m", str(model)]
    outputs = ["-o", str(folder / "out")] if command in ("render", "logprobs") else []
    engine = ["--engine", "transformers"] if command in ("logprobs", "selfcheck", "diff") else []
    return subprocess.run(
        [sys.executable, "-m", "tokscore.cli.main", command, *inputs, str(folder / "convs.jsonl"), *models,
         *outputs, *engine, *more],
        input="y\ny\ny\ny\n", capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.slow
def test_a_piped_yes_runs_nothing(model: Path, tmp_path: Path, command: str) -> None:
    finished = run(command, model, tmp_path)
    assert finished.returncode == 3, finished.stderr
    assert "needs Python code that comes with it, which is not run" in finished.stderr
    assert "[y/N]" not in finished.stdout + finished.stderr
    assert not (model / "ran").exists()


@pytest.mark.parametrize("names", [None, {"AutoModelForCausalLM": "custom.OwnForCausalLM"}])
def test_a_known_kind_of_model_runs_without_the_code_beside_it(
    model: Path, names: dict[str, str] | None
) -> None:
    from tokscore.scoring import load_engine

    change_config(model, model_type="llama", architectures=["LlamaForCausalLM"], auto_map=names)
    load_engine("transformers", str(model)).close()
    assert not (model / "ran").exists()


@pytest.mark.slow
def test_the_option_runs_it_and_the_manifest_says_so(model: Path, tmp_path: Path) -> None:
    finished = run("logprobs", model, tmp_path, "--trust-remote-code")
    assert finished.returncode == 0, finished.stderr
    assert (model / "ran").exists()
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["settings"]["trust_remote_code"] is True


@pytest.mark.slow
def test_without_the_option_the_manifest_is_silent(tmp_path: Path) -> None:
    finished = run("logprobs", make("llama", tmp_path), tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "trust_remote_code" not in (tmp_path / "out/manifest.json").read_text()


@pytest.mark.parametrize("is_trusted", [False, True])
def test_code_that_may_run_is_not_said_to_need_it(tmp_path: Path, is_trusted: bool) -> None:
    settings = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "own.py").write_text("raise ValueError('another model wants trust_remote_code')\n")
    with pytest.raises(InputError) as caught:
        load_config(tmp_path, "m", trust_remote_code=is_trusted)
    assert ("give `trust_remote_code=True`" in str(caught.value)) != is_trusted
