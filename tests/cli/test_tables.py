"""Tables at the width of a terminal: numbers are never cut, and what has no room is named."""

from __future__ import annotations

import json
import math
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from tokscore.cli.app import app
from tokscore.cli.printing.layout import is_number, lay_out, shown_number
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.reports.selfcheck import print_selfcheck
from tokscore.cli.printing.tables import Column, print_all_columns, print_rows
from tokscore.dataset.manifest import ModelIdentity
from tokscore.scoring.agreement import Agreement
from tokscore.scoring.selfcheck import Line, NoiseFloor, SelfCheck

EXAMPLES = Path(__file__).parents[2] / "examples"
SNAPSHOTS = Path(__file__).parents[1] / "data" / "tables"
WIDTHS = (60, 80, 120, 200)
SAMPLES = tuple(
    (f"c{n}", (("system", (1, 2)), ("user", (3, 4, 5, 15 + n)), ("assistant", (16, 20 + n, 2, 8))))
    for n in range(12)
)


@pytest.fixture(scope="module")
def datasets(
    write_scores: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tables")
    return (
        write_scores(folder / "teacher", SAMPLES),
        write_scores(folder / "student", SAMPLES, noise=0.7, model="student"),
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(EXAMPLES)  # titles name files

    def run(*arguments: str | Path, width: int | None = None) -> str:
        monkeypatch.delenv("COLUMNS", raising=False)
        if width is not None:
            monkeypatch.setenv("COLUMNS", str(width))
        result = CliRunner().invoke(app, list(map(str, arguments)))
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.fixture(scope="module")
def commands(datasets: tuple[Path, Path], teacher_model: Path) -> dict[str, list[str | Path]]:
    teacher, student = datasets
    template = "--template", EXAMPLES / "chatml_tools.jinja"
    return {
        "stats": ["stats", teacher],
        "diff": ["diff", teacher, student],
        "diff_details": ["diff", teacher, student, "--details"],
        "recorded": [
            "diff",
            "--recorded",
            SNAPSHOTS.resolve().parent / "formats" / "prime_rl.jsonl",
            "--details",
        ],
        "recorded_messages": [
            "diff",
            "--recorded",
            SNAPSHOTS.resolve().parent / "formats" / "prime_rl.jsonl",
            "--by",
            "conversation_id,message_index",
            "--sort",
            "off_policy.mean_abs_log_ratio",
            "--top",
            "1",
        ],
        "drift": ["drift", EXAMPLES / "recorded.jsonl", "-m", teacher_model, *template],
        "template": ["template", "chatml_tools.jinja", "-m", teacher_model],
    }


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "name", ["stats", "diff", "diff_details", "recorded", "recorded_messages", "drift", "template"]
)
def test_a_table_is_as_in_the_snapshot(
    run: Callable[..., str], commands: dict[str, list[str | Path]], name: str, width: int
) -> None:
    """The files are rewritten with TOKSCORE_REWRITE=1; look at what changed."""
    check_snapshot(run(*commands[name], width=width), name, width)


def check_snapshot(shown: str, name: str, width: int) -> None:
    path = SNAPSHOTS / f"{name}_{width}.txt"
    if os.environ.get("TOKSCORE_REWRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")
    assert not re.search(r"\d…|…\d", shown)
    # The sentence that opens diff, and records, are text, which terminals wrap.
    lines = [line for line in shown.splitlines() if ": " not in line]
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_the_tables_of_selfcheck_are_as_in_the_snapshot(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Of the numbers of one run, since others differ from machine to machine."""
    model = ModelIdentity("m", None, None, 49_152, "bfloat16", "vllm", "vllm 0.24.0")
    numbers = 1_234_567, 0.0436, 0.15, 0.312, 1.02, 0.0213, 0.987, 0.9, 1.31
    again = 1_234_567, 7.3e-6, 2e-5, 3.1e-5, 1.1e-4, 0.0, 1.0, 1.0, None
    found = SelfCheck(
        engine=model,
        reference=model,
        details={},
        n_conversations=20,
        against_reference=Agreement(*numbers),
        noise_floor=NoiseFloor(1.1e-4, 7.3e-6, 3.1e-5, Agreement(*again), Agreement(*again)),
        is_deterministic=False,
        lines=[Line("mean |delta| from the reference", 0.0436, 0.1), Line("max |delta|", math.inf, 2.0)],
    )
    monkeypatch.setenv("COLUMNS", str(width))
    print_all_columns(wanted=False)  # as the command does, which has --wide
    print_selfcheck(found, Format.TABLE)
    check_snapshot(capsys.readouterr().out, "selfcheck", width)


@pytest.mark.slow
def test_output_to_a_pipe_is_as_wide_as_it_needs(
    run: Callable[..., str], commands: dict[str, list[str | Path]]
) -> None:
    for command in commands.values():
        assert "not shown" not in run(*command)
        assert run(*command, width=1_000) == run(*command)


def test_wide_prints_every_column(run: Callable[..., str], commands: dict[str, list[str | Path]]) -> None:
    narrow, wide = (run(*commands["stats"], *more, width=60) for more in ((), ("--wide",)))
    assert "--wide prints all" in narrow
    assert wide == run(*commands["stats"])
    print_all_columns(False)


def test_numbers_are_the_same_at_every_width(
    run: Callable[..., str], commands: dict[str, list[str | Path]]
) -> None:
    rows = json.loads(run(*commands["stats"], "--format", "json"))["groups"]
    for width in (20, 30, 40, *WIDTHS):
        shown = run(*commands["stats"], width=width)
        for row in rows:
            assert f"{row['n_tokens']:,}" in shown


def test_the_first_sentence_says_which_group_differs_most(
    run: Callable[..., str], commands: dict[str, list[str | Path]]
) -> None:
    report = json.loads(run(*commands["diff"], "--format", "json"))
    compared = [row for row in report["groups"] if row["n_tokens"]]
    most = max(compared, key=lambda row: row["gjs_0.5"]["lower"])
    sentence = run(*commands["diff"]).splitlines()[0]
    assert f"role {most['group']}, GJS 0.5 [{most['gjs_0.5']['lower']:.4f}, " in sentence
    assert f"over {most['n_tokens']} tokens" in sentence


def test_no_cell_is_cut_at_any_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(5)
    for _ in range(200):
        columns = [Column(f"c{i}", " ".join("ab" * draw.randint(1, 4) for _ in range(2))) for i in range(9)]
        values = [
            {
                column.key: draw.choice(
                    [draw.uniform(-1e9, 1e9), draw.randint(0, 10**12), None, "[0.1, 0.25]"]
                )
                for column in columns
            }
            | {"c0": "name " * draw.randint(1, 12)}
            for _ in range(3)
        ]
        width = draw.randint(10, 160)
        monkeypatch.setenv("COLUMNS", str(width))
        print_rows(columns, values, Format.TABLE)
        shown = capsys.readouterr().out
        assert "…" not in shown
        lines = shown.splitlines()
        if "───" in shown:  # a table, not records
            assert max(map(cell_len, lines)) <= width
        for value in values:  # a table has at least two numbers of each row
            n_there = sum(_shown(value[column.key]) in shown for column in columns[1:])
            assert n_there >= 2


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return shown_number(value, 4)
    return f"{value:,}" if isinstance(value, int) else str(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (51_328_833.4977, "5.13e7"),
        (-2.5e9, "-2.50e9"),
        (999_999.25, "999,999.2500"),
        (0.1234567, "0.1235"),
        (0.0, "0.0000"),
        (0.00001234, "1.23e-5"),
        (-0.00001234, "-1.23e-5"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_large_and_small_numbers_keep_three_digits(value: float, text: str) -> None:
    assert shown_number(value, 4) == text
    assert is_number(text)


@pytest.mark.parametrize(
    "text", ["12", "1,234.5", "-0.5", "[0.1, unbounded]", "5.13e7", "-", "infinite", "45%"]
)
def test_numbers_and_intervals_are_numbers(text: str) -> None:
    assert is_number(text)


@pytest.mark.parametrize("text", ["assistant", "[a, b]", "c-3", "yes", "1 of 3"])
def test_text_is_none(text: str) -> None:
    assert not is_number(text)


def test_columns_of_text_share_what_room_there_is() -> None:
    layout = lay_out(["a", "b", "c", "n"], [["x" * 90, "y" * 60, "z" * 8, "12"]], 60)
    assert layout.widths == (20, 20, 8, 2)
    assert layout.total <= 60


def test_text_wraps_where_numbers_have_room() -> None:
    layout = lay_out(["name", "n"], [["x" * 100, "12"]], 40)
    assert layout.columns == (0, 1)
    assert layout.total == 40


def test_a_text_of_a_megabyte_is_named_by_its_length(capsys: pytest.CaptureFixture[str]) -> None:
    """Padded to it, every other row would be as long."""
    columns, rows = [Column("k", "k"), Column("n", "n")], [{"k": "x" * 2_000_000, "n": 1}, {"k": "y", "n": 2}]
    print_rows(columns, rows, Format.TABLE)
    printed = capsys.readouterr().out
    assert f"{'x' * 60}… (2,000,000 letters)" in printed
    assert len(printed) < 1_000
    print_rows(columns, rows, Format.JSON)
    assert json.loads(capsys.readouterr().out) == rows
