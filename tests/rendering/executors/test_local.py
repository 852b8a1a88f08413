"""Replicas on one machine write what one process writes, whatever happens to them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.dataset.claims import two_writers
from tests.rendering.executors.troubled_work import TroubledExecution, render
from tokscore.dataset.choices import Executor
from tokscore.dataset.claims.claim import read_claims
from tokscore.dataset.claims.claiming import Claims
from tokscore.dataset.claims.processes import is_running
from tokscore.dataset.errors import InputError, TokscoreError
from tokscore.dataset.manifest import read_manifest
from tokscore.dataset.reading import Dataset
from tokscore.rendering.executors.claimed import check_none_failed
from tokscore.rendering.executors.execution import HERE, Execution
from tokscore.rendering.run import render as render_files

ROOT = Path(__file__).parents[3]
N_PARTS = 12
# Between SIGTERM and SIGKILL; Kubernetes and Slurm give 30 s where nobody asks for more.
CLUSTER_GRACE_S = 30


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "convs.jsonl"
    records = [
        {
            "id": f"c{i}",
            "messages": [{"role": "user", "content": "é" * i}, {"role": "assistant", "content": "y"}],
        }
        for i in range(32)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def undisturbed(tiny_model: Path, lines: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    render(str(tiny_model), str(lines), out, HERE)
    assert len(Dataset(out).manifest.parts) >= N_PARTS
    return contents(out)


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a dataset, hidden ones included."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def driver(model: Path, lines: Path, out: Path, executor: Executor = Executor.LOCAL) -> list[str]:
    """A command that renders with two replicas, each of which needs some time for a part."""
    # As a module that has its name, which replicas import it by.
    code = "from tests.rendering.executors.troubled_work import main; main()"
    return [sys.executable, "-c", code, str(model), str(lines), str(out), executor.value]


def n_done(out: Path) -> int:
    return len(list((out / "tokens").glob("part-*.parquet")))


def test_two_replicas_write_what_one_process_writes(
    tiny_model: Path,
    lines: Path,
    tmp_path: Path,
    undisturbed: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _number: killed.append(group))
    seen: list[tuple[int, int]] = []
    told: list[str] = []
    execution = Execution(replicas=2)
    out = tmp_path / "out"
    render(
        str(tiny_model),
        str(lines),
        out,
        execution,
        progress=lambda *done: seen.append(done),
        tell=told.append,
    )
    assert contents(out) == undisturbed
    manifest = Dataset(out).manifest
    assert told == [f"2 replicas work on {len(manifest.parts)} parts."]
    assert seen[-1] == (len(manifest.parts), Dataset(out).n_rows("tokens"))
    assert seen == sorted(seen, key=lambda done: done[0])
    # Once, when it has just ended: later its id may be that of another process.
    assert len(killed) == len({*killed}) == 2


@pytest.mark.slow
def test_killed_replicas_are_started_again(
    tiny_model: Path, lines: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    out, killed, told = tmp_path / "out", [], []
    chance = random.Random(0)

    def kill_one(_n_parts: int, _n_tokens: int) -> None:
        owners = {claim.pid for claim in read_claims(out).claims.values()} - {*killed}
        if owners and len(killed) < 3:
            time.sleep(chance.uniform(0, 0.1))
            killed.append(owners.pop())
            os.kill(killed[-1], signal.SIGKILL)

    render(
        str(tiny_model),
        str(lines),
        out,
        TroubledExecution(replicas=2),
        progress=kill_one,
        tell=told.append,
    )
    assert contents(out) == undisturbed
    assert len(killed) == 3
    assert sum("was ended by SIGKILL; it is started again" in line for line in told) == 3


@pytest.mark.parametrize("is_group", [False, True], ids=["driver", "group"])
@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_behind_and_the_next_run_finishes(
    tiny_model: Path, lines: Path, tmp_path: Path, undisturbed: dict[str, bytes], is_group: bool
) -> None:
    out = tmp_path / "out"
    run = subprocess.Popen(driver(tiny_model, lines, out), cwd=ROOT, start_new_session=True)
    while n_done(out) < 2:
        assert run.poll() is None
        time.sleep(0.01)
    owners = {claim.pid for claim in read_claims(out).claims.values()}
    (os.killpg if is_group else os.kill)(run.pid, signal.SIGKILL)
    run.wait()
    until = time.monotonic() + 20
    while any(map(is_running, owners)):
        assert time.monotonic() < until, "a replica outlived its driver"
        time.sleep(0.01)
    assert 2 <= n_done(out) < N_PARTS
    before = {name: content for name, content in contents(out).items() if name.startswith("tokens/part")}
    render(str(tiny_model), str(lines), out, Execution(replicas=2))
    assert contents(out) == undisturbed
    assert before.items() <= undisturbed.items()


TOLD_WHILE_DELETING = """
import os, signal, time
from tokscore.rendering.executors.process import end_when_told

class Deleted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass

end_when_told()
del (deleted := [Deleted()])[0]
time.sleep(20)
"""


@pytest.mark.slow
def test_a_replica_that_is_told_to_end_while_it_deletes_an_object_ends() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", TOLD_WHILE_DELETING], capture_output=True, text=True, check=False, timeout=15
    )
    assert (finished.returncode, finished.stderr) == (143, "")


@pytest.mark.slow
def test_a_driver_that_is_told_to_end_keeps_whole_parts_and_lets_go_of_the_others(
    tiny_model: Path, lines: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    """SIGTERM, some time before what cannot be caught, as schedulers of clusters send it."""
    out = tmp_path / "out"
    run = subprocess.Popen(driver(tiny_model, lines, out), cwd=ROOT)
    while n_done(out) < 2:
        assert run.poll() is None
        time.sleep(0.01)
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=CLUSTER_GRACE_S) == 143
    assert 2 <= n_done(out) < N_PARTS
    assert not read_claims(out).claims, "others would have to wait for them"
    assert not [*out.rglob(".*.tmp")]
    before = {name: content for name, content in contents(out).items() if name.startswith("tokens/part")}
    assert before.items() <= undisturbed.items()
    render(str(tiny_model), str(lines), out, HERE)
    assert contents(out) == undisturbed


@pytest.mark.slow
def test_two_runs_of_one_output_share_its_parts_and_the_second_says_so(
    tiny_model: Path, lines: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    out, told = tmp_path / "out", []
    first = subprocess.Popen(driver(tiny_model, lines, out), cwd=ROOT)
    while n_done(out) < 2:
        assert first.poll() is None
        time.sleep(0.01)
    render(str(tiny_model), str(lines), out, HERE, tell=told.append)
    assert first.wait() == 0
    assert contents(out) == undisturbed
    assert any("works on part" in line and "what it takes is left to it" in line for line in told), told


@pytest.mark.slow
def test_the_function_tells_who_has_a_part(tiny_model: Path, lines: Path, tmp_path: Path) -> None:
    out, told = tmp_path / "out", []
    render_files(str(lines), str(tiny_model), out=out)
    (out / "tokens" / "part-00000.parquet").unlink()
    holder = Claims(out, "tokens")
    assert holder.take(0)

    def tell(line: str) -> None:
        told.append(line)
        holder.release()

    render_files(str(lines), str(tiny_model), out=out, tell=tell)
    assert any("works on part 0 of this output" in line for line in told), told


@pytest.mark.slow
def test_a_replica_that_makes_no_progress_ends_with_its_stack_and_is_started_again(
    tiny_model: Path,
    lines: Path,
    tmp_path: Path,
    undisturbed: dict[str, bytes],
    capfd: pytest.CaptureFixture[str],
) -> None:
    told: list[str] = []
    execution = TroubledExecution(replicas=1, stall_s=4, trouble="hang")
    render(str(tiny_model), str(lines), tmp_path / "out", execution, tell=told.append)
    assert contents(tmp_path / "out") == undisturbed
    assert any("made no progress for the time of --stall-timeout" in line for line in told), told
    log = capfd.readouterr().err
    assert "no progress on part 2 for 4 s" in log
    assert 'troubled_work.py", line' in log


WAITING = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tokscore.rendering.executors.replica import Events, Order, Replica

work = SimpleNamespace(out=Path(sys.argv[1]), manifest=SimpleNamespace(kind=SimpleNamespace(value="tokens")))
Replica(Order(work, [0], "waits", stall_s=0.5), Events(print, print)).run()
"""


@pytest.mark.slow
def test_a_replica_that_waits_for_the_part_of_another_does_not_stall(tmp_path: Path) -> None:
    holder = Claims(tmp_path, "tokens")
    assert holder.take(0)
    waiting = subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path)], stderr=subprocess.PIPE)
    time.sleep(4)
    assert waiting.poll() is None
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "part-00000.parquet").touch()
    assert waiting.communicate(timeout=30) == (None, b"")
    assert waiting.returncode == 0


@pytest.mark.slow
def test_a_replica_that_grows_too_large_is_started_again(
    tiny_model: Path, lines: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    told: list[str] = []
    execution = TroubledExecution(replicas=1, memory_bytes=800 << 20, trouble="memory")
    render(str(tiny_model), str(lines), tmp_path / "out", execution, tell=told.append)
    assert contents(tmp_path / "out") == undisturbed
    assert any("--replica-memory allows 800; it is started again" in line for line in told), told


@pytest.mark.slow
def test_an_error_of_a_replica_is_the_error_of_the_run(
    tiny_model: Path, lines: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    with pytest.raises(InputError, match="nothing is right here"):
        render(str(tiny_model), str(lines), tmp_path / "out", TroubledExecution(replicas=2, trouble="refuse"))
    assert not read_claims(tmp_path / "out").claims
    render(str(tiny_model), str(lines), tmp_path / "out", HERE)
    assert contents(tmp_path / "out") == undisturbed


@pytest.mark.slow
def test_a_part_that_ends_every_process_is_set_aside_and_all_others_are_done(
    tiny_model: Path, lines: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    with pytest.raises(TokscoreError) as caught:
        render(
            str(tiny_model),
            str(lines),
            tmp_path / "out",
            TroubledExecution(replicas=2, trouble="die", always=True),
        )
    assert "1 part could not be done (2): 5 processes ended while they worked on it" in str(caught.value)
    assert n_done(tmp_path / "out") == len(read_manifest(tmp_path / "out").parts) - 1
    render(str(tiny_model), str(lines), tmp_path / "out", HERE)
    assert contents(tmp_path / "out") == undisturbed


@pytest.mark.slow
def test_a_run_is_refused_for_parts_of_its_own_that_are_not_done(tmp_path: Path) -> None:
    manifest = two_writers.MANIFEST
    (tmp_path / "tokens").mkdir()
    Claims(tmp_path, "tokens").give_up(1, "no reason.")
    check_none_failed(tmp_path, manifest, [manifest.parts[0]])
    with pytest.raises(TokscoreError, match=r"1 part could not be done \(1\)"):
        check_none_failed(tmp_path, manifest, manifest.parts)
    (tmp_path / "tokens" / "part-00001.parquet").touch()
    check_none_failed(tmp_path, manifest, manifest.parts)


@pytest.mark.slow
def test_an_actor_of_ray_that_is_killed_is_started_again(
    tiny_model: Path, lines: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "out"
    # As some clusters have it: longer than sockets can be.
    temporary = tmp_path / ("long" * 20)
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    run = subprocess.Popen(driver(tiny_model, lines, out, Executor.RAY), cwd=ROOT, env=environment)
    while not (claims := read_claims(out).claims):
        assert run.poll() is None
        time.sleep(0.01)
    owners = {claim.pid for claim in claims.values()}
    os.kill(owners.pop(), signal.SIGKILL)
    assert run.wait() == 0
    assert contents(out) == undisturbed
