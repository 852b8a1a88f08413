"""vLLM's Transformers backend is right or refused; vLLM's own code of a model is not held up by it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.scoring import tiny_architectures
from tests.scoring.engines.test_quantized import logprobs_in_float64
from tests.scoring.samples import EngineStarter, random_ids
from tokscore.dataset.errors import EngineError
from tokscore.scoring import TokenSequence, load_engine, plan_engine
from tokscore.scoring.selfcheck import Chosen, default_tolerance, selfcheck

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]
THROUGH_TRANSFORMERS = {"model_impl": "transformers"}
Tiny = Callable[[str], Path]


def test_soft_caps_hold_in_the_release_of_transformers_that_vllm_takes(tiny: Tiny) -> None:
    """Before vLLM is imported; 5.19 leaves Gemma 2's cap out of its fast attention."""
    ids = random_ids(0, 40)
    engine = load_engine("transformers", str(tiny("gemma2")), top_k=1)
    [(_, scores)] = engine.score([TokenSequence(0, ids)])
    engine.close()
    np.testing.assert_allclose(scores.logprobs, logprobs_in_float64(tiny("gemma2"), ids), atol=1e-4)


def test_code_of_vllm_is_not_called_transformers(start: EngineStarter, tiny: Tiny) -> None:
    sequence = TokenSequence(0, random_ids(0, 40))
    # First in this file: vLLM's Transformers backend changes what transformers builds in this process.
    [(_, there)] = start("transformers", tiny("granite"), top_k=2).score([sequence])
    engine = start("vllm", tiny("granite"), top_k=2)
    assert "model_code" not in engine.details
    [(_, here)] = engine.score([sequence])
    np.testing.assert_allclose(here.logprobs, there.logprobs, atol=1e-4)


def test_a_head_with_a_scale_of_its_own_is_refused(tiny: Tiny) -> None:
    with pytest.raises(EngineError, match=r"granite through its Transformers backend, where logprobs differ"):
        load_engine("vllm", str(tiny("granite")), engine_arg=THROUGH_TRANSFORMERS)


def test_a_layer_with_more_heads_than_the_cache_is_refused(tmp_path: Path) -> None:
    """vLLM on a CPU would write past its cache."""
    tiny_architectures.make("jetmoe", tmp_path / "jetmoe")
    with pytest.raises(EngineError, match=r"JetMoeAttention has num_kv_heads \* head_size = 128, .* 2 \* 32"):
        load_engine("vllm", str(tmp_path / "jetmoe"), top_k=1)


def test_a_model_that_comes_out_right_there_is_scored_and_checked(tiny: Tiny) -> None:
    spec = plan_engine(str(tiny("phi")), engine="vllm", top_k=2)
    sequences = [TokenSequence(key, random_ids(key, 20 + key)) for key in range(3)]
    chosen = Chosen(sequences, ["a", "b", "c"], 0, 0)
    reference = plan_engine(str(tiny("phi")), engine="transformers", dtype="float32", top_k=2)
    found = selfcheck(chosen, spec, reference, default_tolerance("float32"))
    assert found.is_passed
    assert found.details["model_code"] == "transformers"
    assert float(str(found.details["transformers_max_difference"])) < 1e-4
