"""How far an output is can be told from its files, by whoever looks."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tests.score_samples import write_scores
from tokscore.cli.app import app
from tokscore.dataset.claims.claim import CLAIMS, Claim
from tokscore.dataset.claims.claiming import Claims
from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.claims.files import ClaimFiles
from tokscore.dataset.errors import UsageError
from tokscore.dataset.manifest import InputFile, Part, read_manifest
from tokscore.dataset.outputs.status import State, status

N_PARTS, N_TOKENS = 10, 11


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Ten equal parts, of which part 0 is done."""
    root = write_scores(tmp_path / "scores", [("a", (("user", tuple(range(1, N_TOKENS))),))])
    manifest = msgspec.structs.replace(
        read_manifest(root),
        inputs=[InputFile("convs.jsonl", 100 * N_PARTS, "0" * 64)],
        parts=[Part(i, 0, 100 * i, 100 * (i + 1), i + 1) for i in range(N_PARTS)],
    )
    (root / "manifest.json").write_bytes(manifest.sealed().to_json())
    return root


def claim(root: Path, part: int, **changes: object) -> None:
    now = time.time()
    made = Claim(
        part=part, attempt=1, host="other", namespace="other", pid=7, pid_start=0, replica=f"r{part}",
        started=now - 10, heartbeat=now, lease_s=60.0, n_tokens=5, n_tokens_before=15, n_parts_before=2,
        replica_started=now - 40,
    )  # fmt: skip
    made = msgspec.structs.replace(made, **changes)
    assert ClaimFiles(root / CLAIMS).create(made.name, msgspec.json.encode(made))


def test_parts_are_done_running_failed_or_missing(root: Path) -> None:
    claim(root, 1)
    claim(root, 2)
    Claims(root, "scores").give_up(3, "five processes ended")
    found = status(root)
    assert (found.n_parts, found.n_done, found.n_running) == (N_PARTS, 1, 2)
    assert (found.n_failed, found.n_missing) == (1, 6)
    assert [(each.part, each.reason) for each in found.failed] == [(3, "five processes ended")]


def test_rates_and_the_time_left_come_from_heartbeats(root: Path) -> None:
    claim(root, 1)
    claim(root, 2)
    found = status(root)
    assert (found.n_tokens, found.n_tokens_left) == (N_TOKENS, 9 * N_TOKENS)
    assert found.tokens_per_s == pytest.approx(2 * 20 / 40)
    assert found.tokens_per_s_now == pytest.approx(2 * 5 / 10)
    assert found.left_s == pytest.approx((9 * N_TOKENS - 10) / 1.0)
    assert [(each.name, each.n_tokens, each.n_parts) for each in found.replicas] == [
        ("r1", 20, 2),
        ("r2", 20, 2),
    ]


def test_without_claims_the_rate_is_that_of_the_files(root: Path) -> None:
    assert status(root).left_s is None
    folder = root / "scores"
    for part, ago_s in ((0, 30), (1, 20), (2, 10)):
        if part:
            shutil.copy(folder / part_name(0), folder / part_name(part))
        now = time.time()
        os.utime(folder / part_name(part), (now - ago_s, now - ago_s))
    found = status(root)
    assert (found.n_done, found.n_running) == (3, 0)
    assert found.tokens_per_s == pytest.approx(2 * N_TOKENS / 20, rel=0.01)
    assert found.left_s == pytest.approx(7 * N_TOKENS / (2 * N_TOKENS / 20), rel=0.01)


def test_a_process_that_is_silent_or_ended_does_not_run(root: Path) -> None:
    claim(root, 1, heartbeat=time.time() - 100)
    mine = Claims(root, "scores", "mine")
    assert mine.take(2)
    held = mine.held
    assert held is not None
    claim(root, 4, namespace=held.namespace, pid=2**22 + 1)
    found = status(root)
    assert {each.part: each.state for each in found.replicas} == {
        1: State.SILENT, 2: State.RUNNING, 4: State.ENDED,
    }  # fmt: skip
    assert found.n_running == 1
    assert found.replicas[1].pid == os.getpid()


def test_the_command_prints_what_is_left(root: Path) -> None:
    claim(root, 1)
    done = CliRunner().invoke(app, ["status", str(root)])
    assert done.exit_code == 0, done.output
    assert "left at that rate" in done.output
    assert "r1" in done.stdout
    document = json.loads(CliRunner().invoke(app, ["status", str(root), "--format", "json"]).stdout)
    assert (document["n_done"], document["replicas"][0]["state"]) == (1, "running")


def test_watching_ends_when_all_parts_are_done(tmp_path: Path) -> None:
    root = write_scores(tmp_path / "scores", [("a", (("user", (1, 2)),))])
    done = CliRunner().invoke(app, ["status", str(root), "--watch"])
    assert "all parts are done" in done.output
    assert "0 left" not in done.output


@pytest.mark.parametrize("value", ["inf", "nan", "0", "-1"])
@pytest.mark.parametrize("option", [["status", "--every"], ["merge", "-o", "out", "--part-mb"]])
def test_numbers_that_make_no_sense_are_refused(root: Path, option: list[str], value: str) -> None:
    command, *rest = option
    done = CliRunner().invoke(app, [command, str(root), *rest, value])
    assert isinstance(done.exception, UsageError)
    assert f"is {float(value):g}; expected between" in str(done.exception)
