"""`tokscore show`: one conversation in the terminal."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from tokscore.cli.app import app
from tokscore.dataset.errors import InputError, UsageError

Show = Callable[..., str]
SAMPLES = (
    (
        "greeting",
        (("user", (1, 2, 3, 15)), ("assistant", tuple(range(16, 34))), ("tool", (9, 10, 12)), ("user", ())),
    ),
    ("hostile", (("user", tuple(range(1, 16))),)),
    ("forked", (("user", (1, 2)),), 0),
    ("forked", (("user", (1, 2)), ("assistant", (15,))), 2),
)
SNAPSHOTS = Path(__file__).parents[1] / "data" / "show"


@pytest.fixture(scope="module")
def datasets(
    write_scores: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("show")
    return (
        write_scores(folder / "teacher", SAMPLES),
        write_scores(folder / "student", SAMPLES, noise=0.7, model="student"),
    )


@pytest.fixture
def show(datasets: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Show:
    """Output of the command to a pipe, `width` columns wide."""

    def run(*arguments: str, width: int | None = None, against: bool = False) -> str:
        monkeypatch.delenv("COLUMNS", raising=False)
        if width is not None:
            monkeypatch.setenv("COLUMNS", str(width))
        student = ["--against", str(datasets[1])] if against else []
        result = CliRunner().invoke(app, ["show", str(datasets[0]), *arguments, *student])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("metric", ["logprob", "gjs", "delta"])
def test_the_strip_is_as_in_the_snapshot(show: Show, width: int, metric: str) -> None:
    """The files are rewritten with TOKSCORE_REWRITE=1; look at what changed."""
    shown = show("greeting", "--metric", metric, width=width, against=metric != "logprob")
    path = SNAPSHOTS / f"{metric}_{width}.txt"
    if os.environ.get("TOKSCORE_REWRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [30, 50, 60])
def test_a_narrow_table_of_messages_cuts_no_number(show: Show, width: int) -> None:
    def numbers(width: int) -> list[str]:
        table = show("greeting", width=width, against=True).split("GJS, lower limit")[0]
        assert "…" not in table
        assert ("not shown: " in table) == (width < 80)
        rows = [line for line in table.splitlines() if re.match(r"\d+ ", line)]
        assert len(rows) == 4
        return re.findall(r"-?\d+\.\d+", " ".join(rows))

    assert set(numbers(width)) <= set(numbers(200))


def test_a_pipe_gets_80_columns_and_no_escapes(show: Show) -> None:
    assert show("greeting") == show("greeting", width=80)
    assert "\x1b" not in show("greeting", against=True)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_of_the_strip_is_wider_than_asked_for(show: Show, width: int) -> None:
    strip = show("hostile", width=width).split("no message\n")[1].splitlines()
    assert max(map(cell_len, strip)) <= width


def test_hostile_texts_are_shown_as_text(show: Show) -> None:
    shown = show("hostile", width=200)
    for text in ("</script><img·src=x", "\\x1b[31m", "\\u{202e}", "\\u{200d}", "\\xe4\\xbd", "↵", "→a"):
        assert text in shown
    assert not set(shown) & {"\x1b", "\u202e", "\u200d"}
    assert len(re.findall("x{10,}", shown)) == 10_000 // 192 + 1


def test_the_digits_are_the_levels_of_the_values(show: Show) -> None:
    printed = json.loads(show("greeting", "--format", "json", against=True))
    deltas = np.abs([token["delta"] for token in printed["tokens"] if token["delta"] is not None])
    median = np.sort(deltas)[(len(deltas) + 1) // 2 - 1]
    strip = show("greeting", "--metric", "delta", width=200, against=True).split("no message\n")[1]
    for sign, digits in ((1, "¹²³⁴"), (-1, "₁₂₃₄")):
        n_marked = sum(
            token["delta"] is not None and abs(token["delta"]) > median and token["delta"] * sign > 0
            for token in printed["tokens"]
        )
        assert n_marked > 0
        assert sum(strip.count(digit) for digit in digits) == n_marked


def test_json_and_csv_hold_every_number_of_every_token(show: Show) -> None:
    printed = json.loads(show("greeting", "--format", "json", against=True))
    tokens = printed["tokens"]
    assert [message["n_tokens"] for message in printed["messages"]] == [1, 4, 18, 3, 0]
    assert tokens[0]["logprob"] is None
    assert tokens[0]["gjs_upper"] is None
    for token in tokens[1:]:
        assert 0 <= token["gjs_lower"] <= token["gjs_upper"]
        assert token["delta"] == pytest.approx(token["logprob"] - token["student_logprob"])
        assert isinstance(token["rank"], int)
    assistant = [token["gjs_lower"] for token in tokens if token["message_index"] == 1]
    assert printed["messages"][2]["gjs_lower"] == pytest.approx(np.mean(assistant))
    rows = list(csv.DictReader(io.StringIO(show("greeting", "--format", "csv", against=True))))
    assert [row["text"] for row in rows] == [token["text"] for token in tokens]


def test_a_branch_is_chosen_and_a_missing_one_named(show: Show) -> None:
    assert "message 1  assistant" not in show("forked")
    assert "message 1  assistant" in show("forked", "--branch", "2")
    with pytest.raises(InputError, match="no branch 1 of conversation 'forked'; there are 0, 2"):
        show("forked", "--branch", "1")


def test_an_unknown_id_names_close_ones(show: Show) -> None:
    with pytest.raises(InputError, match="no conversation 'greetings'; there are 4, such as greeting"):
        show("greetings")


def test_a_metric_of_two_models_needs_two(show: Show) -> None:
    with pytest.raises(UsageError, match="gjs compares two models; name the other's score dataset"):
        show("greeting", "--metric", "gjs")


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_is_paged_with_colours_unless_they_are_refused(
    datasets: tuple[Path, Path], no_color: str
) -> None:
    leader, follower = pty.openpty()
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "NO_COLOR": no_color,
        "PAGER": "sed s/^/paged:/",
        "COLUMNS": "80",
    }
    command = [sys.executable, "-m", "tokscore.cli.main", "show", str(datasets[0]), "greeting"]
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=subprocess.DEVNULL, env=environment
    ) as running:
        os.close(follower)
        shown = ""
        with suppress(OSError):  # the other end is closed
            while piece := os.read(leader, 2**16):
                shown += piece.decode(errors="replace")
    os.close(leader)
    assert running.returncode == 0
    assert "paged:" in shown.splitlines()[3]
    assert ("\x1b[" in shown) is not bool(no_color)
    assert "message 1  assistant" in shown
