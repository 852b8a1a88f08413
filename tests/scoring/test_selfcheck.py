from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tokscore.dataset.errors import EngineError, UsageError
from tokscore.scoring import SequenceScores, plan_engine
from tokscore.scoring.agreement import agreement, is_bitwise_equal
from tokscore.scoring.selfcheck import choose, default_tolerance, selfcheck

from .samples import MemorySource, random_ids

NEEDS_VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]
LENGTHS = (2, 40, 127, 128, 129, 300, 17)


def scores(logprobs: Sequence[float], top_id: int = 3) -> SequenceScores:
    n = len(logprobs)
    column = np.array(logprobs, np.float32)
    return SequenceScores(
        logprobs=column,
        ranks=np.arange(1, n + 1, dtype=np.int32),
        top_ids=np.full((n, 1), top_id, np.int32),
        top_logprobs=column[:, None] / 2,
        entropy=None,
    )


def test_agreement_tells_the_tail_that_a_mean_hides() -> None:
    one = [scores([-1.0] * 96), scores([-1.0, -1.05, -1.2, -2.0], top_id=4)]
    found = agreement(one, [scores([-1.0] * 96), scores([-1.0] * 4)])
    assert found.n_tokens == 100
    assert found.mean == pytest.approx((0.05 + 0.2 + 1.0) / 100, abs=1e-7)
    assert found.p95 == 0
    assert found.p99 == pytest.approx(0.2, abs=1e-6)
    assert found.max == 1
    # exp(-0.05) is 0.951, exp(-0.2) is 0.819
    assert found.share_outside == pytest.approx(0.02)
    assert found.top1_agreement == pytest.approx(0.96)
    assert found.rank_agreement == 1
    assert found.top_logprobs_max == 0.5


def test_minus_infinity_agrees_with_itself_alone() -> None:
    one = [scores([-math.inf, -1.0])]
    assert agreement(one, one).max == 0
    assert agreement(one, [scores([-3.0, -1.0])]).max == math.inf


def test_rows_of_different_number_are_an_engine_error() -> None:
    with pytest.raises(EngineError, match="different numbers of rows"):
        agreement([scores([-1.0, -2.0])], [scores([-1.0])])


def test_bits_are_compared_not_values() -> None:
    one = [scores([-1.0, 0.0])]
    assert is_bitwise_equal(one, [scores([-1.0, 0.0])])
    assert not is_bitwise_equal(one, [scores([-1.0, -0.0])])
    assert not is_bitwise_equal(one, [replace(one[0], entropy=np.zeros(2, np.float32))])


def test_whole_conversations_are_taken_up_to_the_limit(tiny_llama: Path) -> None:
    spec = plan_engine(str(tiny_llama), engine="transformers")
    source = MemorySource([[[1] * 10, [2], "broken", [3] * 1_025], [[200] * 3, [4] * 10, [5] * 11, [6] * 2]])
    chosen = choose(source, spec, 30)
    assert [len(sequence.token_ids) for sequence in chosen.sequences] == [10, 10]
    assert chosen.conversation_ids == ["memory:1", "memory:6"]
    assert (chosen.n_left_out, chosen.n_failed) == (5, 1)
    with pytest.raises(UsageError, match="memory:1 has 10 tokens; the limit for all is 9"):
        choose(source, spec, 9)


@pytest.mark.parametrize("name", ["transformers", pytest.param("vllm", marks=NEEDS_VLLM)])
def test_a_float32_engine_passes_on_its_defaults(tiny_llama: Path, name: str) -> None:
    reference = plan_engine(str(tiny_llama), engine="transformers", top_k=5, dtype="float32")
    spec = plan_engine(str(tiny_llama), engine=name, top_k=5)
    source = MemorySource([[random_ids(seed, n).tolist() for seed, n in enumerate(LENGTHS)]])
    found = selfcheck(choose(source, spec), spec, reference, default_tolerance("float32"))
    assert found.is_passed
    assert found.is_deterministic
    assert found.against_reference.n_tokens == sum(LENGTHS) - len(LENGTHS)
    assert found.noise_floor.warm.max == 0
    assert found.noise_floor.max == found.noise_floor.shuffled.max < 2e-4
    assert found.against_reference.top1_agreement > 0.99


def test_bfloat16_misses_the_limits_of_float32_and_says_by_how_much(tiny_llama: Path) -> None:
    reference = plan_engine(str(tiny_llama), engine="transformers", top_k=5, dtype="float32")
    spec = plan_engine(str(tiny_llama), engine="transformers", top_k=5, dtype="bfloat16")
    source = MemorySource([[random_ids(seed, n).tolist() for seed, n in enumerate(LENGTHS)]])
    chosen = choose(source, spec)
    found = selfcheck(chosen, spec, reference, default_tolerance("float32"))
    assert [line.name for line in found.lines if not line.is_passed][:2] == [
        "against_reference.max",
        "against_reference.mean",
    ]
    assert found.against_reference.share_outside > 0
    assert found.against_reference.max > found.against_reference.p99 > found.against_reference.mean > 1e-4
    line = found.lines[0]
    assert line.found == found.against_reference.max
