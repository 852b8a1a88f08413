from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
COMMANDS = ["render", "logprobs", "diff", "stats"]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_ends_with_two_examples(tokscore: Run, command: list[str]) -> None:
    shown = tokscore(*command, "--help")
    assert shown.returncode == 0
    assert shown.stderr == ""
    examples = shown.stdout.split("Examples:\n")[1].strip().splitlines()
    assert len(examples) == 2
    assert all("tokscore" in example for example in examples)


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
