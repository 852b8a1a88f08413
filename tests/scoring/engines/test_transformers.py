from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.scoring.samples import random_ids
from tokscore.dataset.errors import InputError
from tokscore.scoring import TokenSequence, load_engine
from tokscore.scoring.engines.transformers import score_logits


def exact(logits: torch.Tensor, temperature: float = 1.0) -> np.ndarray:
    z = logits.double().numpy() / temperature
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def logits_and_ids(
    rows: int = 50, vocab: int = 3_000, scale: float = 8.0
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocab, generator=generator) * scale
    return logits, torch.randint(vocab, (rows,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logprobs_are_the_nearest_float32_to_the_exact_value(dtype: torch.dtype) -> None:
    logits, ids = logits_and_ids()
    ids[:10] = logits[:10].argmax(1)  # also close to 0, where float32 is fine
    logits = logits.to(dtype)
    scores = score_logits(logits, ids, 20)
    expected = exact(logits)
    realised = expected[np.arange(50), ids]
    assert (np.abs(scores.logprobs - realised) <= np.spacing(np.abs(scores.logprobs))).all()
    top = -np.sort(-expected, axis=1)[:, :20]
    assert (np.abs(scores.top_logprobs - top) <= np.spacing(np.abs(scores.top_logprobs))).all()


def test_entropy_matches_the_direct_sum() -> None:
    logits, ids = logits_and_ids(scale=2.0)
    expected = exact(logits)
    scores = score_logits(logits, ids, 0)
    np.testing.assert_allclose(scores.entropy, -(np.exp(expected) * expected).sum(1), rtol=1e-6)


def test_temperature_divides_logits_not_logprobs() -> None:
    logits, ids = logits_and_ids()
    scores = score_logits(logits, ids, 5, temperature=0.7)
    expected = exact(logits, 0.7)[np.arange(50), ids]
    np.testing.assert_allclose(scores.logprobs, expected, rtol=1e-6)
    assert not np.allclose(scores.logprobs, score_logits(logits, ids, 5).logprobs / 0.7, rtol=1e-3)


def test_ties_count_in_the_rank() -> None:
    logits = torch.tensor([[3.0, 1.0, 3.0, 3.0, 0.0]])
    assert score_logits(logits, torch.tensor([2]), 1).ranks == [3]
    assert score_logits(logits, torch.tensor([1]), 1).ranks == [4]


def test_an_id_that_is_ruled_out_stays_minus_infinity() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0]])
    scores = score_logits(logits, torch.tensor([1]), 3)
    assert scores.logprobs == [-np.inf]
    assert scores.ranks == [3]
    np.testing.assert_allclose(scores.top_logprobs, [[-np.log(2), -np.log(2), -np.inf]], rtol=1e-6)
    np.testing.assert_allclose(scores.entropy, [np.log(2)], rtol=1e-6)


def test_nan_logits_give_nan() -> None:
    scores = score_logits(torch.tensor([[0.0, torch.nan, 0.0]]), torch.tensor([0]), 1)
    assert np.isnan(scores.logprobs).all()


def test_temperature_reaches_the_engine(tiny_llama: Path) -> None:
    ids = random_ids(0, 30)
    engine = load_engine("transformers", str(tiny_llama), top_k=2, temperature=0.7)
    [(_, scores)] = engine.score([TokenSequence(0, ids)])
    network = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float64)
    with torch.inference_mode():
        logprobs = (network(torch.tensor([ids.tolist()])).logits[0] / 0.7).log_softmax(-1).numpy()
    np.testing.assert_allclose(scores.logprobs, logprobs[np.arange(29), ids[1:]], atol=1e-4)


def test_a_model_that_caps_its_logits_runs_whole(tiny_gemma2: Path) -> None:
    engine = load_engine("transformers", str(tiny_gemma2), top_k=3)
    assert not engine.chunked
    sequences = [TokenSequence(key, random_ids(key, 20 + key)) for key in range(3)]
    # Some releases leave the soft cap out of any other attention.
    network = AutoModelForCausalLM.from_pretrained(
        tiny_gemma2, dtype=torch.float64, attn_implementation="eager"
    )
    for key, scores in engine.score(sequences):
        ids = sequences[key].token_ids
        with torch.inference_mode():
            logprobs = network(torch.tensor([ids.tolist()])).logits[0].log_softmax(-1).numpy()
        np.testing.assert_allclose(scores.logprobs, logprobs[np.arange(len(ids) - 1), ids[1:]], atol=1e-4)


def test_a_plain_model_makes_its_logits_in_chunks(tiny_llama: Path) -> None:
    assert load_engine("transformers", str(tiny_llama)).chunked


def test_the_model_runs_in_the_type_asked_for(tiny_llama: Path) -> None:
    engine = load_engine("transformers", str(tiny_llama), dtype="bfloat16")
    assert engine.identity.dtype == "bfloat16"
    [(_, scores)] = engine.score([TokenSequence(0, random_ids(0, 30))])
    exact_engine = load_engine("transformers", str(tiny_llama))
    [(_, exact_scores)] = exact_engine.score([TokenSequence(0, random_ids(0, 30))])
    difference = np.abs(scores.logprobs - exact_scores.logprobs).max()
    assert 1e-3 < difference < 2


def test_missing_weights_are_not_made_up(tiny_llama: Path, tmp_path: Path) -> None:
    weights = load_file(tiny_llama / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((tiny_llama / "config.json").read_bytes())
    with pytest.raises(InputError, match=r"1 weight is missing: .* model.layers.1.mlp.up_proj.weight"):
        load_engine("transformers", str(tmp_path))


def test_loading_and_scoring_say_nothing(tiny_llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    engine = load_engine("transformers", str(tiny_llama))
    list(engine.score([TokenSequence(0, random_ids(0, 30))]))
    assert capfd.readouterr() == ("", "")


def test_long_company_does_not_change_a_short_sequence_under_longrope(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """transformers takes one set of frequencies for a batch, by the longest sequence in it."""
    config = json.loads((tiny_llama / "config.json").read_text())
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 16,
        "long_factor": [4.0] * 16,
    }
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_parameters": scaling}))
    (tmp_path / "model.safetensors").symlink_to(tiny_llama / "model.safetensors")
    engine = load_engine("transformers", str(tmp_path))
    short, long = TokenSequence(0, random_ids(0, 40)), TokenSequence(1, random_ids(1, 200))
    alone, together = dict(engine.score([short])), dict(engine.score([short, long]))
    np.testing.assert_allclose(together[0].logprobs, alone[0].logprobs, atol=1e-4)


def test_attention_that_leaves_out_what_the_configuration_asks_for_is_replaced(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def of_other_scale(
        module: torch.nn.Module, *tensors: torch.Tensor, scaling: float = 1.0, **more: object
    ) -> tuple[torch.Tensor, None]:
        return sdpa_attention_forward(module, *tensors, scaling=0.5 * scaling, **more)

    ids = random_ids(0, 30)
    expected = dict(load_engine("transformers", str(tiny_llama)).score([TokenSequence(0, ids)]))[0]
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", of_other_scale)
    engine = load_engine("transformers", str(tiny_llama))
    assert engine.details["attention"] == "eager"
    found = dict(engine.score([TokenSequence(0, ids)]))[0]
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-4)
