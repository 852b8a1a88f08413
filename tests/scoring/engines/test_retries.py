"""An engine that fails in the middle: the real one underneath, behind a wrapper that raises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest

from tests.scoring.samples import MemorySource, random_ids
from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import ConversationError, EngineError
from tokscore.dataset.reading import Dataset
from tokscore.scoring import EngineSpec, SequenceScores, TokenSequence, plan_engine
from tokscore.scoring.engines.retries import MAX_FAILURES
from tokscore.scoring.run import score

RECORDS = [random_ids(seed, n).tolist() for seed, n in enumerate((5, 40, 7, 30, 9))]
POISON = RECORDS[1]


@dataclass(frozen=True, slots=True)
class FailingSpec(EngineSpec):
    """Its engine fails on sequences of these lengths, `n_times` each; `starts` counts its starts."""

    lengths: tuple[int, ...] = ()
    n_times: int = 1_000
    starts: list[int] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    max_starts: int = 1_000

    def start(self, longest: int | None = None) -> object:
        if len(self.starts) == self.max_starts:
            raise EngineError("the device is gone")
        self.starts.append(longest or 0)
        return FailingEngine(EngineSpec.start(self, longest), self)


class FailingEngine:
    def __init__(self, engine: object, spec: FailingSpec) -> None:
        self.engine, self.spec = engine, spec
        self.details = {**engine.details, "path": f"start {len(spec.starts)}"}

    def score(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, SequenceScores]]:
        # As vLLM does, several are in it when one ends it.
        for sequence in list(sequences):
            n = len(sequence.token_ids)
            if n in self.spec.lengths and self.spec.seen.get(n, 0) < self.spec.n_times:
                self.spec.seen[n] = self.spec.seen.get(n, 0) + 1
                raise EngineError(f"out of memory at {n} tokens")
            yield from self.engine.score([sequence])

    def close(self) -> None:
        self.engine.close()


@pytest.fixture
def failing(tiny_llama: Path) -> type[FailingSpec]:
    spec = plan_engine(str(tiny_llama), engine="transformers", top_k=3)
    return lambda *lengths, **more: FailingSpec(
        spec.model, spec.identity, spec.settings, lengths=lengths, **more
    )


def test_a_failure_that_does_not_come_again_costs_nothing(failing: type[FailingSpec], tmp_path: Path) -> None:
    spec, lines = failing(40, n_times=1), list[str]()
    summary = score(MemorySource([RECORDS]), tmp_path, spec, tell=lines.append)
    assert (summary.n_conversations, summary.n_failed, len(spec.starts)) == (5, 0, 2)
    assert any("out of memory at 40 tokens" in line and "one at a time" in line for line in lines)
    assert lines[-1].endswith("started again runs otherwise: path was start 1 and is start 2.")
    rows = pl.read_parquet(tmp_path / "scores/*.parquet")
    assert rows["logprob"].null_count() == 5


def test_a_second_failure_is_an_error_row_of_that_sequence_alone(
    failing: type[FailingSpec], tmp_path: Path
) -> None:
    # The last line begins the sequence that fails, and is scored without it.
    source = MemorySource([[*RECORDS, POISON[:20]], [POISON, RECORDS[0]]])
    summary = score(source, tmp_path / "skip", failing(40), on_error=OnError.SKIP)
    assert (summary.n_conversations, summary.n_failed) == (6, 2)
    reason = "the engine failed on it twice: out of memory at 40 tokens"
    assert [(f.conversation_id, f.reason) for f in Dataset(tmp_path / "skip").failures()] == [
        ("memory:2", reason),
        ("memory:7", reason),
    ]
    rows = pl.read_parquet(tmp_path / "skip/scores/*.parquet")
    assert rows.filter(pl.col("position") > 0)["logprob"].null_count() == 0
    assert rows.filter(pl.col("conversation_id") == "memory:6").height == 20


def test_a_second_failure_ends_a_strict_run_which_resumes(failing: type[FailingSpec], tmp_path: Path) -> None:
    source = MemorySource([RECORDS[:1], RECORDS[1:]])
    with pytest.raises(ConversationError, match=r"^memory.jsonl:2: the engine failed on it twice"):
        score(source, tmp_path, failing(40))
    assert score(source, tmp_path, failing()).n_parts_skipped == 1


def test_an_engine_that_does_not_start_again_ends_the_run(failing: type[FailingSpec], tmp_path: Path) -> None:
    spec = failing(40, max_starts=1)
    with pytest.raises(EngineError, match="the device is gone"):
        score(MemorySource([RECORDS]), tmp_path, spec, on_error=OnError.SKIP)
    assert not list(tmp_path.rglob("part-*"))


def test_an_engine_that_fails_on_everything_ends_the_run(failing: type[FailingSpec], tmp_path: Path) -> None:
    spec = failing(*range(2, 60))
    records = [random_ids(n, n).tolist() for n in range(2, 20)]
    with pytest.raises(EngineError, match=f"failed on {MAX_FAILURES} sequences in a row"):
        score(MemorySource([records]), tmp_path, spec, on_error=OnError.SKIP)
    assert len(spec.starts) == MAX_FAILURES + 1
