"""Why records fail, before the work and after it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tokscore.dataset.errors import or_skip, without_skip
from tokscore.dataset.tokens import FailedConversation
from tokscore.rendering.failure_reasons import failure_reasons

Run = Callable[..., "subprocess.CompletedProcess[str]"]
GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}
NO_ROLE = {"messages": [{"role": "user", "content": "Hi"}, {"content": "Yo"}]}
NO_MESSAGES = {"messages": []}


@pytest.fixture
def mixed(write_jsonl: Callable[..., Path]) -> Path:
    later = {"messages": [GOOD["messages"][0], *NO_ROLE["messages"]]}
    return write_jsonl(GOOD, NO_ROLE, NO_MESSAGES, later, GOOD, NO_ROLE)


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_the_plan_says_why_and_ends_as_the_run(
    tokscore: Run, tiny_model: Path, mixed: Path, tmp_path: Path, on_error: str
) -> None:
    command = ("render", mixed, "-m", tiny_model, "-o", tmp_path / "tokens", "--on-error", on_error)
    planned, ran = tokscore(*command, "--dry-run"), tokscore(*command)
    assert planned.returncode == ran.returncode == (3 if on_error == "fail" else 0)
    reasons = [line for line in planned.stderr.splitlines() if " of 4 failures: " in line]
    assert [line.split(":")[0] for line in reasons] == ["3 of 4 failures", "1 of 4 failures"]
    assert "convs.jsonl:2: $.messages[1].role is missing" in reasons[0]
    assert "convs.jsonl:3: $.messages is empty" in reasons[1]
    if on_error == "skip":  # the run ends with the same lines
        assert [line for line in ran.stderr.splitlines() if " of 4 failures: " in line] == reasons
    else:
        assert planned.stderr.splitlines()[-1] == ran.stderr.splitlines()[-1]


def test_the_plan_has_reasons_as_json(tokscore: Run, tiny_model: Path, mixed: Path) -> None:
    command = ("render", mixed, "-m", tiny_model, "--dry-run", "--on-error", "skip", "--format", "json")
    failures = json.loads(tokscore(*command).stdout)["failures"]
    assert [(each["n"], each["source"], each["path"]) for each in failures] == [
        (3, "convs.jsonl:2", "$.messages[1].role"),
        (1, "convs.jsonl:3", "$.messages"),
    ]


def test_a_plan_of_failures_alone_ends_as_the_run(
    tokscore: Run, tiny_model: Path, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_jsonl(NO_ROLE, NO_MESSAGES)
    command = ("render", path, "-m", tiny_model, "-o", tmp_path / "tokens", "--on-error", "skip")
    assert tokscore(*command, "--dry-run").returncode == tokscore(*command).returncode == 3


def test_reasons_that_differ_in_texts_places_and_numbers_are_one() -> None:
    def failed(path: str, reason: str) -> FailedConversation:
        return FailedConversation("a", "f", 1, path, reason)

    reasons = failure_reasons(
        [
            failed("$.messages[1]", "has 1,000 tokens; expected at most 5."),
            failed("$.messages[22]", "has 7 tokens; expected at most 5."),
            failed("$.messages[3]", "is 'x y'; expected a role."),
            failed("$.messages[4]", 'is "z"; expected a role.\nmore'),
            failed("$.tools[4]", 'is "z"; expected a role.'),
        ]
    )
    assert [each.n for each in reasons] == [2, 2, 1]
    assert [each.first.path for each in reasons] == ["$.messages[1]", "$.messages[3]", "$.tools[4]"]


@pytest.mark.slow
def test_stats_reads_an_unfinished_run_and_says_so(
    tokscore: Run, tiny_model: Path, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 3 * 2**20}]}
    path = write_jsonl(GOOD, long, long, GOOD)
    out = tmp_path / "tokens"
    assert tokscore("render", path, "-m", tiny_model, "-o", out, "--verify", "off").returncode == 0
    parts = sorted((out / "tokens").iterdir())
    assert len(parts) == 2
    parts[0].unlink()
    assert tokscore("stats", out).returncode == 3
    done = tokscore("stats", out, "--partial", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "partial: 1 of 2 parts is finished" in done.stderr
    assert json.loads(done.stdout)["n_conversations"] == 1
    (out / "tokens" / parts[1].name).unlink()
    done = tokscore("stats", out, "--partial")
    assert done.returncode == 3
    assert "--partial" not in done.stderr


@pytest.mark.parametrize("command", [("render", "--dry-run"), ("drift",), ("stats",)], ids=" ".join)
def test_no_hint_says_to_skip_what_is_skipped(
    tokscore: Run, tiny_model: Path, write_jsonl: Callable[..., Path], tmp_path: Path, command: Sequence[str]
) -> None:
    name, *plan = command
    ids = {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4]}
    path = write_jsonl(ids if name == "stats" else GOOD, '{"messages": 3')
    out = ["-o", tmp_path / "out"] if name == "render" else []
    model = [] if name == "stats" else ["-m", tiny_model]
    given = (name, path, *model, *out, *plan, "--on-error")
    assert "Mend the line, or drop such lines with --on-error skip." in tokscore(*given, "fail").stderr
    skipped = tokscore(*given, "skip").stderr
    assert "Mend the line." in skipped
    assert "--on-error" not in skipped


def test_hints_to_skip_are_those_that_are_left_out() -> None:
    assert without_skip(or_skip("Mend it", "drop such lines")) == "Mend it."
    rooms = (Path(__file__).parents[2] / name for name in ("rendering", "scoring"))
    own = [
        path for room in rooms for path in room.rglob("*.py") if "on_error='skip'" in path.read_text("utf-8")
    ]
    assert own == []


def test_stats_of_files_may_end_at_the_first_failure(tokscore: Run, write_jsonl: Callable[..., Path]) -> None:
    good = {"prompt_token_ids": [1, 2], "completion_token_ids": [3]}
    path = write_jsonl(good, {"prompt_token_ids": "x", "completion_token_ids": [3]})
    assert tokscore("stats", path, "--input-format", "tokens").returncode == 0
    failed = tokscore("stats", path, "--input-format", "tokens", "--on-error", "fail")
    assert (failed.returncode, failed.stdout) == (3, "")
    assert "convs.jsonl:2" in failed.stderr
