from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import ConversationError, EngineError, InputError, UsageError
from tokscore.dataset.manifest import read_manifest
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import SCORES, DatasetKind
from tokscore.rendering.inputs import open_source
from tokscore.scoring import EngineSpec, SequenceScores, TokenSequence, plan_engine
from tokscore.scoring.run import score

from .samples import MAX_LENGTH, VOCAB_SIZE, MemorySource, random_ids


@pytest.fixture(scope="module")
def spec(tiny_llama: Path) -> EngineSpec:
    return plan_engine(str(tiny_llama), engine="transformers", top_k=3)


@dataclass(frozen=True, slots=True)
class FakeSpec(EngineSpec):
    """A spec whose engine passes the real engine's results through `change`; real ones do not misbehave."""

    change: object = None

    def start(self, longest: int | None = None) -> object:
        return FakeEngine(EngineSpec.start(self, longest), self.change)


class FakeEngine:
    def __init__(self, engine: object, change: object) -> None:
        self.engine, self.change = engine, change

    def score(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, SequenceScores]]:
        for key, scores in self.engine.score(sequences):
            changed = self.change(key, scores)
            if changed is not None:
                yield key, changed

    def close(self) -> None:
        self.engine.close()


def faked(spec: EngineSpec, change: object) -> FakeSpec:
    return FakeSpec(spec.model, spec.identity, spec.settings, change=change)


def never_started(spec: EngineSpec) -> FakeSpec:
    class Unstartable(FakeSpec):
        def start(self, longest: int | None = None) -> object:
            pytest.fail("the engine was started")

    return Unstartable(spec.model, spec.identity, spec.settings)


def sequences(*lengths: int) -> list[list[int]]:
    return [random_ids(seed, n).tolist() for seed, n in enumerate(lengths)]


def read(out: Path) -> pl.DataFrame:
    return pl.read_parquet(out / "scores" / "*.parquet")


def failures(out: Path) -> list[tuple[str, str]]:
    return [(f.conversation_id, f.reason) for f in Dataset(out).failures()]


def visible_files(out: Path) -> set[str]:
    return {path.name for path in out.rglob("*") if path.is_file() and not path.name.startswith(".")}


def test_rows_are_in_input_order_and_belong_to_their_tokens(spec: EngineSpec, tmp_path: Path) -> None:
    records = sequences(5, 90, 1, 40)
    summary = score(MemorySource([records]), tmp_path / "out", spec)
    rows = read(tmp_path / "out")
    assert rows["token_id"].to_list() == list(chain.from_iterable(records))
    assert rows["conversation_id"].unique(maintain_order=True).to_list() == [
        f"memory:{line}" for line in range(1, 5)
    ]
    engine = spec.start()
    expected = dict(engine.score(TokenSequence(key, np.int32(ids)) for key, ids in enumerate(records)))
    for key, ids in enumerate(records):
        one = rows.filter(pl.col("conversation_id") == f"memory:{key + 1}")
        assert one["logprob"].to_list() == [None, *expected[key].logprobs.tolist()]
        assert one["rank"].to_list() == [None, *expected[key].ranks.tolist()]
        assert one["entropy"].to_list() == [None, *expected[key].entropy.tolist()]
        assert one["top_ids"].to_list() == [None, *expected[key].top_ids.tolist()]
        assert one["top_logprobs"].to_list() == [None, *expected[key].top_logprobs.tolist()]
        assert len(one) == len(ids)
    assert summary.n_conversations == 4
    assert summary.n_tokens == 136
    assert summary[2:5] == (0, 0, 1)
    assert min(summary.load_s, summary.engine_s, summary.other_s) > 0


def test_the_dataset_has_the_schema_and_says_what_made_it(spec: EngineSpec, tmp_path: Path) -> None:
    score(MemorySource([sequences(5)]), tmp_path, spec)
    table = pq.read_schema(tmp_path / "scores" / "part-00000.parquet")
    assert table.remove_metadata() == SCORES
    manifest = Dataset(tmp_path, kind=DatasetKind.SCORES).manifest
    assert manifest.model == spec.identity
    assert manifest.settings == {
        "add_generation_prompt": False,
        "top_k": 3,
        "temperature": 1.0,
        "logprob_mode": "raw",
        "dtype": "float32",
        "score": "all",
        "max_length": None,
        "head_dtype": "auto",
        "quantization": None,
        "engine_arguments": "{}",
    }
    assert manifest.plan_hash == table.metadata[b"tokscore.plan_hash"].decode()


def test_parts_do_not_change_the_scores(spec: EngineSpec, tmp_path: Path) -> None:
    records = sequences(1, 99, 30)
    score(MemorySource([records]), tmp_path / "one", spec)
    score(MemorySource([records[:1], records[1:]]), tmp_path / "two", spec)
    one, two = read(tmp_path / "one"), read(tmp_path / "two")
    assert one.drop(pl.selectors.float(), "top_logprobs").equals(
        two.drop(pl.selectors.float(), "top_logprobs")
    )
    np.testing.assert_allclose(one["logprob"].to_numpy(), two["logprob"].to_numpy(), atol=1e-4)


def test_the_second_run_does_nothing(spec: EngineSpec, tmp_path: Path) -> None:
    source = MemorySource([sequences(5), sequences(6)])
    score(source, tmp_path, spec)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    summary = score(source, tmp_path, never_started(spec))
    assert summary.n_parts_skipped == 2
    assert (summary.n_conversations, summary.n_tokens) == (0, 0)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}


def test_an_interrupted_part_leaves_nothing_and_the_next_run_goes_on(
    spec: EngineSpec, tmp_path: Path
) -> None:
    source = MemorySource([sequences(5), sequences(6, 7)])

    def interrupt(key: int, scores: SequenceScores) -> SequenceScores:
        if len(scores) == 6:
            raise KeyboardInterrupt
        return scores

    with pytest.raises(KeyboardInterrupt):
        score(source, tmp_path, faked(spec, interrupt))
    assert "part-00000.parquet" in visible_files(tmp_path)
    assert "part-00001.parquet" not in visible_files(tmp_path)
    summary = score(source, tmp_path, spec)
    assert (summary.n_parts_skipped, summary.n_conversations) == (1, 2)
    score(source, tmp_path.with_name("undisturbed"), spec)
    assert read(tmp_path).equals(read(tmp_path.with_name("undisturbed")))


@pytest.mark.parametrize(("setting", "value"), [("top_k", 4), ("temperature", 0.5)])
def test_other_settings_are_refused_with_what_differs(
    setting: str, value: float, spec: EngineSpec, tmp_path: Path
) -> None:
    source = MemorySource([sequences(5)])
    score(source, tmp_path, spec)
    with pytest.raises(UsageError, match=f"`{setting}` is .* there and {value} here"):
        score(source, tmp_path, replace(spec, settings=replace(spec.settings, **{setting: value})))


def test_the_maximum_length_is_scored_and_one_more_is_not(spec: EngineSpec, tmp_path: Path) -> None:
    source = MemorySource([sequences(MAX_LENGTH, MAX_LENGTH + 1, 4)])
    with pytest.raises(
        ConversationError,
        match=r"^memory.jsonl:2: has 1,025 tokens; the model's maximum is 1,024\.\nIf .*max_model_len=N",
    ):
        score(source, tmp_path / "fail", never_started(spec))
    summary = score(source, tmp_path / "skip", spec, on_error=OnError.SKIP)
    assert (summary.n_conversations, summary.n_failed) == (2, 1)
    assert failures(tmp_path / "skip") == [("memory:2", "has 1,025 tokens; the model's maximum is 1,024.")]
    assert read(tmp_path / "skip").height == MAX_LENGTH + 4


def test_ids_beyond_the_vocabulary_fail_before_the_engine_starts(spec: EngineSpec, tmp_path: Path) -> None:
    source = MemorySource([[[1, VOCAB_SIZE]]])
    with pytest.raises(ConversationError, match=r"token id 128, but the vocabulary of tiny-llama has 128"):
        score(source, tmp_path, never_started(spec))


def test_records_that_failed_before_fail_here_or_are_listed(spec: EngineSpec, tmp_path: Path) -> None:
    source = MemorySource([["no messages", *sequences(5, 6)]])
    with pytest.raises(ConversationError, match=r"^memory.jsonl:1: no messages"):
        score(source, tmp_path / "fail", never_started(spec))
    assert score(source, tmp_path / "skip", spec, on_error=OnError.SKIP).n_failed == 1
    assert failures(tmp_path / "skip") == [("memory:1", "no messages")]


def test_failures_that_the_input_lists_already_end_nothing(spec: EngineSpec, tmp_path: Path) -> None:
    source = MemorySource([["known", *sequences(5)]])
    plain = source.read
    source.read = lambda part: (
        item._replace(is_known=True) if hasattr(item, "is_known") else item for item in plain(part)
    )
    assert score(source, tmp_path, spec).n_failed == 1


def test_a_run_in_which_everything_fails_is_bad_input(spec: EngineSpec, tmp_path: Path) -> None:
    source = MemorySource([["first reason", "second"]])
    with pytest.raises(InputError, match=r"none of the 2 conversations could be scored.*first reason"):
        score(source, tmp_path, never_started(spec), on_error=OnError.SKIP)


def test_an_empty_sequence_has_no_rows(spec: EngineSpec, tmp_path: Path) -> None:
    summary = score(MemorySource([[[], *sequences(5)]]), tmp_path, spec)
    assert (summary.n_conversations, read(tmp_path).height) == (2, 5)


def test_missing_rows_end_the_run_and_write_nothing(spec: EngineSpec, tmp_path: Path) -> None:
    def shorten(key: int, scores: SequenceScores) -> SequenceScores:
        return replace(scores, logprobs=scores.logprobs[1:]) if key == 1 else scores

    with pytest.raises(EngineError, match=r"memory:2: .*\(4,\) for 5 tokens to score; expected \(5,\)"):
        score(MemorySource([sequences(5, 6, 7)]), tmp_path, faked(spec, shorten), on_error=OnError.SKIP)
    assert visible_files(tmp_path) == {"manifest.json", "vocab.parquet", "vocab.json"}


def test_a_missing_sequence_ends_the_run(spec: EngineSpec, tmp_path: Path) -> None:
    def swallow(key: int, scores: SequenceScores) -> SequenceScores | None:
        return None if key == 1 else scores

    with pytest.raises(EngineError, match="returned nothing for conversation memory:2"):
        score(MemorySource([sequences(5, 6, 7)]), tmp_path, faked(spec, swallow))


def test_nan_fails_that_conversation_alone(spec: EngineSpec, tmp_path: Path) -> None:
    def spoil(key: int, scores: SequenceScores) -> SequenceScores:
        return replace(scores, logprobs=scores.logprobs * np.float32(np.nan)) if key == 1 else scores

    source = MemorySource([sequences(5, 6, 7)])
    with pytest.raises(ConversationError, match=r"^memory.jsonl:2: conversation memory:2 has 5 NaN"):
        score(source, tmp_path / "fail", faked(spec, spoil))
    summary = score(source, tmp_path / "skip", faked(spec, spoil), on_error=OnError.SKIP)
    assert (summary.n_conversations, summary.n_failed) == (2, 1)
    assert failures(tmp_path / "skip")[0][0] == "memory:2"


def test_minus_infinity_is_written_as_it_is_and_a_positive_logprob_is_not(
    spec: EngineSpec, tmp_path: Path
) -> None:
    def spoil(key: int, scores: SequenceScores) -> SequenceScores:
        logprobs = np.full_like(scores.logprobs, -np.inf if key == 0 else 0.1)
        return replace(scores, logprobs=logprobs, ranks=np.full_like(scores.ranks, VOCAB_SIZE))

    source = MemorySource([sequences(5, 6)])
    assert score(source, tmp_path, faked(spec, spoil), on_error=OnError.SKIP).n_failed == 1
    assert read(tmp_path)["logprob"].to_list() == [None, *[-np.inf] * 4]
    assert failures(tmp_path) == [
        ("memory:2", "conversation memory:2 has 0.1 among its logprobs; expected at most 0.")
    ]


def test_a_line_inserted_between_runs_is_refused(spec: EngineSpec, tiny_model: Path, tmp_path: Path) -> None:
    lines = [f'{{"messages": [{{"role": "user", "content": "{i}"}}]}}\n' for i in range(3)]
    path = tmp_path / "convs.jsonl"
    for inserted in ("", lines[2]):
        path.write_text(lines[0] + inserted + lines[1])
        source = open_source([str(path)], str(tiny_model))
        if not inserted:
            score(source, tmp_path / "out", plan_engine(str(tiny_model), engine="transformers"))
    with pytest.raises(UsageError, match=r"made from other input than convs.jsonl, or that changed since"):
        score(source, tmp_path / "out", plan_engine(str(tiny_model), engine="transformers"))
    assert read(tmp_path / "out")["conversation_id"].unique().len() == 2


def test_progress_counts_tokens_up_to_all_of_them(spec: EngineSpec, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    source = MemorySource([sequences(5, 6), sequences(7)])
    score(source, tmp_path, spec, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(0, 18), (6, 18), (11, 18), (18, 18)]


def test_the_manifest_does_not_depend_on_what_is_done(spec: EngineSpec, tmp_path: Path) -> None:
    source = MemorySource([sequences(5), sequences(6)])
    score(source, tmp_path, spec)
    before = msgspec.json.encode(read_manifest(tmp_path))
    for path in (tmp_path / "scores").iterdir():
        path.unlink()
    score(source, tmp_path, spec)
    assert msgspec.json.encode(read_manifest(tmp_path)) == before


def test_memory_holds_a_window_not_a_part(
    spec: EngineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokscore.scoring import spool
    from tokscore.scoring.engines import batching
    from tokscore.scoring.engines import transformers as engine
    from tokscore.scoring.sharing import dedupe

    monkeypatch.setattr(engine, "BATCH_TOKENS", {"cpu": 10, "cuda": 10})
    monkeypatch.setattr(batching, "WINDOW_BATCHES", 1)
    monkeypatch.setattr(dedupe, "WINDOW_TOKENS", 10)
    monkeypatch.setattr(spool, "BLOCK_TOKENS", 5)
    n_read = 0
    ahead: list[int] = []
    loads = spool.pickle.loads

    def counted(content: bytes) -> object:
        nonlocal n_read
        n_read += 1
        return loads(content)

    monkeypatch.setattr(spool.pickle, "loads", counted)
    source = MemorySource([sequences(*[5] * 20)])
    score(source, tmp_path, spec, progress=lambda done, _: ahead.append(n_read - done // 5))
    assert n_read == 20
    assert max(ahead) <= 6
