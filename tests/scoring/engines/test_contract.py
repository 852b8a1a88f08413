"""The contract that every engine keeps, on a tiny random model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.scoring.samples import MAX_LENGTH, VOCAB_SIZE, EngineStarter, random_ids, scores_of
from tokscore.dataset.errors import InputError
from tokscore.scoring import TokenSequence
from tokscore.scoring.engines import transformers as transformers_engine
from tokscore.scoring.engines.row_checks import check_scores

NEEDS_VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]
pytestmark = pytest.mark.parametrize("name", ["transformers", pytest.param("vllm", marks=NEEDS_VLLM)])

# float32 engines on the tiny model: against float64, and against themselves in other batches.
ATOL = 1e-4
BLOCK = 128


def by_hand(model: Path, token_ids: np.ndarray) -> np.ndarray:
    """Float64 log-softmax [n-1, vocab]; row t comes from a pass over tokens 0 to t alone."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    rows = []
    for stop in range(1, len(token_ids)):
        with torch.inference_mode():
            logits = network(torch.tensor([token_ids[:stop].tolist()])).logits[0, -1].numpy()
        rows.append(logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
    return np.array(rows)


def whole(model: Path, token_ids: np.ndarray) -> np.ndarray:
    """Float64 logprobs of the tokens after the first, from one pass over the sequence."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    with torch.inference_mode():
        logprobs = network(torch.tensor([token_ids.tolist()])).logits[0].log_softmax(-1).numpy()
    return logprobs[np.arange(len(token_ids) - 1), token_ids[1:]]


def test_logprobs_are_of_each_token_given_those_before(
    name: str, start: EngineStarter, tiny_llama: Path
) -> None:
    ids = random_ids(0, 24)
    expected = by_hand(tiny_llama, ids)
    [scores] = scores_of(start(name, tiny_llama), [ids])
    rows = np.arange(len(ids) - 1)
    np.testing.assert_allclose(scores.logprobs, expected[rows, ids[1:]], atol=ATOL)
    realised = expected[rows, ids[1:]][:, None]
    np.testing.assert_array_equal(scores.ranks, (expected >= realised).sum(1))


def test_top_k_is_the_most_likely_ids_in_descending_order(
    name: str, start: EngineStarter, tiny_llama: Path
) -> None:
    ids = random_ids(0, 24)
    expected = by_hand(tiny_llama, ids)
    [scores] = scores_of(start(name, tiny_llama), [ids])
    order = np.argsort(-expected, axis=1)[:, :5]
    np.testing.assert_array_equal(scores.top_ids, order)
    np.testing.assert_allclose(scores.top_logprobs, np.take_along_axis(expected, order, 1), atol=ATOL)


def test_the_realised_token_is_among_the_top_ids_only_by_its_rank(
    name: str, start: EngineStarter, tiny_llama: Path
) -> None:
    ids = random_ids(1, 200)
    [scores] = scores_of(start(name, tiny_llama), [ids])
    inside = (scores.top_ids == ids[1:, None]).any(1)
    np.testing.assert_array_equal(inside, scores.ranks <= 5)
    assert inside.any()
    assert not inside.all()
    rows = np.flatnonzero(inside)
    np.testing.assert_array_equal(scores.top_logprobs[rows, scores.ranks[rows] - 1], scores.logprobs[rows])


def test_entropy_is_exact(name: str, start: EngineStarter, tiny_llama: Path) -> None:
    ids = random_ids(0, 24)
    expected = by_hand(tiny_llama, ids)
    [scores] = scores_of(start(name, tiny_llama), [ids])
    np.testing.assert_allclose(scores.entropy, -(np.exp(expected) * expected).sum(1), atol=ATOL)


def test_arrays_have_the_declared_types(name: str, start: EngineStarter, tiny_llama: Path) -> None:
    [scores] = scores_of(start(name, tiny_llama), [random_ids(0, 9)])
    assert scores.logprobs.dtype == scores.top_logprobs.dtype == np.float32
    assert scores.ranks.dtype == scores.top_ids.dtype == np.int32
    assert scores.entropy is None or scores.entropy.dtype == np.float32


def test_order_and_company_do_not_change_scores(name: str, start: EngineStarter, tiny_llama: Path) -> None:
    sequences = [random_ids(seed, 5 + 37 * seed) for seed in range(8)]
    engine = start(name, tiny_llama)
    first = scores_of(engine, sequences)
    again = scores_of(engine, sequences)
    backwards = scores_of(engine, sequences[::-1])[::-1]
    alone = [scores_of(engine, [ids])[0] for ids in sequences]
    for one, two, three, four in zip(first, again, backwards, alone, strict=True):
        np.testing.assert_array_equal(one.logprobs, two.logprobs)
        np.testing.assert_allclose(one.logprobs, three.logprobs, atol=ATOL)
        np.testing.assert_allclose(one.logprobs, four.logprobs, atol=ATOL)


def test_what_follows_does_not_change_scores(name: str, start: EngineStarter, tiny_llama: Path) -> None:
    ids = random_ids(2, 90)
    cut, full = scores_of(start(name, tiny_llama), [ids[:40], ids])
    np.testing.assert_allclose(cut.logprobs, full.logprobs[:39], atol=ATOL)


def test_wanted_rows_are_those_of_a_whole_run(name: str, start: EngineStarter, tiny_llama: Path) -> None:
    ids = random_ids(9, 150)
    wanted = np.random.default_rng(0).random(149) < 0.3
    wanted[140:] = False
    sequences = [TokenSequence(0, ids), TokenSequence(1, ids, wanted), TokenSequence(2, ids, wanted & False)]
    found = dict(start(name, tiny_llama).score(sequences))
    assert len(found[1]) == sequences[1].n_rows == wanted.sum()
    assert len(found[2]) == 0
    for column in ("logprobs", "top_logprobs", "entropy"):
        rows = getattr(found[0], column)[wanted]
        np.testing.assert_allclose(getattr(found[1], column), rows, atol=ATOL)
    np.testing.assert_array_equal(found[1].top_ids, found[0].top_ids[wanted])


def test_given_ids_get_their_logprobs(name: str, start: EngineStarter, tiny_llama: Path) -> None:
    ids = random_ids(4, 60)
    rng = np.random.default_rng(1)
    given = np.array([rng.permutation(VOCAB_SIZE + 3)[:6] for _ in range(59)], np.int32)
    given[3], given[:, 4] = -1, -1
    wanted = rng.random(59) < 0.4
    wanted[[3, 5]] = True
    sequences = [
        TokenSequence(0, ids, at_ids=given),
        TokenSequence(1, ids, wanted, at_ids=given),
        TokenSequence(2, ids),
        TokenSequence(3, ids[:30], at_ids=given[:29, :2]),
    ]
    found = dict(start(name, tiny_llama).score(sequences))
    expected = np.pad(by_hand(tiny_llama, ids), ((0, 0), (0, 3)), constant_values=-np.inf)
    expected = np.where(given < 0, -np.inf, np.take_along_axis(expected, np.maximum(given, 0), axis=1))
    assert np.isinf(expected[given >= VOCAB_SIZE]).all()
    assert found[2].at_ids is None
    assert found[2].at_logprobs is None
    for key, rows, width in ((0, slice(None), 6), (1, wanted, 6), (3, slice(29), 2)):
        np.testing.assert_array_equal(found[key].at_ids, given[rows, :width])
        np.testing.assert_allclose(found[key].at_logprobs, expected[rows, :width], atol=ATOL)
        assert found[key].at_logprobs.dtype == np.float32
        check_scores(
            found[key], sequences[key].n_rows, 5, "x", sequences[key].targets(), sequences[key].at_rows()
        )
    np.testing.assert_allclose(found[0].logprobs, found[2].logprobs, atol=ATOL)


@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_the_temperature_divides_the_logits(
    name: str, start: EngineStarter, tiny_llama: Path, temperature: float
) -> None:
    ids = random_ids(0, 24)
    scaled = by_hand(tiny_llama, ids) / temperature
    expected = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
    [scores] = scores_of(start(name, tiny_llama, temperature=temperature), [ids])
    rows = np.arange(len(ids) - 1)
    np.testing.assert_allclose(scores.logprobs, expected[rows, ids[1:]], atol=ATOL)
    np.testing.assert_allclose(scores.top_logprobs, -np.sort(-expected, axis=1)[:, :5], atol=ATOL)
    np.testing.assert_allclose(scores.entropy, -(np.exp(expected) * expected).sum(1), atol=ATOL)


def test_one_token_has_no_rows(name: str, start: EngineStarter, tiny_llama: Path) -> None:
    lone, pair = scores_of(start(name, tiny_llama), [random_ids(3, 1), random_ids(3, 2)])
    check_scores(lone, 0, 5, "lone")
    check_scores(pair, 1, 5, "pair")


def test_the_exact_maximum_length_is_scored(name: str, start: EngineStarter, tiny_llama: Path) -> None:
    ids = random_ids(4, MAX_LENGTH)
    [scores] = scores_of(start(name, tiny_llama), [ids])
    np.testing.assert_allclose(scores.logprobs, whole(tiny_llama, ids), atol=ATOL)


def test_lengths_around_the_block_size_are_equal_cold_and_warm(
    name: str, start: EngineStarter, tiny_llama: Path
) -> None:
    ids = random_ids(5, 2 * BLOCK + 1)
    expected = whole(tiny_llama, ids)
    lengths = [15, 16, 17, 33, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1]
    engine = start(name, tiny_llama)
    for _ in range(2):
        for length, scores in zip(lengths, scores_of(engine, [ids[:n] for n in lengths]), strict=True):
            np.testing.assert_allclose(scores.logprobs, expected[: length - 1], atol=ATOL)


def test_chunks_do_not_show(
    name: str, start: EngineStarter, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = 256
    monkeypatch.setattr(transformers_engine, "LOGITS_BYTES", {"cpu": 4 * 128 * chunk})
    monkeypatch.setattr(transformers_engine, "SOFTMAX_BYTES", {"cpu": 8 * 128 * 7})
    ids = random_ids(6, 3 * chunk + 1)
    # Another top-k, so that this engine is not one started before.
    arguments = {"logits_bytes": 4 * 128 * 100} if name == "vllm" else {}
    engine = start(name, tiny_llama, top_k=6, batch_tokens=chunk, engine_arg=arguments)
    assert engine.details.get("logits_rows", 100) == 100
    [scores] = scores_of(engine, [ids])
    check_scores(scores, len(ids) - 1, 6, "chunked")
    np.testing.assert_allclose(scores.logprobs, whole(tiny_llama, ids), atol=ATOL)


def test_logprobs_do_not_depend_on_top_k(name: str, start: EngineStarter, tiny_llama: Path) -> None:
    ids = random_ids(7, 60)
    by_k = {k: scores_of(start(name, tiny_llama, top_k=k), [ids])[0] for k in (0, 1, 50, 128)}
    for top_k, scores in by_k.items():
        check_scores(scores, len(ids) - 1, top_k, "sequence")
        np.testing.assert_array_equal(scores.logprobs, by_k[1].logprobs)
        np.testing.assert_array_equal(scores.ranks, by_k[1].ranks)
    np.testing.assert_array_equal(np.sort(by_k[128].top_ids, axis=1), np.tile(np.arange(128), (59, 1)))


def test_stdout_stays_empty(
    name: str, start: EngineStarter, tiny_llama: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scores_of(start(name, tiny_llama, top_k=2), [random_ids(8, 30)])
    assert capfd.readouterr().out == ""


def test_damaged_weights_are_bad_input(name: str, tiny_llama: Path, tmp_path: Path) -> None:
    from tokscore.scoring import load_engine

    (tmp_path / "config.json").write_bytes((tiny_llama / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((tiny_llama / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(InputError, match=r"model.safetensors cannot be read: its header would have"):
        load_engine(name, str(tmp_path))
