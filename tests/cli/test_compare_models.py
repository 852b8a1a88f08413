"""`tokscore diff` with models, and with the exact values."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tokscore.cli.app import app
from tokscore.dataset.errors import InputError, TokscoreError, UsageError

pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own."""
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def on(write_jsonl: Callable[..., Path], conversation: dict[str, object]) -> Path:
    """A file with one conversation."""
    return write_jsonl(conversation)


def diff(*arguments: str | Path) -> Any:
    """The parsed output; what fails, raises."""
    finished = CliRunner().invoke(app, ["diff", *map(str, arguments), "--format", "json"])
    if isinstance(finished.exception, TokscoreError):
        raise finished.exception
    assert finished.exit_code == 0, finished.output
    return json.loads(finished.stdout)


def written(cache: Path) -> dict[str, int]:
    return {str(path.relative_to(cache)): path.stat().st_mtime_ns for path in cache.rglob("*.parquet")}


def test_two_models_are_scored_once_and_compared(
    tiny_model: Path, other_tiny_model: Path, on: Path, cache: Path
) -> None:
    arguments = (tiny_model, other_tiny_model, "--on", on, "--engine", "transformers", "--exact")
    report = diff(*arguments)
    total, exact = report["total"], report["exact"]["total"]
    assert report["n_conversations"] == 1
    assert total["n_tokens"] == exact["n_tokens"] > 20
    assert 0 < total["gjs_0.5"]["lower"] <= exact["gjs_0.5"] <= total["gjs_0.5"]["upper"]
    assert total["kl_teacher_student"]["lower"] <= exact["kl_teacher_student"]
    assert exact["teacher_logprob"] == pytest.approx(total["teacher_logprob"], abs=1e-6)
    before = written(cache)
    assert {name.split("/")[1].split("-")[0] for name in before} == {"tokens", "scores", "exact"}
    assert diff(*arguments) == report
    assert written(cache) == before


@pytest.mark.parametrize(
    ("given", "n_scored"),
    [(["--summary", "llama"], 2), (["--summary", "llama", "--fail-if", "gjs_0.5.lower > 9"], 3)],
    ids=["alone", "with a condition"],
)
def test_the_first_model_runs_twice_where_intervals_are_used(
    tiny_model: Path, other_tiny_model: Path, on: Path, cache: Path, given: list[str], n_scored: int
) -> None:
    diff(tiny_model, other_tiny_model, "--on", on, "--engine", "transformers", *given)
    assert len(list(cache.glob("diff/scores-*"))) == n_scored


def test_a_model_against_itself_differs_by_exactly_nothing(tiny_model: Path, on: Path, cache: Path) -> None:
    report = diff(tiny_model, tiny_model, "--on", on, "--engine", "transformers", "--exact")
    assert cache.is_dir()
    assert (report["is_self"], report["total"]["gjs_0.5"]["upper"]) == (True, 0)
    for name in ("kl_teacher_student", "kl_student_teacher", "gjs_0.5", "total_variation"):
        assert report["exact"]["total"][name] == 0


def test_another_vocabulary_is_refused(tiny_model: Path, on: Path, cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    tokenizer = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(
        tokenizer.replace('"a":', '"A_":').replace('"A":', '"a":').replace('"A_":', '"A":')
    )
    with pytest.raises(
        InputError, match=r"(?s)tiny and other have two tokenizers: id 3[23] is .*--align text"
    ) as found:
        diff(other, tiny_model, "--on", on)
    assert str(cache) not in str(found.value)
    assert not list(cache.rglob("scores"))


@pytest.mark.usefixtures("cache")
def test_ids_that_only_one_model_has_are_named_where_they_make_a_kl_infinite(
    tiny_model: Path, other_tiny_model: Path, on: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    padded = tmp_path / "padded"
    shutil.copytree(tiny_model, padded)
    model = AutoModelForCausalLM.from_pretrained(padded)
    model.resize_token_embeddings(320, mean_resizing=False)
    model.save_pretrained(padded)
    arguments = (padded, other_tiny_model, "--on", on, "--engine", "transformers", "--exact")
    finished = CliRunner().invoke(app, ["diff", *map(str, arguments), "--format", "json"])
    assert finished.exit_code == 0, finished.output
    exact = json.loads(finished.stdout)["exact"]
    n_tokens = exact["total"]["n_tokens"]
    assert exact["total"]["kl_teacher_student"] is None
    assert exact["total"]["kl_teacher_student_n_infinite"] == n_tokens > 20
    assert exact["total"]["kl_student_teacher"] > 0
    assert (exact["teacher_vocab_size"], exact["student_vocab_size"]) == (320, 259)
    said = f"KL(T||S) is infinite at {n_tokens} of {n_tokens} tokens, and has no mean where such tokens are: "
    assert f"{said}the teacher has 320 ids and the student 259" in finished.stderr
    assert "KL(S||T) is infinite" not in finished.stderr
    finished = CliRunner().invoke(app, ["diff", *map(str, arguments[:-1]), "--top-k", "259"])
    assert finished.exit_code == 0, finished.output
    assert re.search(r"KL\(T\|\|S\) is infinite: \d+ tokens are or list ids that only one", finished.stderr)
    assert "KL(S||T) is infinite" not in finished.stderr


@pytest.mark.parametrize(
    ("sides", "options", "message"),
    [
        ("model model", "", "give the conversations to compare them on"),
        ("scores scores", "--on on", "--on is for models"),
        ("scores model", "--on on", "expected two score datasets, or two models"),
        ("scores scores", "--exact", "--teacher-model DIR"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tiny_model: Path, tiny_scores: Path, on: Path, cache: Path, sides: str, options: str, message: str
) -> None:
    names = {"model": tiny_model, "scores": tiny_scores, "on": on}
    with pytest.raises(UsageError, match=message):
        diff(*(names.get(word, word) for word in f"{sides} {options}".split()))
    assert not cache.exists()


@pytest.mark.usefixtures("cache")
def test_a_directory_that_is_neither_is_refused(tiny_model: Path, on: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither manifest\.json nor config\.json"):
        diff(tmp_path, tiny_model, "--on", on)


@pytest.mark.usefixtures("cache")
def test_the_exact_values_need_the_models_of_the_datasets(
    tiny_scores: Path, tiny_model: Path, other_tiny_model: Path
) -> None:
    models = ("--teacher-model", tiny_model, "--student-model")
    with pytest.raises(InputError, match="is not the model that scored the student's dataset"):
        diff(tiny_scores, tiny_scores, "--exact", *models, other_tiny_model)
    report = diff(tiny_scores, tiny_scores, "--exact", *models, tiny_model)
    assert report["exact"]["total"]["gjs_0.5"] == 0
