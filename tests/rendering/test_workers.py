"""A render run on several processes writes what one writes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tokscore.dataset.choices import OnError
from tokscore.rendering import ConversationError, open_source
from tokscore.rendering.run import render_source
from tokscore.rendering.workers import _blocked_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@pytest.fixture
def came() -> Iterator[list[int]]:
    """The signals that handlers of this process have taken."""
    found: list[int] = []
    before = {number: signal.signal(number, lambda number, _: found.append(number)) for number in SIGNALS}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_wait_until_processes_have_started(came: list[int]) -> None:
    handlers = [signal.getsignal(number) for number in SIGNALS]
    with _blocked_signals():
        for number in SIGNALS:
            signal.raise_signal(number)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        time.sleep(0.02)
        assert came == []
        assert set(SIGNALS) <= signal.pthread_sigmask(signal.SIG_BLOCK, [])  # as a new process has it
    assert set(came) == set(SIGNALS)
    assert set(SIGNALS).isdisjoint(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    assert [signal.getsignal(number) for number in SIGNALS] == handlers


def test_a_signal_that_another_thread_takes_waits_too(came: list[int]) -> None:
    ready, done = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        done.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    with _blocked_signals():
        os.kill(os.getpid(), signal.SIGINT)  # this thread blocks it, the other does not
        time.sleep(0.02)
        assert came == []
    deadline = time.monotonic() + 10
    while not came and time.monotonic() < deadline:  # the other may have had no processor until now
        time.sleep(0.01)
    assert came == [signal.SIGINT]
    done.set()
    thread.join()


def test_an_exception_that_a_signal_raises_leaves_nothing_blocked() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt), _blocked_signals():
            signal.raise_signal(signal.SIGINT)
        assert set(SIGNALS).isdisjoint(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_of_two_signals_one_is_raised() -> None:
    """A handler that is called again ends the process at once."""
    called = 0

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal called
        called += 1
        raise KeyboardInterrupt

    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    assert other.ident is not None
    before = signal.signal(signal.SIGINT, interrupt)

    @_blocked_signals()
    def get_two(of: int) -> None:
        signal.pthread_kill(of, signal.SIGINT)
        time.sleep(0.2)
        signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            get_two(other.ident)
        time.sleep(0.01)
        assert called == 1
    finally:
        signal.signal(signal.SIGINT, before)
        done.set()
        other.join()


@pytest.fixture
def inputs(write_jsonl: Callable[..., Path]) -> Path:
    return write_jsonl(
        *[
            {
                "id": f"c{i % 30}",
                "messages": [{"role": "user", "content": "é" * i}, {"role": "assistant", "content": "y"}],
            }
            if i % 7
            else "{broken"
            for i in range(40)
        ]
    )


def contents(root: Path) -> dict[str, object]:
    """Every file of a dataset by what it says."""
    return {
        str(path.relative_to(root)): pq.read_table(path).to_pylist()
        if path.suffix == ".parquet"
        else path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_the_dataset_does_not_depend_on_the_number_of_workers(
    tiny_model: Path, inputs: Path, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    summaries = [
        render_source(
            open_source([str(inputs)], str(tiny_model), part_bytes=400),
            tmp_path / str(workers),
            on_error=OnError.SKIP,
            workers=workers,
            progress=lambda *done: seen.append(done),
        )
        for workers in (1, 2)
    ]
    assert summaries[0] == summaries[1]
    assert summaries[0].n_parts > 4
    assert summaries[0].n_failed == 6
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert seen[-1] == (40, summaries[1].n_tokens)


def test_the_first_failure_ends_the_run_and_its_text_says_where(
    tiny_model: Path, inputs: Path, tmp_path: Path
) -> None:
    source = open_source([str(inputs)], str(tiny_model), part_bytes=400)
    with pytest.raises(ConversationError, match=r"convs.jsonl:1: .*JSON"):
        render_source(source, tmp_path / "out", workers=2)
    assert not list((tmp_path / "out").rglob(".*.tmp"))
    rest = render_source(source, tmp_path / "out", workers=2, on_error=OnError.SKIP)
    assert rest.n_conversations + rest.n_failed <= 40


def test_few_parts_are_written_without_other_processes(
    tiny_model: Path, tmp_path: Path, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokscore.rendering.workers.ProcessPoolExecutor", None)
    source = open_source([str(inputs)], str(tiny_model))
    assert render_source(source, tmp_path / "out", workers=8, on_error=OnError.SKIP).n_conversations == 34


def test_json_is_read_the_same_from_every_packing(tiny_model: Path, tmp_path: Path, inputs: Path) -> None:
    import gzip

    import pyarrow as pa

    (tmp_path / "convs.gz").write_bytes(gzip.compress(inputs.read_bytes()))
    with pa.CompressedOutputStream(pa.OSFile(str(tmp_path / "convs.zst"), "wb"), "zstd") as stream:
        stream.write(inputs.read_bytes())
    tables = []
    for name in ("convs.jsonl", "convs.gz", "convs.zst"):
        out = tmp_path / f"out-{name}"
        render_source(open_source([str(tmp_path / name)], str(tiny_model)), out, on_error=OnError.SKIP)
        tables.append(pq.read_table(out / "tokens").drop_columns("conversation_id"))
        names = pq.read_table(out / "conversations")["source_file"].unique().to_pylist()
        assert names == [name]
        assert json.loads((out / "manifest.json").read_text())["inputs"][0]["name"] == name
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
