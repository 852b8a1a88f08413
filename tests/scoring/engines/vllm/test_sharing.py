"""Trees on vLLM: branches read the prefix cache, and come out as each sequence alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.scoring.engines.test_trees import (
    TREES,
    assert_equal,
    assert_shares_or_says_why_not,
    flat,
    make_model,
    nested,
    together,
    wanted,
)
from tests.scoring.samples import random_ids
from tokscore.scoring import Engine, SequenceScores, TokenSequence, plan_engine
from tokscore.scoring.sharing.segments import SegmentPlan, token_counts

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]
BLOCK = 32


def started(model: Path, longest: int, **settings: object) -> Engine:
    spec = plan_engine(str(model), engine="vllm", top_k=5, **settings)  # type: ignore[arg-type]
    return replace(spec, shares=True).start(longest)


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Iterator[Engine]:
    engine = started(tiny_llama, 512)
    yield engine
    engine.close()


def n_unique(sequences: Sequence[TokenSequence]) -> int:
    return token_counts([each.token_ids for each in sequences]).n_unique


def alone(engine: Engine, sequences: Sequence[TokenSequence]) -> dict[int, SequenceScores]:
    """Without trunks, so that nothing is read from the cache."""
    return dict(engine.score(sequences))


@pytest.mark.parametrize("which", ["all", "sampled", "one"])
def test_trees_come_out_as_each_sequence_alone(engine: Engine, which: str) -> None:
    assert engine.details["sharing"] == "yes"
    for name, make in TREES.items():
        sequences = wanted(make(), which)
        expected, before = alone(engine, sequences), engine.n_computed
        found = together(engine, sequences)
        n_computed = engine.n_computed - before
        assert n_computed <= n_unique(sequences) + BLOCK * len(sequences), name
        for key, scores in expected.items():
            assert_equal(found[key], scores)
    assert engine.n_rescored == 0


def test_a_tree_that_comes_twice_reads_nothing_of_the_first(engine: Engine) -> None:
    sequences = wanted(nested(200, 3), "all")
    first, before = together(engine, sequences), engine.n_computed
    again = together(engine, sequences)
    assert n_unique(sequences) <= engine.n_computed - before <= n_unique(sequences) + BLOCK * len(sequences)
    for key, scores in first.items():
        assert_equal(again[key], scores)


def test_a_branch_without_its_trunk_is_computed_whole(engine: Engine) -> None:
    plan = SegmentPlan(wanted(flat(4, 100), "all"))
    shared = dict(engine.score(plan.sequences))
    for sequence in plan.sequences:
        before = engine.n_computed
        [(_, scores)] = engine.score([sequence])
        assert engine.n_computed - before >= len(sequence.token_ids) - 1
        assert_equal(shared[sequence.key], scores)


def test_rows_that_lie_in_the_cache_are_scored_again_without_it(engine: Engine) -> None:
    """A sequence that says it shares less than the cache holds of its tree."""
    ids = random_ids(7, 300)
    longer, other = (
        np.concatenate([ids[:200], random_ids(8, 40)]),
        np.concatenate([ids[:200], random_ids(9, 30)]),
    )
    trunk = TokenSequence(0, ids, n_for_branches=200)
    branch = TokenSequence(1, longer, np.arange(239) >= 50, trunk=0, n_shared=50)
    [expected] = alone(engine, [TokenSequence(2, longer, np.arange(239) >= 50)]).values()
    before = engine.n_rescored
    found = dict(
        engine.score(
            [trunk, branch, TokenSequence(3, other, trunk=0, n_shared=200, wanted=np.arange(229) >= 200)]
        )
    )
    assert engine.n_rescored - before == 1
    assert_equal(found[1], expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bloom", None),
        ("gemma3_text", None),
        ("longrope", None),
        ("dynamic", "positions"),
    ],
)
def test_architectures_share_or_say_why_not(tmp_path: Path, name: str, reason: str | None) -> None:
    make_model(name, tmp_path)
    engine = started(tmp_path, 200)
    try:
        # vLLM has one kind of positions for all sequences.
        assert_shares_or_says_why_not(engine, None, reason)
    finally:
        engine.close()
