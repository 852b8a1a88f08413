"""Any value of any option of any command: an error that says what is wrong, or a result, never a traceback."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.fuzzing import Printed, commands, run_cases
from tokscore.cli.printing.console import note
from tokscore.dataset.errors import TokscoreError

EVIL = "a\x1b[31m\x1b]0;x\x07\u202e\x9b\r"
NUMBERS = (
    "inf", "-inf", "nan", "0", "-0.0", "-1", "1", "2", "0.5", "1e308", "1e-320", "1e400", "9" * 20, "1" + "0" * 30
)  # fmt: skip
NO_NUMBERS = ("", "many", "1,5", "١")
# Options whose value has a number in it.
AROUND_NUMBERS = (
    ("stats", "--limit", "output={}"), ("stats", "--limit", "max_turns={}"), ("diff", "--fail-if", "log_ratio > {}"),
    ("select", "--where", "n_tokens > {}"), ("logprobs", "--engine-arg", "max_model_len={}"),
    ("logprobs", "--engine-arg", "logits_bytes={}"), ("logprobs", "--shard", "{}/3"), ("logprobs", "--shard", "1/{}"),
    ("select", "--keep-top", "{}%"),
)  # fmt: skip
GOOD_NUMBERS = ("1", "2", "3", "8", "0.5")
TEXTS = (
    "", " ", "-", "--", ",", "=", ":", "x", "role", "role,role", "metadata.k", "metadata.", "position,branch",
    "a" * 5_000, EVIL, "\udcff", "\ud800", "é\u0301", "\n", "a\tb", "%s%n{}", "`top_k=5`", "[bold]x[/bold]",
    "max_turns=1", "output=999", "role=assistant", f"role={EVIL}", "role=", "sampled", "content", "1/2", "0/0",
    "50%", "1e3%", "mean_logprob > -4", "role=user: gjs_0.5.lower > 0", f"{EVIL} > 0", "2024-01-01", "auto",
    "max_length=5", f"{EVIL}=1", "c0", "utf-8", "openai", "tokens", "chatml", "int8", "fp8", "main",
)  # fmt: skip
JSON = (
    "{}", "[]", "null", "1e999", "NaN", '{"\\ud800":"\\ud800"}', '{"a":', "[" * 10_000, '{"tools": 1}', '"x"',
    '{"messages": 5}', '{"enable_thinking": false}', '{"a":' * 500 + "1" + "}" * 500, f'{{"{"k" * 9_000}": 1}}',
)  # fmt: skip
# Starting so many processes, or loading what is not there, is not what is tried here.
LEFT_OUT = {
    "--engine-path", "--tensor-parallel-size", "--pipeline-parallel-size", "--executor", "--replicas",
    "--replica-memory", "--stall-timeout",
}  # fmt: skip
NUMERIC = {"N", "K", "S", "T", "C", "A", "MB", "NATS", "N|P%", "I/N"}
# Without these the option itself is refused, whatever its value is.
COMPANIONS = {
    "--html-max-mb": ("--html=page.html",),
    "--tokens-per-s": ("--dry-run",),
    "--chunk": ("--input-format=text",),
    "--stride": ("--input-format=text", "--chunk=20"),
    "--context": ("--input-format=text", "--chunk=20"),
    "--keep-top": ("--by=mean_logprob",),
    "--keep-bottom": ("--by=mean_logprob",),
    "--alpha": ("--metric=gjs",),
}


class Files:
    """What arguments may name."""

    def __init__(self, folder: Path, model: Path, scores: Path) -> None:
        self.model, self.scores = str(model), str(scores)
        self.scored = str(scores.parent / "convs.jsonl")
        self.good, self.evil = str(folder / "convs.jsonl"), str(folder / f"{EVIL}.jsonl")
        records = [
            {
                "id": f"c{i}" if i else EVIL,
                "metadata": {"k": EVIL, EVIL: 1},
                "messages": [{"role": "user", "content": EVIL}, {"role": "assistant", "content": "Yo"}],
            }
            for i in range(3)
        ]
        for path in (self.good, self.evil):
            Path(path).write_text("".join(json.dumps(record) + "\n" for record in records))
        self.bytes = os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.jsonl")
        shutil.copy(self.good, self.bytes)
        self.template = str(folder / "template.jinja")
        Path(self.template).write_text(f"{{{{ raise_exception({EVIL!r}) }}}}")
        self.broken = str(folder / "broken.json")
        Path(self.broken).write_bytes(b'{"a": \xff')
        self.paths = [
            self.model, self.scores, self.good, self.evil, self.bytes, self.template, self.broken, str(folder),
            str(folder / "none"), "/dev/null", "/dev/full/x", "/proc/self/mem", "a" * 300, "\0", f"out-{EVIL}",
            os.fsdecode(b"out-\xff"), "out", "out/deep/er",
        ]  # fmt: skip


def arguments_of(name: str, files: Files, chance: random.Random) -> list[str]:
    """Those that a command needs, usually good ones."""

    def path(good: str) -> str:
        return good if chance.random() < 0.95 else chance.choice([*files.paths, *TEXTS])

    conversations = path(chance.choice([files.good, files.evil, files.bytes]))
    match name:
        case "render" | "logprobs" | "drift":
            found = [conversations, "-m", path(files.model)]
            return (
                found
                if name == "drift" or chance.random() < 0.3
                else [*found, "-o", path(f"o{chance.randrange(3)}")]
            )
        case "diff":
            return [path(files.scores), path(files.scores)]
        case "stats":
            return [path(chance.choice([files.scores, conversations]))]
        case "verify" | "status":
            return [path(files.scores)]
        case "merge":
            return [path(files.scores), "-o", path(f"m{chance.randrange(3)}")]
        case "show":
            return [path(files.scores), chance.choice(["c1", EVIL, *TEXTS])]
        case "select":
            return [path(files.scores), conversations, *chance.choice([[], ["-o", path("kept.jsonl")]])]
        case "export":
            return [path(files.scores), "-o", path("exported.parquet")]
        case "selfcheck":
            return [conversations, "-m", path(files.model), "--max-tokens-total", "20"]
        case "template":
            return [
                path(chance.choice([files.model, files.template])),
                *chance.choice([[], ["-m", files.model]]),
            ]
    return []


def good_arguments(name: str, files: Files, number: int) -> list[str]:
    """Those with which the command does its work."""
    match name:
        case "render" | "logprobs" | "drift" | "selfcheck":
            out = [] if name in {"drift", "selfcheck"} else ["-o", f"good-{number}"]
            return [files.good, "-m", files.model, *out]
        case "diff":
            return [files.scores, files.scores]
        case "show":
            return [files.scores, "kettle-limescale"]
        case "select":
            return [files.scores, files.scored]
        case "merge":
            return [files.scores, "-o", f"good-{number}"]
        case "export":
            return [files.scores, "-o", f"good-{number}.parquet"]
        case "template":
            return [files.model]
    return [files.scores] if name in {"stats", "verify", "status"} else []


def command_line(commands: dict[str, Any], files: Files, chance: random.Random) -> list[str]:
    """One command with a few options of any value."""
    name = chance.choice(list(commands))
    line = [name, *arguments_of(name, files, chance)]
    options = [each for each in commands[name].params if each.param_type_name == "option"]
    for option in chance.sample(options, min(len(options), chance.choice([1, 1, 2, 2, 3, 5]))):
        flag = option.opts[0]
        if flag in LEFT_OUT or flag == "--model":
            continue
        if option.is_flag:
            line.append(flag)
            continue
        kinds: list[Sequence[str]] = [NUMBERS, TEXTS, JSON, files.paths]
        if option.metavar in NUMERIC:
            kinds += [NUMBERS] * 6 + [GOOD_NUMBERS] * 6
        elif option.metavar == "JSON":
            kinds += [JSON] * 6
        elif option.metavar and ("FILE" in option.metavar or "DIR" in option.metavar):
            kinds += [files.paths] * 6
        elif option.metavar is None:
            # typer shows the members of a choice in the help of the option.
            choices = [each for each in str(option.display_type(None)).strip("[]<>").split("|") if each]
            kinds += [choices or TEXTS] * 20
        value = chance.choice(chance.choice(kinds))
        if flag == "--workers" and value not in ("0", "-1", "inf", "nan"):
            value = "1"  # processes start anew, which takes a while
        line.append(f"{flag}={value}")
    return line


class Outcome:
    """What a command said, and how it ended."""

    def __init__(self, line: list[str]) -> None:
        with Printed() as printed:
            self.kind = self._run(line)
        self.printed = printed.stdout + printed.stderr

    def _run(self, line: list[str]) -> str:
        """What came of it; whatever `main` would not turn into a message is raised."""
        try:
            code = commands()(line, prog_name="tokscore", standalone_mode=False)
        except TokscoreError as error:
            note(f"error: {error}")
            return type(error).__name__
        except SystemExit as ending:
            code = ending.code
        except OSError as error:
            if error.filename is None and error.strerror is None:
                raise
            note(f"error: {error.filename}: {error.strerror}")
            return "OSError"
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            shown = io.StringIO()
            usage: Any = error  # typer's own click has no public name
            usage.show(shown)
            note(shown.getvalue())
            return "UsageError"
        return f"exit code {code or 0}"


def raw_controls(text: str) -> set[str]:
    """Characters of it that a terminal obeys, but for newlines and the tabs of CSV."""
    return {each for each in text if each not in "\n\t" and not each.isprintable() and not each.isspace()} | {
        each for each in text if each in "\r\v\f\x85\u2028\u2029"
    }


@pytest.fixture
def files(tmp_path: Path, tiny_model: Path, tiny_scores: Path) -> Iterator[Files]:
    """Copies: an option may name them as what to write."""
    model, scores = tmp_path / "model", tmp_path / "scored" / "scores"
    shutil.copytree(tiny_model, model)
    shutil.copytree(tiny_scores.parent, scores.parent)
    before = Path.cwd()
    os.chdir(tmp_path)
    yield Files(tmp_path, model, scores)
    os.chdir(before)


def tried(line: list[str]) -> Outcome:
    """The outcome of a command line, which prints nothing raw."""
    try:
        outcome = Outcome(line)
    except Exception as error:
        error.add_note(str(line)[:600])
        raise
    assert raw_controls(outcome.printed) == set(), line
    return outcome


@pytest.mark.filterwarnings("default")
def test_no_value_of_an_option_ends_in_a_traceback_or_reaches_the_terminal_raw(
    files: Files,
) -> None:
    def case(_number: int, chance: random.Random) -> str:
        return tried(command_line(commands().commands, files, chance)).kind

    outcomes = run_cases(80, 20_000, case, limit_s=60.0)
    assert outcomes["exit code 0"] > sum(outcomes.values()) / 20


@pytest.mark.filterwarnings("default")
def test_every_number_is_taken_or_refused_by_name(files: Files) -> None:
    sweep = [
        (name, option.opts[0], value)
        for name, command in commands().commands.items()
        for option in command.params
        if option.param_type_name == "option" and (option.metavar in NUMERIC or option.opts[0] == "--seed")
        for value in (*NUMBERS, *NO_NUMBERS)
    ]
    sweep += [
        (name, flag, text.format(value))
        for name, flag, text in AROUND_NUMBERS
        for value in (*NUMBERS, *NO_NUMBERS)
    ]
    random.Random(0).shuffle(sweep)
    assert len(sweep) > 30 * len(NUMBERS)

    @cache
    def without(name: str, companions: tuple[str, ...]) -> str:
        """What is said of the rest of a command, which may not go together."""
        return tried([name, *good_arguments(name, files, len(sweep)), *companions]).printed

    def case(number: int, _chance: random.Random) -> str:
        name, flag, value = sweep[number % len(sweep)]
        companions = [each for each in COMPANIONS.get(flag, ()) if not (name == "diff" and "metric" in each)]
        outcome = tried([name, *good_arguments(name, files, number), *companions, f"{flag}={value}"])
        if outcome.kind != "exit code 0":
            named = (flag, flag.removeprefix("--") + " is", value, value.rpartition(" ")[2])
            is_named = any(each and each in outcome.printed for each in named)
            assert is_named or outcome.printed == without(name, tuple(companions)), outcome.printed
        return outcome.kind

    run_cases(60, len(sweep), case, limit_s=60.0)
