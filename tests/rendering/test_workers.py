"""A render run on several processes writes what one writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tokscore.dataset.choices import OnError
from tokscore.rendering import ConversationError, open_source
from tokscore.rendering.run import render_source


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
