"""Packed weights, scored as what they stand for or refused by name, with the packages that come with vLLM."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.scoring.engines.test_quantized import logprobs_in_float64
from tests.scoring.packed_models import MODELS
from tests.scoring.samples import EngineStarter, random_ids
from tokscore.dataset.errors import EngineError, InputError
from tokscore.scoring import TokenSequence, load_engine

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.filterwarnings("ignore"),
]
IDS = random_ids(0, 40)


def make(name: str, folder: Path) -> tuple[Path, np.ndarray]:
    """The model, and the logprobs of what its weights stand for."""
    MODELS[name](folder / name)
    return folder / name, logprobs_in_float64(folder / f"{name}-plain", IDS)


# First: vLLM changes what transformers builds in this process.
@pytest.mark.parametrize("name", ["compressed", "compressed-8", "fp8"])
def test_transformers_unpacks_them(name: str, tmp_path: Path) -> None:
    path, expected = make(name, tmp_path)
    engine = load_engine("transformers", str(path), top_k=1)
    [(_, scores)] = engine.score([TokenSequence(0, IDS)])
    assert str(engine.details["quantization"]).startswith("compressed-tensors")
    engine.close()
    np.testing.assert_allclose(scores.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["compressed", "gptq", "awq"])
def test_vllm_computes_with_them(start: EngineStarter, name: str, tmp_path: Path) -> None:
    path, expected = make(name, tmp_path)
    [(_, scores)] = start("vllm", path, top_k=1, dtype="bfloat16").score([TokenSequence(0, IDS)])
    difference = np.abs(scores.logprobs - expected)
    # Activations of 8 bits; weights read in another order come out 5 nats off on average.
    assert difference.mean() < 0.15
    assert difference.max() < 1


@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [
        ("gptq-asymmetric", "bfloat16", "Unsupported quantization config: bits=4, sym=False"),
        ("awq", "float32", r"torch.float32 is not supported for quantization method"),
    ],
)
def test_vllm_refuses_what_it_cannot_read(name: str, dtype: str, reason: str, tmp_path: Path) -> None:
    path, _ = make(name, tmp_path)
    with pytest.raises((EngineError, InputError), match=reason):
        load_engine("vllm", str(path), top_k=1, dtype=dtype)
