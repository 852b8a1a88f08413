from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
COMMANDS = ["render", "logprobs", "diff", "stats", "drift", "formats", "show"]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_ends_with_two_examples(tokscore: Run, command: list[str]) -> None:
    shown = tokscore(*command, "--help")
    assert shown.returncode == 0
    assert shown.stderr == ""
    examples = shown.stdout.split("Examples:\n")[1].replace("\\\n", "").strip().splitlines()
    assert len(examples) == 2
    assert all(example.split()[0] == "tokscore" for example in examples)


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
