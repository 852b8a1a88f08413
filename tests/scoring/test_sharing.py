"""Equal sequences, shards and how the engine scored: what several runs and rows share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import InputError
from tokscore.dataset.manifest import read_manifest
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.scoring import EngineSettings, EngineSpec, Shard, plan_engine
from tokscore.scoring.engines.settings import Sharing
from tokscore.scoring.run import score

from .samples import MemorySource, random_ids


@pytest.fixture(scope="module")
def spec(tiny_llama: Path) -> EngineSpec:
    return plan_engine(str(tiny_llama), engine="transformers", top_k=3)


def read(out: Path) -> pl.DataFrame:
    return pl.read_parquet(out / "scores/*.parquet")


def ids(seed: int, n: int) -> list[int]:
    return random_ids(seed, n).tolist()


def test_equal_lines_are_scored_once_and_have_exactly_equal_rows(spec: EngineSpec, tmp_path: Path) -> None:
    long = ids(0, 40)
    records = [long[:15], ids(1, 30), long, long[:15], long, long, long[:1]]
    summary = score(MemorySource([records]), tmp_path / "shared", spec)
    assert (summary.n_tokens, summary.n_engine_tokens) == (sum(map(len, records)), 70)
    assert summary.n_scored == summary.n_tokens - len(records)
    rows = read(tmp_path / "shared").partition_by("conversation_id", maintain_order=True)
    assert [frame["token_id"].to_list() for frame in rows] == records
    columns = ["logprob", "rank", "entropy", "top_ids", "top_logprobs"]
    for place in (4, 5):
        assert rows[place].select(columns).equals(rows[2].select(columns))
    for place in (0, 3, 6):
        assert rows[place].select(columns).equals(rows[2].head(len(records[place])).select(columns))
    score(MemorySource([[record] for record in records]), tmp_path / "alone", spec)
    alone = read(tmp_path / "alone")
    together = pl.concat(rows)
    assert together["rank"].equals(alone["rank"])
    np.testing.assert_allclose(together["logprob"].to_numpy(), alone["logprob"].to_numpy(), atol=5e-5)


def test_shards_write_their_parts_and_equal_manifests(spec: EngineSpec, tmp_path: Path) -> None:
    def source() -> MemorySource:
        return MemorySource([[ids(0, 9)], [ids(1, 99)], [ids(2, 1)]])

    files = []
    for number in (2, 1):
        out = tmp_path / f"shard-{number}"
        summary = score(source(), out, spec, shard=Shard(number, 2))
        assert (summary.n_parts, summary.n_parts_missing) == ((1, 2) if number == 2 else (2, 1))
        files.append([(out / name).read_bytes() for name in ("manifest.json", "vocab.parquet")])
    assert files[0] == files[1]
    assert sorted(path.name for path in (tmp_path / "shard-2/scores").iterdir()) == ["part-00001.parquet"]

    together = tmp_path / "together"
    missing = [score(source(), together, spec, shard=Shard(n, 4)).n_parts_missing for n in (4, 2, 1, 3)]
    assert missing == [3, 2, 1, 0]
    score(source(), tmp_path / "whole", spec)
    assert read(together).equals(read(tmp_path / "whole"))
    assert Dataset(together, kind=DatasetKind.SCORES).n_conversations() == 3


def test_a_shard_in_which_all_fails_says_so_without_the_other_parts(spec: EngineSpec, tmp_path: Path) -> None:
    source = MemorySource([[ids(0, 9)], ["no messages"]])
    with pytest.raises(InputError, match=r"the only conversation could not be scored.*no messages"):
        score(source, tmp_path, spec, shard=Shard(2, 2), on_error=OnError.SKIP)


def test_how_the_engine_scored_is_in_the_manifest_and_the_parts(spec: EngineSpec, tmp_path: Path) -> None:
    source, lines = MemorySource([[ids(0, 9)], [ids(1, 9)]]), list[str]()
    score(source, tmp_path, spec, shard=Shard(1, 2), tell=lines.append)
    assert lines == [f"engine: device cpu, batch tokens 2048, logits {65_536} rows at a time"]
    manifest = read_manifest(tmp_path)
    assert manifest.engine_details == {
        "device": "cpu",
        "batch_tokens": 2048,
        "logits": "65536 rows at a time",
    }
    assert manifest.plan_hash == manifest.sealed().plan_hash

    # Batches change rounding, not what is asked for: the run goes on, and says so.
    other = EngineSpec(spec.model, spec.identity, EngineSettings(top_k=3, batch_tokens=64))
    score(source, tmp_path, other, tell=lines.append)
    assert lines[-1].startswith(
        "warning: the engine runs otherwise than when this dataset was begun: batch-tokens was 2048 and is 64."
    )
    assert read_manifest(tmp_path) == manifest
    for part, batch_tokens in ((0, 2048), (1, 64)):
        metadata = pq.read_metadata(tmp_path / f"scores/part-0000{part}.parquet").metadata
        assert f'"batch_tokens":{batch_tokens}'.encode() in metadata[b"tokscore.engine_details"]
        assert float(metadata[b"tokscore.tokens_per_s"]) > 0


def test_longer_conversations_than_wanted_are_error_rows(spec: EngineSpec, tmp_path: Path) -> None:
    source = MemorySource([[ids(0, 9), ids(1, 10)]])
    summary = score(source, tmp_path, spec, max_length=9, on_error=OnError.SKIP)
    assert (summary.n_conversations, summary.n_failed) == (1, 1)
    assert [f.reason for f in Dataset(tmp_path).failures()] == ["has 10 tokens; `max_length` is 9."]
    assert read_manifest(tmp_path).settings["max_length"] == 9


def group(seed: int, n_prompt: int, n_samples: int) -> list[list[int]]:
    """Samples behind one prompt, some of which begin alike."""
    prompt = ids(seed, n_prompt)
    return [prompt + ids(seed, i % 4) + ids(1_000 * seed + i, 20 + i) for i in range(n_samples)]


def test_samples_behind_one_prompt_share_it_and_score_as_they_do_without(
    spec: EngineSpec, tmp_path: Path
) -> None:
    source = MemorySource([[*group(1, 60, 6), *group(2, 40, 5)], group(3, 80, 4)])
    off = replace(spec, settings=replace(spec.settings, sharing=Sharing.OFF))
    lines = list[str]()
    whole = score(source, tmp_path / "off", off)
    shared = score(source, tmp_path / "on", spec, tell=lines.append)
    assert whole.n_engine_tokens == whole.n_logical == shared.n_logical == shared.n_tokens
    assert shared.n_unique < shared.n_engine_tokens + 1 < shared.n_logical / 2
    assert f"{shared.n_unique:,} unique: what is shared is computed once." in lines[0]
    assert "sharing yes" in lines[1]
    one, other = read(tmp_path / "on"), read(tmp_path / "off")
    for name in ("conversation_id", "position", "token_id", "rank", "top_ids"):
        assert one[name].equals(other[name]), name
    for name in ("logprob", "entropy"):
        np.testing.assert_allclose(one[name].to_numpy(), other[name].to_numpy(), rtol=0, atol=1e-4)
    assert read_manifest(tmp_path / "on").plan_hash == read_manifest(tmp_path / "off").plan_hash


def test_little_in_common_is_not_shared(spec: EngineSpec, tmp_path: Path) -> None:
    records = [ids(0, 2) + ids(i, 98) for i in range(1, 6)]
    lines = list[str]()
    summary = score(MemorySource([records]), tmp_path, spec, tell=lines.append)
    assert (summary.n_logical, summary.n_unique, summary.n_engine_tokens) == (500, 492, 500)
    assert "is computed for every sequence" in lines[0]
