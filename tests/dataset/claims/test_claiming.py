"""Parts are taken by one process each, and by another where that one has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.dataset.claims.two_writers import write
from tokscore.dataset.claims.claim import CLAIMS, LEASE_S, Claim, read_claims
from tokscore.dataset.claims.claiming import MAX_ATTEMPTS, MAX_LOST, OWNERS_A_LOOK, Claims, clear

CLAIMING = """
import sys
from pathlib import Path
from tokscore.dataset.claims.claiming import Claims

root = Path(sys.argv[1])
claims = Claims(root, "tokens", sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for part in claims.parts(range(int(sys.argv[3]))):
    print(part, flush=True)
    (root / "tokens").mkdir(exist_ok=True)
    (root / "tokens" / f"part-{part:05d}.parquet").touch()
    claims.release(1)
"""


def claims(root: Path, **settings: float) -> Claims:
    return Claims(root, "tokens", "test", **settings)


def of_another_host(claim: Claim, root: Path) -> Claim:
    """The same claim, by a process that cannot be seen from here."""
    foreign = msgspec.structs.replace(claim, namespace="elsewhere", pid=1)
    (root / CLAIMS / claim.name).write_bytes(msgspec.json.encode(foreign))
    return foreign


def ended_process(root: Path, part: int) -> None:
    """A process that was killed with the part in hand."""
    code = (
        "import sys, os; from pathlib import Path; from tokscore.dataset.claims.claiming import Claims\n"
        "assert Claims(Path(sys.argv[1]), 'tokens').take(int(sys.argv[2])); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(root), str(part)], check=False)
    assert part in read_claims(root).claims


def test_four_processes_take_every_part_once(tmp_path: Path) -> None:
    n_parts = 200
    running = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMING, str(tmp_path), str(i), str(n_parts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(4)
    ]
    for each in running:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in running:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    taken = [[int(line) for line in each.communicate()[0].split()] for each in running]
    assert sorted(part for parts in taken for part in parts) == [*range(n_parts)]
    assert read_claims(tmp_path).claims == {}


def test_a_part_in_hand_is_nobody_elses(tmp_path: Path) -> None:
    one, other = claims(tmp_path), claims(tmp_path)
    assert one.take(3)
    assert not other.take(3)
    assert other.take(4)
    one.release()
    other.release()
    assert other.take(3)


def test_a_part_whose_process_was_killed_is_taken_at_once(tmp_path: Path) -> None:
    ended_process(tmp_path, 0)
    mine = claims(tmp_path)
    assert mine.take(0)
    [claim] = read_claims(tmp_path).claims.values()
    assert (claim.attempt, claim.pid) == (2, os.getpid())


def test_a_process_that_has_the_id_of_one_that_ended_holds_nothing(tmp_path: Path) -> None:
    one = claims(tmp_path)
    assert one.take(0)
    assert one.held is not None
    other = msgspec.structs.replace(one.held, pid_start=one.held.pid_start - 1)
    (tmp_path / CLAIMS / other.name).write_bytes(msgspec.json.encode(other))
    assert claims(tmp_path).take(0)


@pytest.mark.parametrize("skew_s", [-1e6, 0.0, 1e6])
def test_a_lease_of_another_host_ends_by_the_clock_of_who_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew_s: float
) -> None:
    one = claims(tmp_path)
    assert one.take(0)
    assert one.held is not None
    claim = msgspec.structs.replace(one.held, heartbeat=one.held.heartbeat + skew_s)
    claim = of_another_host(claim, tmp_path)
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    mine = claims(tmp_path)
    assert not mine.take(0)
    now[0] += claim.lease_s - 1
    assert not mine.take(0)
    of_another_host(msgspec.structs.replace(claim, heartbeat=claim.heartbeat + 1), tmp_path)
    now[0] += 2
    assert not mine.take(0), "it was seen to work a moment ago"
    now[0] += claim.lease_s + 1
    assert mine.take(0)
    assert not one.beat(5), "the first owner is told"
    assert mine.beat(7)
    assert read_claims(tmp_path).claims[0].n_tokens == 7


def test_an_owner_that_woke_up_late_gives_no_part_back(tmp_path: Path) -> None:
    one = claims(tmp_path)
    assert one.take(0)
    assert one.held is not None
    old = one.held
    (tmp_path / CLAIMS / old.name).unlink()
    new = msgspec.structs.replace(old, attempt=2)
    (tmp_path / CLAIMS / new.name).write_bytes(msgspec.json.encode(new))
    assert not one.beat(1)
    one.release()
    assert read_claims(tmp_path).claims[0].attempt == 2


def test_a_part_that_ends_process_after_process_is_set_aside_until_the_next_run(tmp_path: Path) -> None:
    one = claims(tmp_path)
    for _ in range(MAX_ATTEMPTS):
        assert one.take(0)
        assert one.held is not None
        ended = msgspec.structs.replace(one.held, pid=2**22 + 1)
        (tmp_path / CLAIMS / ended.name).write_bytes(msgspec.json.encode(ended))
    assert not one.take(0)
    assert "5 processes ended" in read_claims(tmp_path).failed[0].reason


@pytest.mark.parametrize("content", [b"", b'{"part": 0', b"\xff", b"{}"])
def test_a_claim_that_is_cut_keeps_others_for_a_lease(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = claims(tmp_path)
    one.give_up(1, "reason")
    for name in ("part-00000.1.json", "part-00001.failed.json"):
        (tmp_path / CLAIMS / name).write_bytes(content)
    assert not one.take(0)
    assert read_claims(tmp_path).claims[0].lease_s == LEASE_S
    assert read_claims(tmp_path).failed[1].reason == "the file that says why is damaged"
    later = time.monotonic() + LEASE_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert one.take(0)
    assert read_claims(tmp_path).claims[0].attempt == 2
    one.release()
    clear(tmp_path, {0, 1})
    assert one.take(1)


def lost(holder: Claims, root: Path, now: list[float]) -> None:
    """The host of a claim goes away, and its lease ends."""
    assert holder.held is not None
    of_another_host(holder.held, root)
    assert not holder.take(0)
    now[0] += holder.lease_s + 1


def test_processes_that_went_with_their_host_count_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is taken away again and again says nothing about the part; one that ends them all does."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    one = claims(tmp_path)
    assert one.take(0)
    for _ in range(MAX_LOST - 1):
        lost(one, tmp_path, now)
        assert one.take(0)
    lost(one, tmp_path, now)
    assert not one.take(0)
    assert f"{MAX_LOST} processes ended" in read_claims(tmp_path).failed[0].reason


def test_ends_on_this_host_are_counted_between_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    one = claims(tmp_path)
    for _ in range(MAX_ATTEMPTS):
        assert one.take(0)
        lost(one, tmp_path, now)
        assert one.take(0)
        assert one.held is not None
        ended = msgspec.structs.replace(one.held, pid=2**22 + 1)
        (tmp_path / CLAIMS / ended.name).write_bytes(msgspec.json.encode(ended))
    assert not one.take(0)
    assert f"{2 * MAX_ATTEMPTS} processes ended" in read_claims(tmp_path).failed[0].reason


def test_parts_of_very_many_processes_that_ended_are_all_taken(tmp_path: Path) -> None:
    """More than a process looks at once."""
    n_parts = 2 * OWNERS_A_LOOK + 3
    (tmp_path / "tokens").mkdir()
    mine = claims(tmp_path)
    for part in range(1, n_parts):
        assert mine.take(part)
        assert mine.held is not None
        ended = msgspec.structs.replace(mine.held, pid=2**22 + 1)
        (tmp_path / CLAIMS / ended.name).write_bytes(msgspec.json.encode(ended))
    mine.held = None
    done = []
    for part in mine.parts(range(n_parts)):
        done.append(part)
        (tmp_path / "tokens" / f"part-{part:05d}.parquet").touch()
        mine.release(1)
    assert sorted(done) == [*range(n_parts)]


def test_the_next_run_tries_parts_that_failed(tmp_path: Path) -> None:
    one = claims(tmp_path)
    one.give_up(0, "reason")
    assert not one.take(0)
    clear(tmp_path, {0})
    assert one.take(0)
    one.release()
    clear(tmp_path, set())
    assert not (tmp_path / CLAIMS).exists()


def test_a_part_that_is_done_is_not_taken(tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    assert not claims(tmp_path).take(0)
    assert read_claims(tmp_path).claims == {}


@pytest.mark.slow
def test_very_many_processes_find_a_part_in_few_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each looked at all that others have done since it listed them, there would be 56 a part."""
    n_processes, n_parts, n_looks = 100, 2_000, 0
    is_done = Claims.is_done

    def counted(self: Claims, part: int) -> bool:
        nonlocal n_looks
        n_looks += 1
        return is_done(self, part)

    monkeypatch.setattr(Claims, "is_done", counted)
    (tmp_path / "tokens").mkdir()
    processes = [claims(tmp_path) for _ in range(n_processes)]
    taken = [each.parts(range(n_parts), others=False, seed=i) for i, each in enumerate(processes)]
    done: list[int] = []
    working = {*range(n_processes)}
    in_hand = [next(each) for each in taken]
    while working:
        for i in sorted(working):
            (tmp_path / "tokens" / f"part-{in_hand[i]:05d}.parquet").touch()
            done.append(in_hand[i])
            processes[i].release(1)
            in_hand[i] = next(taken[i], -1)
            working -= {i} if in_hand[i] < 0 else set()
    assert sorted(done) == [*range(n_parts)]
    assert n_looks < 20 * n_parts
