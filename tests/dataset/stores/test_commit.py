"""Claims and commits in a store: one of two writers wins, and what one leaves behind keeps nobody for long."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.dataset.claims.two_writers import check_one_wins
from tests.store_server import StoreServer
from tokscore.dataset.claims import commit
from tokscore.dataset.claims.claim import read_claims
from tokscore.dataset.claims.claiming import Claims, clear
from tokscore.dataset.claims.commit import committing
from tokscore.dataset.claims.files import ClaimFiles
from tokscore.dataset.claims.processes import this_host
from tokscore.dataset.files import location

N_PARTS = 6


def test_of_many_that_make_a_file_one_does(store: StoreServer) -> None:
    files = ClaimFiles(location("s3://bucket/out/claims"))
    for name in "abcde":
        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(lambda i, name=name: files.create(name, str(i).encode()), range(8)))
        assert sum(made) == 1
        assert files.read(name) == str(made.index(True)).encode()
    assert sorted(files.names()) == [*"abcde"]


def test_a_part_in_a_store_is_claimed_once(store: StoreServer) -> None:
    root = location("s3://bucket/out")
    first, second = Claims(root, "tokens", "first"), Claims(root, "tokens", "second")
    assert first.take(3)
    assert not second.take(3)
    assert first.beat(17)
    assert read_claims(root).claims[3].n_tokens == 17
    first.release(20)
    assert second.take(3)
    second.release()
    clear(root, [])
    assert not ClaimFiles(root / "claims").names()


def test_one_at_a_time_puts_a_part_in_place(store: StoreServer) -> None:
    root = location("s3://bucket/out")
    inside: list[bool] = []

    def put(_: int) -> bool:
        with committing(root, "tokens", 0) as is_first:
            inside.append(True)
            assert len(inside) == 1
            if is_first:
                (root / "tokens" / "part-00000.parquet").write_bytes(b"x")
            inside.pop()
            return is_first

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(put, range(4))) == 1
    assert not ClaimFiles(root / "claims").names()


def test_the_right_of_a_process_that_ended_is_taken(
    store: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "STORE_LEASE_S", 0.6)
    root = location("s3://bucket/out")
    assert ClaimFiles(root / "claims").create("part-00000.commit.1.json", b"one that ended")
    with committing(root, "tokens", 0) as is_first:
        assert is_first
    assert not ClaimFiles(root / "claims").names()


def test_who_waits_for_the_second_right_takes_the_first_where_both_are_gone(store: StoreServer) -> None:
    """Otherwise one has the first, and another the second, at the same time."""
    root = location("s3://bucket/out")
    files = ClaimFiles(root / "claims")
    assert files.create("part-00000.commit.1.json", f"{this_host()} {2**22} ended".encode())
    assert files.create("part-00000.commit.2.json", f"{this_host()} {os.getpid()} works".encode())

    def put() -> list[str]:
        with committing(root, "tokens", 0):
            return files.names()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(put)
        time.sleep(1)
        assert not waiting.done()
        files.delete("part-00000.commit.1.json")
        files.delete("part-00000.commit.2.json")
        assert waiting.result() == ["part-00000.commit.1.json"]
    assert not files.names()


@pytest.mark.slow
def test_of_two_writers_of_a_part_one_wins(store: StoreServer) -> None:
    root = location("s3://bucket/out")
    check_one_wins(root, N_PARTS)
    assert store.unfinished() == 0
