"""`tokscore select` from outside: the records come back byte by byte, whatever file they were in."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

RunTokscore = Callable[..., "subprocess.CompletedProcess[str]"]

FORMATS = Path(__file__).parent.parent / "data" / "formats"
# Outputs of a batch without their requests hold no conversation.
LINES = sorted({*FORMATS.glob("*.jsonl")} - {FORMATS / "openai_batch_outputs.jsonl"})


def _render(tokscore: RunTokscore, model: Path, out: Path, *files: Path) -> None:
    done = tokscore("render", *files, "-m", model, "-o", out, "--on-error", "skip")
    assert done.returncode == 0, done.stderr


def _records(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("path", LINES, ids=lambda path: path.stem)
@pytest.mark.slow
def test_lines_are_kept_as_they_were(
    tokscore: RunTokscore, tiny_model: Path, tmp_path: Path, path: Path
) -> None:
    _render(tokscore, tiny_model, tmp_path / "tokens", path)
    out, dropped = tmp_path / "kept.jsonl", tmp_path / "dropped.jsonl"
    options = ("--where", "n_tokens % 2 = 0", "-o", out, "--dropped", dropped, "--format", "json")
    done = tokscore("select", tmp_path / "tokens", path, *options)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    lines = [line for line in _records(path) if line.strip()]
    left_out = {row["source_line"]: row for row in map(json.loads, _records(dropped))}
    assert _records(out) == [line for n, line in enumerate(lines, 1) if n not in left_out]
    assert counts["n_conversations"] == len(lines) == counts["n_kept"] + len(left_out)
    for row in left_out.values():
        assert row["reason"].startswith(("not n_tokens % 2 = 0", "failed: "))


@pytest.fixture
def records() -> list[dict[str, object]]:
    return [
        {"id": f"r{n}", "messages": [{"role": "user", "content": "é\u2028x" * n}], "extra": {"n": [n, 1.0]}}
        for n in range(1, 9)
    ]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.slow
def test_compressed_files_come_back(
    tokscore: RunTokscore, tiny_model: Path, tmp_path: Path, records: list[object], ending: str
) -> None:
    lines = [json.dumps(record) + ending for record in records]
    path = tmp_path / "many.jsonl.gz"
    path.write_bytes(gzip.compress("".join(lines).encode()))
    _render(tokscore, tiny_model, tmp_path / "tokens", path)
    for name in ("kept.jsonl.gz", "kept.jsonl.zst", "kept.jsonl"):
        # The file lies beside the dataset.
        done = tokscore(
            "select", tmp_path / "tokens", "--keep-top", "3", "--by", "n_tokens", "-o", tmp_path / name
        )
        assert done.returncode == 0, done.stderr
        codec = {".gz": "gzip", ".zst": "zstd"}.get(Path(name).suffix)
        with pa.input_stream(tmp_path / name, compression=codec) as stream:
            assert stream.read() == "".join(lines[-3:]).encode()


@pytest.mark.slow
def test_elements_of_arrays_and_rows_of_parquet_come_back(
    tokscore: RunTokscore, tiny_model: Path, tmp_path: Path, records: list[dict[str, object]]
) -> None:
    array, table = tmp_path / "array.json", tmp_path / "table.parquet"
    array.write_text(json.dumps(records, indent=2))
    pq.write_table(pa.Table.from_pylist(records), table)
    for path in (array, table):
        tokens, out = tmp_path / f"{path.stem}-tokens", tmp_path / f"{path.stem}.jsonl"
        _render(tokscore, tiny_model, tokens, path)
        done = tokscore("select", tokens, path, "--keep-bottom", "2", "--by", "n_tokens", "-o", out)
        assert done.returncode == 0, done.stderr
        assert list(map(json.loads, _records(out))) == records[:2]
    out = tmp_path / "kept.parquet"
    done = tokscore("select", tokens, table, "--keep-bottom", "2", "--by", "n_tokens", "-o", out)
    assert done.returncode == 0, done.stderr
    assert pq.read_table(out).equals(pq.read_table(table).slice(0, 2))


def test_several_files_keep_their_order(
    tokscore: RunTokscore, tiny_model: Path, tmp_path: Path, records: list[object]
) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in files:  # the same ids in both
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    _render(tokscore, tiny_model, tmp_path / "tokens", *files)
    out = tmp_path / "kept.jsonl"
    arguments = ("--where", "source_file = 'b.jsonl' and source_line <> 2", "-o", out)
    done = tokscore("select", tmp_path / "tokens", *files, *arguments)
    assert done.returncode == 0, done.stderr
    lines = _records(files[1])
    assert _records(out) == lines[:1] + lines[2:]
    out.unlink()
    done = tokscore("select", tmp_path / "tokens", *files[::-1], *arguments)
    assert (done.returncode, out.exists()) == (3, False)
    assert "in the same order" in done.stderr


def test_records_of_one_id_that_fail_are_told_apart(
    tokscore: RunTokscore, tiny_model: Path, tmp_path: Path
) -> None:
    good, bad = ({"id": "a", "messages": [{"role": "user", "content": content}]} for content in ("x", 5))
    lines = [json.dumps(each) + "\n" for each in (bad, good, bad, bad, good, {**good, "id": "a#2"}, bad)]
    path, out = tmp_path / "same.jsonl", tmp_path / "kept.jsonl"
    path.write_text("".join(lines))
    _render(tokscore, tiny_model, tmp_path / "tokens", path)
    done = tokscore("select", tmp_path / "tokens", path, "--where", "n_tokens > 0", "-o", out)
    assert done.returncode == 0, done.stderr
    assert _records(out) == [lines[i].encode() for i in (1, 4, 5)]


@pytest.mark.slow
def test_files_that_are_others_are_refused(
    tokscore: RunTokscore, tiny_model: Path, tmp_path: Path, records: list[object]
) -> None:
    path, out = tmp_path / "some.jsonl", tmp_path / "kept.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    _render(tokscore, tiny_model, tmp_path / "tokens", path)
    options = ("--where", "n_tokens > 0", "-o", out)
    path.write_text(path.read_text().replace("extra", "other"))
    done = tokscore("select", tmp_path / "tokens", path, *options)
    assert done.returncode == 3
    assert "some.jsonl has changed since" in done.stderr
    path.rename(tmp_path / "elsewhere.jsonl")
    done = tokscore("select", tmp_path / "tokens", *options)
    assert done.returncode == 3
    assert "not in the working directory nor beside the dataset" in done.stderr
    done = tokscore("select", tmp_path / "tokens", tmp_path / "elsewhere.jsonl", *options)
    assert done.returncode == 3
    assert not out.exists()


def test_files_that_exist_are_not_replaced(
    tokscore: RunTokscore, tiny_model: Path, tmp_path: Path, records: list[object]
) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    before = path.read_bytes()
    _render(tokscore, tiny_model, tmp_path / "tokens", path)
    done = tokscore("select", tmp_path / "tokens", path, "--where", "n_tokens > 0", "-o", path)
    assert (done.returncode, path.read_bytes()) == (2, before)
    assert "exists already" in done.stderr
    away = tmp_path / "none" / "kept.jsonl"
    for given in (["-o", away], ["-o", tmp_path / "kept.jsonl", "--dropped", away]):
        done = tokscore("select", tmp_path / "tokens", path, "--where", "n_tokens > 0", *given)
        assert done.returncode == 2
        assert f"error: {away} is in no directory that exists; make it first." in done.stderr
        assert done.stderr == tokscore("select", tmp_path / "no dataset", *given).stderr  # before it is read
    assert not (tmp_path / "kept.jsonl").exists()


@pytest.mark.slow
def test_requests_of_a_batch_come_with_their_outputs(
    tokscore: RunTokscore, tiny_model: Path, tmp_path: Path
) -> None:
    files = [FORMATS / f"openai_batch_{name}.jsonl" for name in ("requests", "outputs")]
    _render(tokscore, tiny_model, tmp_path / "tokens", *files)
    out = tmp_path / "kept.jsonl"
    done = tokscore("select", tmp_path / "tokens", *files, "--where", "n_tokens > 0", "-o", out)
    assert done.returncode == 0, done.stderr
    _render(tokscore, tiny_model, tmp_path / "again", out)
    first, again = (
        pq.read_table(tmp_path / name / "tokens").select(["conversation_id", "token_id", "is_sampled"])
        for name in ("tokens", "again")
    )
    assert again.equals(first)
