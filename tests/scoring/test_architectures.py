"""Every causal architecture of the installed transformers: right, or refused by name; never silently wrong.

`make architectures` runs it. A refusal has to name its reason, and is none for what people score most. Types
that cannot be made tiny are known by name and skipped with what transformers says; any other has to be made.
"""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.scoring import tiny_architectures
from tokscore.dataset.errors import TokscoreError
from tokscore.scoring import SequenceScores, TokenSequence, load_engine

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]
# Must be made, and scored.
SCORED = frozenset(
    {
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "gemma",
        "gemma2",
        "phi",
        "phi3",
    }
    | {"gpt2", "gpt_neox", "opt", "granite", "olmo", "olmo2", "starcoder2", "cohere", "falcon", "mamba"}
)
LENGTHS = (40, 3, 17, 33, 40, 8)
ATOL = 1e-3
# vLLM keeps the parameters of this activation in bfloat16, whatever the dtype of the model.
VLLM_ATOL = {"apertus": 5e-3}
# On a CPU it asks for 2 TiB of cache for this one.
VLLM_REFUSES = frozenset({"mamba"})


# Whose configuration does not take small sizes, in the versions of transformers that the tests are run with.
NOT_TINY = frozenset(
    {
        "bamba",
        "blt",
        "cohere_compass_text",
        "dbrx",
        "dots1",
        "dots3_note",
        "dots3_note_text",
        "falcon_h1",
        "gemma3n",
        "gemma3n_text",
        "gemma4",
        "gemma4_assistant",
        "gemma4_text",
        "gemma4_unified",
        "gemma4_unified_assistant",
        "gemma4_unified_text",
        "gpt_neo",
        "granitemoehybrid",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "inkling2_loop_text",
        "inkling2_text",
        "lfm2_moe",
        "longcat_flash",
        "mamba2",
        "ministral",
        "musicgen",
        "musicgen_melody",
        "nemotron",
        "reformer",
        "xlm",
        "zamba",
        "zamba2",
        "zaya",
    }
)


def make_or_skip(model_type: str, path: Path) -> None:
    try:
        tiny_architectures.make(model_type, path)
    except Exception as error:
        if model_type not in NOT_TINY:
            raise
        pytest.skip(f"not made: {type(error).__name__}: {str(error)[:100]}")


def check_refusal(model_type: str, error: TokscoreError, scored: Set[str] = SCORED) -> None:
    """It says what it refuses and why, and is none of a common architecture."""
    assert model_type not in scored, str(error)
    assert len(str(error).split()) > 5, str(error)


def score(engine_name: str, path: Path) -> tuple[list[SequenceScores], list[SequenceScores]]:
    """All sequences together, and each alone."""
    rng = np.random.default_rng(0)
    sequences = [
        TokenSequence(key, rng.integers(3, tiny_architectures.VOCAB_SIZE - 8, n).astype(np.int32))
        for key, n in enumerate(LENGTHS)
    ]
    engine = load_engine(engine_name, str(path), top_k=3)
    try:
        together = dict(engine.score(sequences))
        alone = [dict(engine.score([sequence]))[sequence.key] for sequence in sequences]
    finally:
        engine.close()
    return [together[key] for key in range(len(sequences))], alone


@torch.inference_mode()
def plain_logprobs(path: Path) -> list[np.ndarray]:
    """By transformers with plain attention in float32, one sequence at a time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with suppress(ValueError):
        model.set_attn_implementation("eager")
    rng = np.random.default_rng(0)
    found = []
    for n in LENGTHS:
        ids = torch.from_numpy(rng.integers(3, tiny_architectures.VOCAB_SIZE - 8, n))
        logprobs = model(input_ids=ids[None], use_cache=False).logits[0, :-1].double().log_softmax(-1)
        found.append(logprobs.gather(1, ids[1:, None])[:, 0].numpy())
    return found


@pytest.mark.parametrize("model_type", list(tiny_architectures.names()))
def test_an_architecture_is_right_or_refused(model_type: str, tmp_path: Path) -> None:
    path = tmp_path / model_type
    make_or_skip(model_type, path)
    try:
        together, alone = score("transformers", path)
    except TokscoreError as error:
        check_refusal(model_type, error)
        return
    for one, other, plain in zip(together, alone, plain_logprobs(path), strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=ATOL)
        np.testing.assert_allclose(one.logprobs, plain, atol=ATOL)


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize("model_type", list(tiny_architectures.names()))
def test_vllm_agrees_or_refuses(model_type: str, tmp_path: Path) -> None:
    path = tmp_path / model_type
    make_or_skip(model_type, path)
    # First: vLLM changes classes of transformers. Where transformers fails as well, vLLM has to refuse.
    plain, failure = None, None
    try:
        plain = plain_logprobs(path)
    except Exception as error:  # noqa: BLE001 (whatever a model that does not fit together raises)
        failure = error
    try:
        together, alone = score("vllm", path)
    except TokscoreError as error:
        check_refusal(model_type, error, SCORED - VLLM_REFUSES)
        return
    assert plain is not None, f"scored, though transformers cannot: {failure!r}"
    for one, other, expected in zip(together, alone, plain, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=ATOL)
        np.testing.assert_allclose(one.logprobs, expected, atol=VLLM_ATOL.get(model_type, ATOL))
