"""Trees on vLLM with a cache that is too small for them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.scoring.engines.test_trees import assert_equal, flat, nested, together, wanted
from tests.scoring.engines.vllm.test_paths import Preemptions
from tests.scoring.engines.vllm.test_sharing import alone, n_unique, started
from tests.scoring.samples import random_ids
from tokscore.scoring.engines.vllm import requests

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]


def test_evicted_and_preempted_trees_come_out_the_same(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = [flat(6, 200, 1), nested(180, 2), flat(8, 150, 3), [random_ids(40 + i, 220) for i in range(3)]]
    sequences = wanted([ids for tree in trees for ids in tree], "all")
    monkeypatch.setattr(requests, "QUEUED_BATCHES", {"cpu": 20})
    # The blocks hold one and a third of the longest sequences.
    arguments = {"num_gpu_blocks_override": 12, "long_prefill_token_threshold": 64}
    tight = started(tiny_llama, 255, batch_tokens=128, engine_arg=arguments)
    try:
        assert tight.details["sharing"] == "yes"
        expected = alone(tight, sequences)
        watch, before = Preemptions(tight, monkeypatch), tight.n_computed
        found = together(tight, sequences)
        assert watch.n > 0
        assert tight.n_computed - before > n_unique(sequences)
        for key, scores in expected.items():
            assert_equal(found[key], scores)
    finally:
        tight.close()
