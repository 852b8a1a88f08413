from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
COMMANDS = [
    "render",
    "logprobs",
    "diff",
    "stats",
    "show",
    "drift",
    "select",
    "export",
    "selfcheck",
    "template",
]
COMMANDS += ["merge", "status", "verify", "formats"]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_ends_with_two_examples(tokscore: Run, command: list[str]) -> None:
    shown = tokscore(*command, "--help")
    assert shown.returncode == 0
    assert shown.stderr == ""
    examples = shown.stdout.split("Examples:\n")[1].replace("\\\n", "").strip().splitlines()
    assert len(examples) == 2
    assert all(example.split()[0] == "tokscore" for example in examples)


@pytest.mark.slow
@pytest.mark.model
def test_the_examples_of_the_help_work(
    tokscore: Run, teacher_model: Path, tiny_scores: Path, tmp_path: Path
) -> None:
    """As printed, but for the place of the models and with a small model's scores as the demo's output."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name in ("teacher", "student"):
        (tmp_path / "demo-output" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "demo-output" / name).symlink_to(tiny_scores)
    (tmp_path / "demo-output" / "tokens").symlink_to(tiny_scores)
    ran = 0
    for command in ("render", "diff", "stats", "drift", "formats", "show"):
        text = tokscore(command, "--help").stdout.split("Examples:\n")[1].replace("\\\n", "")
        for line in text.strip().splitlines():
            arguments = line.replace("~/.cache/tokscore/models", str(teacher_model.parent)).split()[1:]
            finished = tokscore(*arguments, cwd=tmp_path)
            assert finished.returncode == 0, (line, finished.stderr)
            ran += 1
    assert ran == 12


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['tokscore', 'logprobs', '--help']\n"
        "from tokscore.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'polars', 'pyarrow', 'torch', 'transformers', 'vllm', 'jinja2', 'rich'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines()[-1] == "loaded: []"


def test_no_arguments_print_the_help(tokscore: Run) -> None:
    shown = tokscore()
    assert shown.returncode == 2
    assert "Usage: tokscore" in shown.stdout + shown.stderr


def test_the_version_is_printed(tokscore: Run) -> None:
    from importlib.metadata import version

    assert tokscore("--version").stdout.strip() == version("tokscore")


def test_an_unknown_option_is_wrong_usage(tokscore: Run) -> None:
    assert tokscore("render", "--no-such-option").returncode == 2


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.slow
def test_help_is_as_wide_as_the_terminal(tokscore: Run, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = [
        line
        for name in COMMANDS
        for line in tokscore(name, "--help").stdout.split("Examples:")[0].splitlines()
    ]
    assert max(map(len, lines)) <= width
    assert width > 120 or max(map(len, lines)) > width - 15


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_shows_options_in_groups_without_types_of_python(tokscore: Run, name: str) -> None:
    shown = tokscore(name, "--help").stdout
    assert "<list[" not in shown
    assert "<str>" not in shown
    assert "[default: (" not in shown
    if shown.count("\n  --") > 10:
        assert "\nOutput:\n" in shown


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("tokscore sel", ["select", "selfcheck"]),
        ("tokscore render --input-format tau", ["tau-bench", "tau2-bench"]),
        ("tokscore stats --by ro", ["role"]),
        ("tokscore stats --by role,is_s", ["role,is_sampled"]),
        ("tokscore diff --align c", ["content"]),
        ("tokscore diff --det", ["--details"]),
    ],
)
def test_shells_complete_commands_options_formats_and_columns(words: str, found: list[str]) -> None:
    environment = {
        **os.environ,
        "_TOKSCORE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    finished = subprocess.run(
        [sys.executable, "-c", "from tokscore.cli.main import main; main()"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert sorted(finished.stdout.split()) == found, finished.stderr


def test_the_version_has_a_short_option(tokscore: Run) -> None:
    assert tokscore("-V").stdout == tokscore("--version").stdout
