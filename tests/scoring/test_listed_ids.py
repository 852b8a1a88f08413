"""Runs that score every token also at the ids that another dataset lists there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.scoring.samples import VOCAB_SIZE, MemorySource, random_ids
from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import ConversationError, EngineError, InputError, UsageError
from tokscore.dataset.manifest import read_manifest
from tokscore.dataset.reading import Dataset
from tokscore.scoring import EngineSpec, SequenceScores, Shard, TokenSequence, parse_selection, plan_engine
from tokscore.scoring.engines.settings import Sharing
from tokscore.scoring.engines.transformers import TransformersEngine
from tokscore.scoring.listed_ids import ListedIds
from tokscore.scoring.run import score

pytest.importorskip("torch")
# Equal ones and beginnings of others are scored once.
RECORDS = [random_ids(seed, n).tolist() for seed, n in ((0, 5), (1, 90), (2, 1), (3, 40), (1, 90), (1, 30))]
PARTS = [RECORDS[:3], RECORDS[3:]]
ATOL = 1e-4


@pytest.fixture(scope="module")
def teacher(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scores of one model, with other lists than those of the next."""
    root = tmp_path_factory.mktemp("teacher") / "scores"
    score(
        MemorySource(PARTS),
        root,
        plan_engine(str(tiny_llama), engine="transformers", top_k=6, temperature=2.0),
    )
    return root


@pytest.fixture(scope="module")
def spec(tiny_gemma2: Path) -> EngineSpec:
    return plan_engine(str(tiny_gemma2), engine="transformers", top_k=3)


def read(out: Path) -> pl.DataFrame:
    return pl.read_parquet(out / "scores" / "*.parquet")


def whole(spec: EngineSpec) -> dict[tuple[int, int], float]:
    """Logprobs of all ids at each position of the second record, by position and id."""
    ids = np.int32(RECORDS[1])
    every = np.tile(np.arange(VOCAB_SIZE, dtype=np.int32), (len(ids) - 1, 1))
    engine = replace(spec, settings=replace(spec.settings, top_k=0)).start()
    [(_, scores)] = engine.score([TokenSequence(0, ids, at_ids=every)])
    assert scores.at_logprobs is not None
    np.testing.assert_allclose(np.exp(scores.at_logprobs.astype(np.float64)).sum(1), 1, atol=1e-5)
    return {
        (row + 1, token): value
        for row, line in enumerate(scores.at_logprobs.tolist())
        for token, value in enumerate(line)
    }


def test_every_token_has_the_ids_that_the_other_dataset_lists(
    spec: EngineSpec, teacher: Path, tmp_path: Path
) -> None:
    score(MemorySource(PARTS), tmp_path / "out", spec, listed=ListedIds(teacher))
    score(MemorySource(PARTS), tmp_path / "plain", spec)
    found, plain = read(tmp_path / "out"), read(tmp_path / "plain")
    assert found["at_ids"].to_list() == read(teacher)["top_ids"].to_list()
    assert plain["at_ids"].null_count() == plain["at_logprobs"].null_count() == len(plain)
    assert found.drop("at_ids", "at_logprobs").equals(plain.drop("at_ids", "at_logprobs"))
    expected = whole(spec)
    for row in found.filter(pl.col("conversation_id") == "memory:2").drop_nulls("at_ids").to_dicts():
        wanted = [expected[row["position"], token] for token in row["at_ids"]]
        assert row["at_logprobs"] == pytest.approx(wanted, abs=ATOL)
    manifest = read_manifest(tmp_path / "out")
    assert manifest.settings["at"] == read_manifest(teacher).plan_hash
    assert "at" not in read_manifest(tmp_path / "plain").settings


def test_a_stopped_run_goes_on_and_shards_agree(spec: EngineSpec, teacher: Path, tmp_path: Path) -> None:
    listed = ListedIds(teacher)
    score(MemorySource(PARTS), tmp_path / "one", spec, listed=listed)
    for index in (1, 2):
        score(MemorySource(PARTS), tmp_path / "sharded", spec, listed=listed, shard=Shard(index, 2))
    assert read(tmp_path / "one").equals(read(tmp_path / "sharded"))
    assert score(MemorySource(PARTS), tmp_path / "one", spec, listed=listed).n_parts_skipped == 2
    with pytest.raises(UsageError, match="at"):
        score(MemorySource(PARTS), tmp_path / "one", spec)


def test_only_wanted_tokens_have_them(spec: EngineSpec, teacher: Path, tmp_path: Path) -> None:
    selection = parse_selection("sampled")
    score(
        MemorySource(PARTS),
        tmp_path / "out",
        spec,
        selection=selection,
        listed=ListedIds(teacher),
        on_error=OnError.SKIP,
    )
    found = read(tmp_path / "out")
    assert (found["at_ids"].is_null() == found["logprob"].is_null()).all()


def test_conversations_that_are_not_there_are_refused(
    spec: EngineSpec, teacher: Path, tmp_path: Path
) -> None:
    changed = [*RECORDS[:1], [*RECORDS[1][:-1], 5], *RECORDS[2:], [1, 2, 3]]
    with pytest.raises(
        ConversationError, match=r"has other tokens in .*, which `at` names, from position 89"
    ):
        score(MemorySource([changed]), tmp_path / "out", spec, listed=ListedIds(teacher))
    score(
        MemorySource([changed]), tmp_path / "skipped", spec, listed=ListedIds(teacher), on_error=OnError.SKIP
    )
    reasons = [each.reason for each in Dataset(tmp_path / "skipped").failures()]
    assert len(reasons) == 2
    assert "is not in" in reasons[1]


def test_a_dataset_without_lists_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    score(
        MemorySource([RECORDS]),
        tmp_path / "out",
        plan_engine(str(tiny_llama), engine="transformers", top_k=0),
    )
    with pytest.raises(InputError, match="has no lists"):
        ListedIds(tmp_path / "out")


def test_what_is_shared_comes_out_as_it_does_alone(
    spec: EngineSpec, tiny_llama: Path, tmp_path: Path
) -> None:
    """Trees in trees; the lists are of a run that did not share, so that those at equal tokens may differ."""
    prompt = random_ids(7, 50).tolist()
    begun = [*prompt, *random_ids(8, 20).tolist()]
    records = [[*start, *random_ids(20 + n, 15 + n).tolist()] for start in (prompt, begun) for n in range(4)]
    records += [records[0], records[1][:60]]
    source = MemorySource([records])
    given = plan_engine(str(tiny_llama), engine="transformers", top_k=6, sharing="off")
    score(source, tmp_path / "given", given)
    listed = ListedIds(tmp_path / "given")
    found = {}
    for sharing in (Sharing.AUTO, Sharing.OFF):
        each = replace(spec, settings=replace(spec.settings, sharing=sharing))
        summary = score(source, tmp_path / sharing, each, listed=listed)
        assert (summary.n_engine_tokens < 0.7 * summary.n_logical) == (sharing is Sharing.AUTO)
        found[sharing] = read(tmp_path / sharing)
    one, other = found[Sharing.AUTO], found[Sharing.OFF]
    for name in ("conversation_id", "position", "at_ids"):
        assert one[name].equals(other[name]), name
    assert one["at_ids"].null_count() == one["logprob"].null_count() < len(one)
    for name in ("logprob", "at_logprobs", "entropy"):
        values = (frame[name].explode().drop_nulls().to_numpy() for frame in (one, other))
        np.testing.assert_allclose(*values, rtol=0, atol=ATOL, err_msg=name)


@dataclass(frozen=True, slots=True)
class OldSpec(EngineSpec):
    """Of an engine that knows nothing of given ids."""

    def start(self, longest: int | None = None) -> OldEngine:
        return OldEngine(EngineSpec.start(self, longest))


class OldEngine:
    def __init__(self, engine: TransformersEngine) -> None:
        self._engine = engine

    def score(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, SequenceScores]]:
        return self._engine.score(each._replace(at_ids=None) for each in sequences)

    def close(self) -> None:
        self._engine.close()


def test_an_engine_that_leaves_them_out_is_refused(spec: EngineSpec, teacher: Path, tmp_path: Path) -> None:
    old = OldSpec(spec.model, spec.identity, spec.settings)
    with pytest.raises(EngineError, match="the engine returned at_ids of shape"):
        score(MemorySource(PARTS), tmp_path / "out", old, listed=ListedIds(teacher))
