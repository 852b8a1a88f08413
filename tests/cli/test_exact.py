"""`tokscore diff --exact`: the values over the whole vocabulary, in every form of output."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import os
import pty
import re
import shutil
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.analytics.exact.pairs import Pair, score_pair, write_conversations
from tests.rewriting import rewrite
from tokscore.analytics.comparison.diff_rows import flat_numbers
from tokscore.analytics.exact.report import exact_report
from tokscore.analytics.exact.rows import metric_names
from tokscore.cli.app import app
from tokscore.cli.running import compare_models
from tokscore.dataset.errors import InputError, TokscoreError, UsageError
from tokscore.dataset.reading import Dataset

pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def pair(tiny_model: Path, other_tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    return score_pair(folder, write_conversations(folder / "convs.jsonl"), tiny_model, other_tiny_model)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own."""
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def models(pair: Pair) -> list[str | Path]:
    return ["--teacher-model", pair.teacher_model, "--student-model", pair.student_model]


def invoke(*arguments: str | Path) -> Any:
    """The finished command; what fails, raises."""
    finished = CliRunner().invoke(app, ["diff", *map(str, arguments)])
    if isinstance(finished.exception, TokscoreError):
        raise finished.exception
    assert finished.exit_code == 0, finished.output
    return finished


def diff(*arguments: str | Path) -> Any:
    """The parsed output."""
    return json.loads(invoke(*arguments, "--format", "json").stdout)


@pytest.mark.parametrize(("column", "value"), [("token_id", 5), ("logprob", math.nan)])
def test_the_exact_values_leave_out_what_the_comparison_skipped(
    pair: Pair,
    tmp_path: Path,
    column: str,
    value: float,
) -> None:
    teacher = pair.teacher
    shutil.copytree(pair.student, tmp_path / "student")
    path = tmp_path / "student/scores/part-00000.parquet"
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[table["conversation_id"].to_pylist().index("c5") + 3] = value
    index = table.column_names.index(column)
    field = table.schema.field(index)
    rewrite(table.set_column(index, field, pa.array(values, field.type)), path)
    whole = diff(pair.teacher, pair.student, *models(pair), "--exact", "--by", "conversation_id")
    arguments = [teacher, tmp_path / "student", *models(pair), "--exact", "--by", "conversation_id"]
    report = diff(*arguments, "--on-error", "skip")
    assert [each["conversation_id"] for each in report["skipped"]] == ["c5"]
    assert report["exact"]["total"]["n_tokens"] == report["total"]["n_tokens"]
    rows = [{row["group"]: row for row in each["exact"]["groups"]} for each in (whole, report)]
    # Groups are those of the teacher's dataset; c5 has no tokens here.
    assert rows[1].pop("c5", {"n_tokens": 0})["n_tokens"] == 0
    del rows[0]["c5"]
    assert rows[0] == rows[1]


def test_the_same_alpha_twice_is_one(pair: Pair) -> None:
    arguments = (pair.teacher, pair.student, *models(pair), "--exact", "--alpha", "0.3", "--alpha", "0.3")
    names = [name for name in diff(*arguments)["exact"]["total"] if name.startswith("gjs")]
    assert names == ["gjs_0.3"]
    table = invoke(*arguments, "--details").stdout.partition("Exact, 95 %")[2]
    header = next(line for line in table.splitlines()[1:] if "conversations" in line)
    assert header.split().count("GJS") == 1


def exact_arguments(pair: Pair) -> tuple[str | Path, ...]:
    return (pair.teacher, pair.student, *models(pair), "--exact")


@pytest.fixture
def report(pair: Pair) -> Any:
    return diff(*exact_arguments(pair))


def test_csv_has_the_exact_values_as_further_columns(pair: Pair, report: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(invoke(*exact_arguments(pair), "--format", "csv").stdout)))
    assert len(rows) == len(report["groups"]) + 1
    total = report["exact"]["total"]
    assert float(rows[-1]["exact.kl_teacher_student"]) == total["kl_teacher_student"]
    limits = total["confidence"]["gjs_0.5"]
    assert float(rows[-1]["exact.confidence.gjs_0.5.upper"]) == limits["upper"]
    for row, group in zip(rows, report["exact"]["groups"], strict=False):
        assert float(row["exact.n_tokens"]) == group["n_tokens"]
        assert row["exact.gjs_0.5"] == ("" if group["gjs_0.5"] is None else str(group["gjs_0.5"]))
        assert row["gjs_0.5.lower"]


def test_out_has_the_exact_values_by_group_and_by_token(pair: Pair, report: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    invoke(*exact_arguments(pair), "-o", out)
    assert sorted(path.name for path in out.iterdir()) == [
        "exact.parquet",
        "groups.parquet",
        "tokens.parquet",
    ]
    groups, tokens, exact = (
        pl.read_parquet(out / f"{name}.parquet") for name in ("groups", "tokens", "exact")
    )
    for row, group in zip(groups.to_dicts(), report["exact"]["groups"], strict=True):
        assert row["exact.kl_teacher_student"] == group["kl_teacher_student"]
        assert row["exact.kl_teacher_student_n_infinite"] == group["kl_teacher_student_n_infinite"]
    page = (Path(__file__).parents[2] / "docs/columns.md").read_text(encoding="utf-8")
    for name in (*exact.columns, *(name for name in groups.columns if name.startswith("exact."))):
        name = re.sub(r"confidence\.(.+)\.", "confidence.MEASURE.", name.replace("_0.5", "_A"))
        assert f"| `{re.sub('kl_[a-z_]+_n_infinite', 'KL_n_infinite', name)}` |" in page
    keys = ["conversation_id", "branch", "position", "token_id"]
    assert exact.select(keys).equals(tokens.select(keys))
    assert (exact["gjs_0.5"] >= tokens["gjs_0.5_lower"] - 1e-9).all()
    assert (exact["gjs_0.5"] <= tokens["gjs_0.5_upper"] + 1e-9).all()
    assert exact["kl_teacher_student"].mean() == pytest.approx(report["exact"]["total"]["kl_teacher_student"])


@pytest.mark.parametrize("existing", ["a file in it", "nothing in it"])
def test_out_appears_whole_or_not_at_all(pair: Pair, tmp_path: Path, existing: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    if existing == "a file in it":
        (out / "mine").touch()
        with pytest.raises(UsageError, match="out is not empty; expected a new directory"):
            invoke(*exact_arguments(pair), "-o", out)
        return
    swapped = (pair.teacher, pair.student, "--teacher-model", pair.student_model, "--exact")
    with pytest.raises(InputError, match="is not the model that scored the teacher's dataset"):
        invoke(*swapped, "--student-model", pair.student_model, "-o", out)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["out"]
    invoke(*exact_arguments(pair), "-o", out)
    assert (out / "exact.parquet").is_file()


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("exact.kl_teacher_student > {kl_teacher_student}", None),
        ("exact.kl_teacher_student >= {kl_teacher_student}", "{kl_teacher_student:.6g}"),
        ("role=assistant: exact.gjs_0.5 >= 0", "{gjs_0.5:.6g}"),
        ("exact.summary.mean_kld < 0.01", None),
        ("exact.summary.mean_kld.se_conversations > 0", "{se:.6g}"),
        ("exact.confidence.gjs_0.5.upper < 1", "{upper:.6g}"),
    ],
)
def test_a_gate_on_exact_values(pair: Pair, report: Any, condition: str, found: str | None) -> None:
    exact = report["exact"]
    group = next(row for row in exact["groups"] if row["group"] == "assistant")
    numbers = {
        "kl_teacher_student": exact["total"]["kl_teacher_student"],
        "se": exact["summary"]["mean_kld"]["se_conversations"],
        "upper": exact["total"]["confidence"]["gjs_0.5"]["upper"],
    }
    fill = {"{gjs_0.5:.6g}": f"{group['gjs_0.5']:.6g}"}
    condition = condition.replace("{kl_teacher_student}", repr(numbers["kl_teacher_student"]))
    finished = CliRunner().invoke(app, ["diff", *map(str, exact_arguments(pair)), "--fail-if", condition])
    assert finished.exit_code == (0 if found is None else 1), finished.output
    if found is not None:
        value = fill.get(found) or found.format(**numbers)
        assert f"failed: {condition} (it is {value})" in finished.stderr


def test_a_gate_on_exact_values_needs_them(pair: Pair, cache: Path) -> None:
    with pytest.raises(UsageError, match="is about exact values; add --exact"):
        invoke(pair.teacher, pair.student, "--fail-if", "exact.gjs_0.5 > 1")
    with pytest.raises(UsageError, match=r"there is no exact\.gjs; did you mean .*exact\.gjs_0\.5"):
        invoke(*exact_arguments(pair), "--fail-if", "exact.gjs > 1")


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("exact.gjs > 1", r"did you mean .*exact\.gjs_0\.5"),
        ("exact.summary.mean_kl > 1", r"did you mean .*exact\.summary\.mean_kld"),
        ("exact.summary.mean_kld.se > 1", r"did you mean .*exact\.summary\.mean_kld\.se_tokens"),
        ("exact.confidence.gjs_0.5.low > 1", r"did you mean .*exact\.confidence\.gjs_0\.5\.lower"),
        ("role=asistant: exact.gjs_0.5 > 1", r"there is no such group; did you mean role=assistant\?"),
        ("rol=assistant: exact.gjs_0.5 > 1", "names the columns rol; expected role"),
    ],
)
def test_a_gate_that_cannot_hold_is_refused_before_a_model_is_loaded(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, condition: str, message: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("models are run")

    monkeypatch.setattr(compare_models, "exact", refuse)
    with pytest.raises(UsageError, match=message):
        invoke(*exact_arguments(pair), "--fail-if", condition)


def test_a_group_that_no_token_has_is_refused_before_conversations_are_scored(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path))
    lines = write_conversations(tmp_path / "lines.jsonl")
    arguments = (pair.teacher_model, pair.student_model, "--on", lines, "--fail-if")
    with pytest.raises(UsageError, match=r"did you mean role=assistant\?"):
        invoke(*arguments, "role=asistant: gjs_0.5.lower > 1")
    assert [path.name.partition("-")[0] for path in (tmp_path / "diff").iterdir()] == ["tokens"]


def test_every_exact_number_can_be_gated(pair: Pair, report: Any) -> None:
    """The names that are allowed are those of a report."""
    exact = report["exact"]
    found = {
        f"exact.{name}" for name in flat_numbers({k: v for k, v in exact["total"].items() if k != "group"})
    }
    summary = flat_numbers(exact["summary"])
    counts = ("n_tokens", "n_conversations")
    found |= {f"exact.summary.{name.removesuffix('.value')}" for name in summary if name not in counts}
    assert found == set(metric_names([0.5]))


def test_the_page_has_the_exact_values(pair: Pair, report: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    invoke(*exact_arguments(pair), "--html", page)
    html = page.read_text(encoding="utf-8")
    assert "Exact values by role, over the whole vocabulary" in html
    total = report["exact"]["total"]
    assert f"Over the whole vocabulary KL(T||S) is {total['kl_teacher_student']:.4f} nats a token" in html
    assert f"<td>{total['kl_teacher_student']:.4f}</td>" in html
    assert '<th scope="row" class="text">99.9% KLD</th>' in html
    summary = report["exact"]["summary"]
    assert f"<td>{summary['p99_9_kld']:.6f}</td>" in html
    tables = dict(re.findall(r'<table id="([\w-]+)">(.*?)</table>', html, re.DOTALL))
    assert f">99.9%</th><td>{summary['p99_9_kld']:.6g}</td>" in tables["kld-percentiles"]
    assert f">Median</th><td>{summary['median_kld']:.6g}</td>" in tables["kld-percentiles"]
    counts = re.findall(r"<td>([\d,]+)</td>", tables["kld"])
    assert sum(int(n.replace(",", "")) for n in counts) == total["n_tokens"]
    assert "percentiles" not in tables


def test_the_page_holds_the_exact_values_of_every_token(pair: Pair, tmp_path: Path) -> None:
    page, out = tmp_path / "page.html", tmp_path / "out"
    invoke(*exact_arguments(pair), "--html", page, "-o", out)
    html = page.read_text(encoding="utf-8")
    report = json.loads(re.findall(r'id="report">(.*?)</script>', html)[0])
    assert report["metrics"] == ["kl", "gjs", "delta", "logprob", "rank", "entropy"]
    exact = pl.read_parquet(out / "exact.parquet")
    found = {}
    for text in re.findall(r'id="c\d+">(.*?)</script>', html):
        stored = json.loads(text)
        block, at = zlib.decompress(base64.b64decode(stored["block"])), 0
        for name, dtype, length in stored["columns"]:
            width = np.dtype(dtype).itemsize
            planes = np.frombuffer(block, np.uint8, width * length, at).reshape(width, length)
            if name == "kl":
                found[stored["id"]] = np.ascontiguousarray(planes.T).view(f"<{dtype}")[:, 0]
            at += width * length
    assert len(found) == 12
    for name, values in found.items():
        mine = exact.filter(pl.col("conversation_id") == name)
        assert np.isnan(values[0])
        np.testing.assert_allclose(values[mine["position"]], mine["kl_teacher_student"], rtol=1e-3, atol=1e-6)
    means = {row["id"]: row["means"]["kl"] for row in report["conversations"]}
    expected = exact.group_by("conversation_id").agg(pl.col("kl_teacher_student").mean())
    assert means == {name: pytest.approx(mean, rel=1e-4) for name, mean in expected.iter_rows()}


def test_show_colours_by_the_exact_values(pair: Pair, tmp_path: Path) -> None:
    out = tmp_path / "out"
    invoke(*exact_arguments(pair), "-o", out)
    arguments = ["show", str(pair.teacher), "c3", "--against", str(pair.student)]
    finished = CliRunner().invoke(
        app, [*arguments, "--exact", str(out / "exact.parquet"), "--format", "json"]
    )
    assert finished.exit_code == 0, finished.output
    shown = json.loads(finished.stdout)
    exact = pl.read_parquet(out / "exact.parquet").filter(pl.col("conversation_id") == "c3")
    assert shown["metric"] == "kl"
    values = [token["kl_teacher_student"] for token in shown["tokens"]]
    assert values[0] is None
    assert values[1:] == pytest.approx(exact["kl_teacher_student"].to_list())
    for options, message in (
        (["--metric", "kl"], "name the exact.parquet"),
        (["--exact", str(pair.teacher / "scores/part-00000.parquet")], "has no column teacher_logprob"),
        (["--exact", str(tmp_path / "none.parquet")], "none.parquet does not exist; expected exact.parquet"),
    ):
        failed = CliRunner().invoke(app, [*arguments, *options])
        assert isinstance(failed.exception, TokscoreError), failed.output
        assert message in str(failed.exception)


def test_the_summary_is_printed_alone(pair: Pair, report: Any) -> None:
    arguments = (pair.teacher, pair.student, *models(pair), "--summary", "llama")
    finished = invoke(*arguments)
    figures = report["exact"]["summary"]
    text = finished.stdout
    assert "GJS" not in text
    mean = figures["mean_kld"]
    line = next(line for line in text.splitlines() if "Mean KLD" in line)
    assert line.split()[2:] == [f"{mean[name]:.6f}" for name in ("value", "se_tokens", "se_conversations")]
    line = next(line for line in text.splitlines() if "Same top p" in line)
    assert line.split()[4] == f"{100 * figures['same_top_p']['value']:.3f}"
    assert "base is the first model, Q the second" in finished.stderr
    assert diff(*arguments) == figures
    rows = list(csv.DictReader(io.StringIO(invoke(*arguments, "--format", "csv").stdout)))
    assert [row["name"] for row in rows] == list(figures)[2:]
    assert float(rows[0]["value"]) == figures["mean_ppl_q"]["value"]


def test_exact_prints_the_summary_last(pair: Pair) -> None:
    text = invoke(*exact_arguments(pair)).stdout
    titles = [
        "Exact, over the whole vocabulary",
        "Perplexity statistics",
        "KL divergence statistics",
        "Same top p",
    ]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)


def test_stored_logprobs_are_noted(pair: Pair, report: Any) -> None:
    stored = report["exact"]["stored_logprobs"]
    assert stored["teacher"]["n_tokens"] == report["total"]["n_tokens"]
    assert 0 <= stored["student"]["mean"] <= stored["student"]["max"] < 2e-4
    assert "the student's stored logprobs differ from these by" in invoke(*exact_arguments(pair)).stderr


def test_the_progress_of_a_run_is_told_at_least_every_512_tokens(pair: Pair, tmp_path: Path) -> None:
    seen = [0]
    exact_report(pair.run(tmp_path, progress=lambda _done, _total, n_run: seen.append(n_run)))
    longest = max(place.n_tokens for place in Dataset(pair.teacher).places())
    assert max(np.diff(seen)) <= longest
    assert longest <= 512


@pytest.mark.slow
@pytest.mark.model
def test_a_terminal_hears_of_a_run_every_two_seconds(
    teacher_model: Path, student_model: Path, tmp_path: Path, cache: Path
) -> None:
    """On the real pair, from the first word about it on."""
    lines = tmp_path / "convs.jsonl"
    lines.write_text(json.dumps({"messages": [{"role": "user", "content": "one two three " * 400}]}) + "\n")
    scored = score_pair(tmp_path, lines, teacher_model, student_model)
    command = ["diff", *exact_arguments(scored)]
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-m", "tokscore.cli.main", *map(str, command)])
    times: list[float] = []
    text = b""
    while True:
        try:
            piece = os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            break
        text += piece
        if b"comparing" in text and b"exact values of every token" not in text:
            times.append(time.monotonic())
    assert os.waitpid(child, 0)[1] == 0, text.decode()
    assert len(times) > 20
    assert max(np.diff(times)) < 2.0
