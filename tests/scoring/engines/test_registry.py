from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

from tokscore.dataset.errors import UsageError
from tokscore.dataset.reading import Dataset
from tokscore.scoring import ENGINES, EngineRow, EngineSettings, load_scores, plan_engine
from tokscore.scoring.engines.registry import load_target
from tokscore.scoring.engines.settings import COMMON, EngineKeywords

# A whole engine: every id is as likely as every other.
UNIFORM = """
import numpy as np

from tokscore.dataset.errors import UsageError
from tokscore.scoring import SequenceScores


def check(settings):
    if settings.engine_arg.get("shape") not in (None, "flat"):
        raise UsageError(f"`engine_arg` shape is {settings.engine_arg['shape']}; expected flat.")


class UniformEngine:
    def __init__(self, spec, longest):
        self.identity, self.max_length, self.vocab_size = spec.identity, longest, spec.model.vocab_size
        self.top_k, self.details = spec.settings.top_k, {"shape": "flat"}

    def score(self, sequences):
        for sequence in sequences:
            n, logprob = sequence.n_rows, np.float32(-np.log(self.vocab_size))
            yield sequence.key, SequenceScores(
                logprobs=np.full(n, logprob),
                ranks=np.full(n, self.vocab_size, np.int32),
                top_ids=np.tile(np.arange(self.top_k, dtype=np.int32), (n, 1)),
                top_logprobs=np.full((n, self.top_k), logprob),
                entropy=np.full(n, -logprob),
            )

    def close(self):
        pass
"""
# The command line, with its row.
COMMAND = """
from tokscore.scoring.engines import registry

registry.ENGINES["uniform"] = registry.EngineRow(
    "uniform:UniformEngine",
    packages=("uniform",),
    extra="uniform",
    distributions=(("numpy",),),
    settings={"engine_arg": registry.ANY},
    check="uniform:check",
)

from tokscore.cli.main import main

main()
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def with_uniform(tmp_path: Path) -> Run:
    (tmp_path / "uniform.py").write_text(UNIFORM)
    (tmp_path / "command.py").write_text(COMMAND)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "command.py"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.mark.slow
def test_a_module_and_a_row_are_an_engine(
    with_uniform: Run, tiny_model: Path, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    convs = write_jsonl({"messages": [{"role": "user", "content": "Hi"}]})
    arguments = ("logprobs", convs, "-m", tiny_model, "--engine", "uniform", "--top-k", 3)
    done = with_uniform(*arguments, "-o", tmp_path / "scores", "--engine-arg", "shape=flat")
    assert done.returncode == 0, done.stderr
    manifest = Dataset(tmp_path / "scores").manifest
    assert manifest.model is not None
    assert (manifest.model.engine, manifest.model.engine_version) == ("uniform", f"numpy {np.__version__}")
    assert manifest.settings["engine_arguments"] == '{"shape": "flat"}'
    scores = load_scores(tmp_path / "scores")
    logprob = np.float32(-np.log(manifest.model.vocab_size))
    assert set(scores["logprob"].drop_nulls()) == {logprob}
    assert scores["top_ids"].drop_nulls()[0].to_list() == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--engine-arg", "shape=round"), "--engine-arg shape is round; expected flat."),
        (("--quantization", "fp8"), "--quantization is for vllm; the engine is uniform."),
        (("--head-dtype", "model"), "--head-dtype is for vllm and transformers; the engine is uniform."),
    ],
)
def test_what_a_new_engine_does_not_take_is_refused(
    with_uniform: Run,
    tiny_model: Path,
    write_jsonl: Callable[..., Path],
    tmp_path: Path,
    options: tuple[str, str],
    message: str,
) -> None:
    convs = write_jsonl({"messages": [{"role": "user", "content": "Hi"}]})
    arguments = ("logprobs", convs, "-m", tiny_model, "--engine", "uniform", "-o", tmp_path / "scores")
    done = with_uniform(*arguments, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {message}\n"


def test_the_help_lists_a_new_engine(with_uniform: Run) -> None:
    assert "<auto|vllm|transformers|server|uniform>" in with_uniform("selfcheck", "--help").stdout


@pytest.mark.parametrize("name", ENGINES)
def test_a_row_says_what_its_engine_takes(name: str) -> None:
    row = ENGINES[name]
    known = {field.name for field in fields(EngineSettings)} - COMMON
    assert set(row.settings) <= known
    for target in (row.check, row.can_run):
        assert target is None or callable(load_target(target))


def test_an_engine_that_cannot_run_here_is_no_choice_of_auto(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = EngineRow("nowhere:Engine", ("numpy",), "x", (), can_run="operator:not_", is_automatic=True)
    rows = {"elsewhere": row, "transformers": ENGINES["transformers"]}
    monkeypatch.setattr("tokscore.scoring.engines.registry.ENGINES", rows)
    monkeypatch.setattr("operator.not_", lambda: False)
    assert plan_engine(str(tiny_model)).identity.engine == "transformers"


def test_settings_are_frozen_and_equal_after_a_pickle() -> None:
    import pickle

    settings = EngineSettings(top_k=3, dtype="bfloat16", engine_arg={"max_num_seqs": 4})
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(FrozenInstanceError):
        settings.top_k = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top_k": "5"}, "`top_k` is '5'; expected at least 0."),
        ({"top_k": True}, "`top_k` is True; expected at least 0."),
        ({"batch_tokens": 0}, "`batch_tokens` is 0; expected at least 1."),
        ({"temperature": float("inf")}, "`temperature` is inf; expected a number above 0."),
        ({"head_dtype": "int8"}, "`head_dtype` is 'int8'; expected auto, model, float32."),
    ],
)
def test_a_value_that_a_setting_cannot_have_is_wrong_usage(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        EngineSettings(**given)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_type_checkers_are_told_every_setting() -> None:
    assert list(get_type_hints(EngineKeywords)) == [field.name for field in fields(EngineSettings)]
