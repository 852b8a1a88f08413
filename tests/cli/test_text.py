"""Plain text through every command, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from tests.conftest import make_tiny_model
from tokscore.cli.app import app
from tokscore.dataset.errors import TokscoreError
from tokscore.dataset.manifest import read_manifest

Write = Callable[..., Path]
TEXT = "".join(f"Line {i} of a text that nobody said to anybody.\n" for i in range(16))
CHUNKS = ("--chunk", "64", "--context", "33")
N_CHUNKS = len(TEXT) // 64  # the tokens of the tiny model are bytes
SOURCES = {("context", False, None): 33 * N_CHUNKS, ("text", True, None): 31 * N_CHUNKS}


def run(*arguments: str | Path) -> Result:
    """Run a command here; an expected failure is the exception of the result."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, TokscoreError | SystemExit):
        raise result.exception
    return result


def refusal(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, TokscoreError)
    return str(result.exception)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "prose.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models that have no chat template, as base models have none."""
    folder = tmp_path_factory.mktemp("models")
    return [make_tiny_model(folder / f"base-{seed}", seed=seed, template=None) for seed in (0, 1)]


@pytest.fixture(scope="module")
def logs(text: Path, models: list[Path]) -> dict[Path, Result]:
    """What `logprobs` printed for each score dataset."""
    outs = {text.parent / f"scores-{i}": model for i, model in enumerate(models)}
    return {
        out: run("logprobs", text, "-m", model, "-o", out, "--engine", "transformers", *CHUNKS)
        for out, model in outs.items()
    }


@pytest.fixture(scope="module")
def scores(logs: dict[Path, Result]) -> list[Path]:
    return list(logs)


def test_logprobs_scores_what_counts_and_says_how_much_that_is(logs: dict[Path, Result]) -> None:
    for out, result in logs.items():
        assert result.exit_code == 0, result.output
        assert (
            f"1 text in {N_CHUNKS} chunks of 64 tokens (context 33): {31 * N_CHUNKS:,} of {64 * N_CHUNKS:,} "
            "tokens count."
        ) in result.stderr
        assert "--context leaves out the last tokens of 1 text: they fill no chunk." in result.stderr
        settings = read_manifest(out).settings
        assert {name: settings.get(name) for name in ("score", "chunk", "context", "stride")} == {
            "score": "content",
            "chunk": 64,
            "context": 33,
            "stride": None,
        }
        table = pl.read_parquet(out / "scores/*.parquet")
        counts = table.group_by("source", "is_content", "is_sampled").len()
        assert {tuple(row[:3]): row[3] for row in counts.iter_rows()} == SOURCES
        assert (table["logprob"].is_not_null() == table["is_content"]).all()
        assert table["role"].null_count() == table.height
        assert set(table["message_index"].to_list()) == {-1}
        assert set(table["conversation_id"].to_list()) == {"prose.txt"}
        rows = pl.read_parquet(out / "conversations/*.parquet")
        assert rows["branch"].to_list() == [*range(N_CHUNKS)]
        assert rows["n_sampled"].null_count() == N_CHUNKS


def test_what_is_asked_for_wins_over_what_counts(text: Path, models: list[Path], tmp_path: Path) -> None:
    arguments = ("-m", models[0], "-o", tmp_path / "out", "--engine", "transformers", "--score", "all")
    result = run("logprobs", text, *arguments, *CHUNKS)
    assert result.exit_code == 0, result.output
    table = pl.read_parquet(tmp_path / "out/scores/*.parquet")
    assert table["logprob"].null_count() == N_CHUNKS  # the first of every window


def test_tokens_that_were_rendered_before_are_scored_as_they_count(
    text: Path, models: list[Path], scores: list[Path], tmp_path: Path
) -> None:
    rendered = run("render", text, "-m", models[0], "-o", tmp_path / "tokens", *CHUNKS, "--format", "json")
    assert rendered.exit_code == 0, rendered.output
    (counts,) = json.loads(rendered.stdout)["by_role"]
    assert (counts["role"], counts["n_tokens"], counts["n_content"]) == (
        "(no message)",
        64 * N_CHUNKS,
        31 * N_CHUNKS,
    )
    out = tmp_path / "scores"
    assert (
        run("logprobs", tmp_path / "tokens", "-m", models[0], "-o", out, "--engine", "transformers").exit_code
        == 0
    )
    tables = [pl.read_parquet(each / "scores/*.parquet") for each in (out, scores[0])]
    assert tables[0].equals(tables[1])


def test_stats_and_select_take_the_windows_of_a_text_as_its_branches(
    scores: list[Path], text: Path, tmp_path: Path
) -> None:
    (group,) = json.loads(run("stats", scores[0], "--format", "json").stdout)["groups"]
    assert (group["group"], group["n_messages"], group["n_scored"]) == (None, None, 31 * N_CHUNKS)
    assert "(no message)" in run("stats", scores[0]).stdout
    by_source = json.loads(run("stats", scores[0], "--by", "source", "--format", "json").stdout)["groups"]
    assert {row["group"]: row["n_scored"] for row in by_source} == {"context": 0, "text": 31 * N_CHUNKS}
    kept = tmp_path / "kept.jsonl"
    chosen = run("select", scores[0], text, "--where", f"n_scored = {31 * N_CHUNKS}", "-o", kept)
    assert chosen.exit_code == 0, chosen.output
    assert [json.loads(line) for line in kept.read_text().splitlines()] == [{"id": "prose.txt", "text": TEXT}]


def test_two_models_are_compared_where_it_counts(
    scores: list[Path], text: Path, models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = json.loads(run("diff", *scores, "--format", "json").stdout)
    assert report["total"]["n_tokens"] == 31 * N_CHUNKS
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path))
    on = ("--on", text, *CHUNKS, "--engine", "transformers", "--exact", "--format", "json")
    result = run("diff", *models, *on)
    assert result.exit_code == 0, result.output
    exact = json.loads(result.stdout)
    assert exact["total"]["n_tokens"] == exact["exact"]["total"]["n_tokens"] == 31 * N_CHUNKS
    # Each model is asked for the ids that the other lists, so that the limits are narrower.
    for name in ("kl_teacher_student", "kl_student_teacher", "gjs_0.5"):
        wide, narrow, value = (
            each[name] for each in (report["total"], exact["total"], exact["exact"]["total"])
        )
        assert wide["lower"] < narrow["lower"] <= value + 1e-6
        assert wide["upper"] is narrow["upper"] is None or value - 1e-6 <= narrow["upper"] < wide["upper"]


def test_windows_of_scored_datasets_stay_as_they_are(scores: list[Path]) -> None:
    said = refusal("diff", *scores, *CHUNKS)
    assert "are scored already; `chunk` and `context` cannot change them." in said


def test_a_window_is_shown_and_explained(scores: list[Path], text: Path, models: list[Path]) -> None:
    shown = json.loads(run("show", scores[0], "prose.txt", "--branch", "1", "--format", "json").stdout)
    assert [token["source"] for token in shown["tokens"]] == ["context"] * 33 + ["text"] * 31
    assert "".join(token["text"] for token in shown["tokens"]) == TEXT[64:128]
    assert run("show", scores[0], "prose.txt").exit_code == 0
    explained = run("render", text, "-m", models[0], "--explain", "prose.txt", *CHUNKS)
    assert explained.exit_code == 0, explained.output
    assert f"prose.txt branch 1 of {N_CHUNKS}" in explained.stdout
    assert " ?C  text " in explained.stdout
    assert " ?-  context " in explained.stdout


@pytest.mark.slow
def test_the_page_has_every_window(scores: list[Path], tmp_path: Path) -> None:
    result = run("stats", scores[0], "--html", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert f"{N_CHUNKS} conversations token by token" in result.stderr
    assert run("diff", *scores, "--html", tmp_path / "diff.html").exit_code == 0


def test_a_plan_counts_the_windows(text: Path, models: list[Path]) -> None:
    arguments = ("-m", models[0], "--dry-run", "--format", "json", "--chunk", "64", "--stride", "16")
    for command in (("render",), ("logprobs", "--engine", "transformers")):
        planned = run(command[0], text, *command[1:], *arguments)
        assert planned.exit_code == 0, planned.output
        plan = json.loads(planned.stdout)
        n_windows = -(-(len(TEXT) - 64) // 16) + 1
        assert (plan["n_conversations"], plan["n_sequences"]) == (1, n_windows)


def test_an_engine_is_checked_with_text(text: Path, models: list[Path]) -> None:
    arguments = ("-m", models[0], "--engine", "transformers", "--dtype", "float32", "--format", "json")
    result = run("selfcheck", text, *arguments, "--chunk", "64")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["n_conversations"] == N_CHUNKS + 1


def test_a_text_longer_than_the_model_is_refused_with_what_to_do(
    text: Path, models: list[Path], tmp_path: Path
) -> None:
    said = refusal("logprobs", text, "-m", models[0], "-o", tmp_path / "out", "--engine", "transformers")
    assert said.startswith(f"prose.txt:1: has {len(TEXT)} tokens; the model's maximum is 256.")
    assert "Cut the text into windows: `chunk=N`." in said


def test_what_has_no_meaning_for_text_is_refused(
    text: Path, models: list[Path], write_jsonl: Write, conversation: dict[str, object], tmp_path: Path
) -> None:
    model, out = ("-m", models[0]), ("-o", tmp_path / "out")
    assert "has the format text, which no template prints" in refusal("drift", text, *model)
    assert "is plain text, which has no turns" in refusal("stats", text)
    assert "`add_generation_prompt` cannot change plain text" in refusal(
        "render", text, *model, *out, "--add-generation-prompt"
    )
    assert "`chunk` cannot cut conversations, and the input has the format openai" in refusal(
        "render", write_jsonl(conversation), *model, *out, "--chunk", "64"
    )


def test_texts_without_a_full_chunk_are_listed(
    models: list[Path], write_jsonl: Write, tmp_path: Path
) -> None:
    path = write_jsonl({"id": "a", "text": "short"}, {"id": "b", "text": TEXT}, {"id": "c", "text": ""})
    arguments = ("render", path, "-m", models[0], "-o", tmp_path / "out", *CHUNKS)
    assert refusal(*arguments).startswith("convs.jsonl:1: has 5 tokens, fewer than a `chunk` of 64")
    result = run(*arguments, "--on-error", "skip")
    assert result.exit_code == 0, result.output
    errors = [json.loads(row) for row in (tmp_path / "out/errors/part-00000.jsonl").read_text().splitlines()]
    assert [(row["conversation_id"], row["path"]) for row in errors] == [("a", "$"), ("c", "$.text")]


def test_two_texts_alone_are_refused_with_the_formats_that_read_them(
    tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    path = write_jsonl({"input": "What is 2 + 3?", "output": "5"})
    said = refusal("render", path, "-m", tiny_model, "-o", tmp_path / "out")
    assert "`input_format='alpaca'` reads them as a question and its answer" in said
    assert "`input_format='text-dump'` as text that a template has printed" in said
