"""What reaches the terminal, and what does not."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tokscore.cli.printing.console import GuardedStream
from tokscore.cli.printing.styled import StyledConsole
from tokscore.cli.printing.visible import escaped, json_escaped

EVIL = "a\x1b[31m\x1b]0;x\x07\u202e\x9b\r\x00b"
SHOWN = r"a\x1b[31m\x1b]0;x\x07\u{202e}\u{9b}\r\x00b"
EVIL_ARGUMENT = EVIL.replace("\0", "")  # an argument cannot have a NUL
HALF = "\ud800"
COMMAND = (sys.executable, "-m", "tokscore.cli.main")
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]


def raw_controls(printed: str | bytes) -> set[str]:
    """Characters that a terminal obeys; newlines are none."""
    text = printed if isinstance(printed, str) else printed.decode()
    return {each for each in text if each != "\n" and not each.isprintable()}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (EVIL, SHOWN),
        (
            "two\nlines, \N{GREEK SMALL LETTER ALPHA} 漢字 👩",
            "two\nlines, \N{GREEK SMALL LETTER ALPHA} 漢字 👩",
        ),
        ("tab\t\u2028\u200b\ufeff", r"tab\t\u{2028}\u{200b}\u{feff}"),
        (f"{HALF} \udcff", r"\u{d800} \xff"),
    ],
)
def test_foreign_text_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown
    assert escaped(shown) == shown


@pytest.mark.parametrize("is_ascii", [False, True])
def test_json_keeps_its_values(is_ascii: bool) -> None:
    value = {EVIL: [EVIL, "\U000e0001 👩 é"], "half": HALF}
    text = json_escaped(json.dumps(value, ensure_ascii=False, indent=1), is_ascii=is_ascii)
    assert raw_controls(text) == set()
    assert text.isascii() or not is_ascii
    assert json.loads(text) == value


def test_a_stream_escapes_what_anybody_writes_but_not_the_colours_of_the_console(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.BytesIO()
    stream = GuardedStream(io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(sys, "stdout", stream)
    print(EVIL, "é")
    stream.writelines([EVIL])
    # rich itself leaves out \x07 and \r.
    StyledConsole(force_terminal=True, color_system="standard").print("\x1b]0;x\u202e", style="red")
    stream.flush()
    first, styled = written.getvalue().decode("ascii").split("\n")[:2]
    assert first == f"{SHOWN} \\xe9"
    assert styled == rf"{SHOWN}" + "\x1b[31m" + r"\x1b]0;x\u{202e}" + "\x1b[0m"


@pytest.fixture(scope="module")
def evil_scores(tokscore: Run, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose ids, tool names, metadata, files and model have escapes in their names."""
    folder = tmp_path_factory.mktemp("evil")
    model = folder / f"model{EVIL_ARGUMENT}"
    model.symlink_to(tiny_model)
    record = {
        "id": EVIL_ARGUMENT,
        "metadata": {EVIL: EVIL, "k": EVIL},
        "messages": [
            {"role": "user", "content": EVIL, EVIL: 1},
            {"role": "tool", "name": EVIL, "content": "x", "tool_call_id": EVIL},
            {"role": "assistant", "content": "Yo", "refusal": EVIL},
        ],
    }
    bad = {"id": EVIL, "messages": [{"role": EVIL, "content": 5}]}
    path = folder / f"convs{EVIL_ARGUMENT}.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (record, bad)))
    finished = tokscore(
        *("logprobs", path, "-m", model, "-o", folder / "scores", "--engine", "transformers"),
        *("--on-error", "skip", "--top-k", "5"),
    )
    assert finished.returncode == 0, finished.stderr
    assert raw_controls(finished.stdout + finished.stderr) == set()
    return folder / "scores"


@pytest.mark.slow
def test_no_command_prints_a_control_character_of_its_data(
    tokscore: Run, evil_scores: Path, tmp_path: Path
) -> None:
    folder = evil_scores.parent
    path = next(folder.glob("convs*"))
    model = ("-m", next(folder.glob("model*")))
    evil = EVIL_ARGUMENT
    tables = [
        ("diff", evil_scores, evil_scores, "--by", "metadata.k,conversation_id"),
        ("stats", evil_scores, "--by", "metadata.k,conversation_id"),
        ("stats", evil_scores, "--spans"),
        ("show", evil_scores, evil),
    ]
    others = [
        ("render", path, *model, "-o", tmp_path / "tokens", "--on-error", "skip"),
        ("render", path, *model, "-o", tmp_path / "failed"),
        ("render", path, *model, "--explain", evil),
        ("render", path, *model, "--dry-run"),
        ("logprobs", evil_scores, *model, "-o", evil_scores),
        ("diff", evil_scores, evil_scores, "--fail-if", f"role={evil}: x > 1"),
        ("stats", evil_scores, "--by", f"metadata.{evil}"),
        ("stats", evil_scores, "--by", f"conversation_id,{evil}"),
        ("stats", evil_scores, "--limit", "max_turns=1"),
        ("stats", path),
        ("show", evil_scores, f"{evil}2"),
        ("drift", path, *model, "--on-error", "skip"),
        ("select", evil_scores, path, "--where", "n_tokens > 1", "-o", tmp_path / "kept.jsonl"),
        ("select", evil_scores, path, "--where", f"{evil} > 1"),
        ("export", evil_scores, "-o", tmp_path / f"{evil}.parquet"),
        ("export", evil_scores, "-o", tmp_path / "topk", "--format", evil),
        ("selfcheck", path, *model, "--max-tokens-total", "60", "--engine", "transformers"),
        ("template", model[1]),
        ("formats", "--input\x1b[31m"),
    ]
    runs = [(*table, "--format", form) for table in tables for form in ("table", "json", "csv")] + others
    wrong = []
    for run in runs:
        finished = tokscore(*run)
        found = raw_controls(finished.stdout + finished.stderr) - ({"\t"} if "csv" in run else set())
        if found or "Traceback" in finished.stderr:
            wrong.append((run, found, finished.stderr))
    assert wrong == []


def test_what_a_template_says_is_escaped(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    template = tmp_path / "t.jinja"
    template.write_text(r"{{ raise_exception('\x1b[31mX\x1b]0;t\x07') }}")
    path = write_jsonl({"messages": [{"role": "user", "content": "x"}]})
    finished = tokscore("render", path, "-m", tiny_model, "-o", tmp_path / "o", "--template", template)
    assert finished.returncode == 3
    assert r"\x1b[31mX\x1b]0;t\x07" in finished.stderr
    assert raw_controls(finished.stderr) == set()


def in_shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The outcome of a line for the shell, in which `$T` is tokscore."""
    command = f"T='{' '.join(COMMAND)}'; {line}"
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    return subprocess.run(["sh", "-c", command], cwd=folder, env=variables, capture_output=True, check=False)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("$T stats scores >&-", 1, "error: standard output is closed"),
        ("$T --version >&-", 1, "error: standard output is closed"),
        ("$T stats scores >/dev/full", 1, "error: standard output: No space left on device."),
        ("$T stats scores 2>&-", 0, ""),
        ("$T stats scores <&-", 0, "conversation"),
        ("$T render - -m x --dry-run <&-", 3, "error: - is standard input, which is closed"),
        ("$T stats scores --format json 2>&1 | true", 0, ""),
        ("$T stats scores 2>&1 >&- <&- | cat >&2", 0, "error: standard output is closed"),
    ],
)
def test_streams_that_are_closed_or_full(
    tiny_scores: Path, tmp_path: Path, line: str, code: int, said: str
) -> None:
    (tmp_path / "scores").symlink_to(tiny_scores)
    finished = in_shell(line, tmp_path)
    assert finished.returncode == code, finished.stderr
    assert said in finished.stderr.decode()
    assert b"Traceback" not in finished.stderr
    assert b"Exception ignored" not in finished.stderr


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
@pytest.mark.slow
def test_what_an_encoding_lacks_is_escaped_and_nothing_ends_in_the_middle(
    tiny_scores: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "scores").symlink_to(tiny_scores)
    shown = in_shell("$T show scores kettle-limescale", tmp_path, **environment)
    assert shown.returncode == 0, shown.stderr
    last = shown.stdout.decode("latin-1").splitlines()[-1]
    assert "<|im_end|>" in last
    assert "\\u21b5" in last
    found = in_shell("$T show scores kettle-limescale --format json", tmp_path, **environment)
    assert json.loads(found.stdout)["conversation_id"] == "kettle-limescale"


def test_a_full_disk_under_a_temporary_copy_is_not_blamed_on_the_input(
    tiny_model: Path, tmp_path: Path
) -> None:
    import gzip

    record = json.dumps({"messages": [{"role": "user", "content": "x" * 900}]}) + "\n"
    (tmp_path / "many.jsonl.gz").write_bytes(gzip.compress(record.encode() * 400))
    command = [*COMMAND, "render", "many.jsonl.gz", "-m", str(tiny_model), "-o", "out"]
    limited = (
        "import resource, runpy, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"sys.argv = {command[2:]!r}\n"
        "sys.argv[0] = 'tokscore'\n"
        "runpy.run_module('tokscore.cli.main', run_name='__main__')\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", limited],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert finished.returncode == 1, finished.stderr
    assert "a temporary file cannot be written in" in finished.stderr
    assert "File too large" in finished.stderr
    assert not (tmp_path / "out").exists()
