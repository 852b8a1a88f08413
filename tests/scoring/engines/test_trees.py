"""Scores of trees with what is shared computed once, against each sequence run whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.scoring.samples import VOCAB_SIZE, random_ids
from tokscore.scoring import Engine, SequenceScores, TokenSequence, plan_engine
from tokscore.scoring.sharing.dedupe import by_length
from tokscore.scoring.sharing.segments import SegmentPlan, token_counts

ATOL = 1e-4
# Ids to be scored in every row, of which each sequence takes others.
GIVEN = np.tile(np.array([0, 7, 50, VOCAB_SIZE - 1, VOCAB_SIZE, -1], np.int32), (1_000, 1))


def leaving(trunk: np.ndarray, at: int, seed: int, n: int) -> np.ndarray:
    """The trunk up to a branch point, then other ids."""
    tail = random_ids(seed, n)
    tail[0] = (trunk[at] + 1 + seed % (VOCAB_SIZE - 1)) % VOCAB_SIZE if at < len(trunk) else tail[0]
    return np.concatenate([trunk[:at], tail])


def flat(n: int, at: int, seed: int = 0) -> list[np.ndarray]:
    """A trunk and branches that leave it at one point with different ids."""
    trunk = random_ids(seed, at + 30)
    return [trunk, *(leaving(trunk, at, i, 10 + i % 7) for i in range(n - 1))]


def nested(at: int, seed: int = 0) -> list[np.ndarray]:
    """A branch of a branch of a branch, the points a few tokens apart."""
    found = [random_ids(seed, at + 40)]
    for depth in range(3):
        found.append(leaving(found[-1], at + 7 * depth, 100 + depth, 45 - 9 * depth))
    return found


TREES: Mapping[str, Callable[[], list[np.ndarray]]] = {
    "8 branches": lambda: flat(8, 150, 1),
    "64 branches": lambda: flat(64, 70, 2),
    "nested": lambda: nested(200, 3),
    **{f"at {at}": lambda at=at: [*flat(3, at, 10 + at), *nested(at, 400 + at)] for at in range(1, 41)},
}


def wanted(ids: Sequence[np.ndarray], which: str) -> list[TokenSequence]:
    def mask(one: np.ndarray) -> np.ndarray | None:
        if which == "all":
            return None
        at = np.arange(len(one) - 1)
        return at >= len(one) - 12 if which == "sampled" else at == len(one) - 2

    rng = np.random.default_rng(len(ids))
    return [
        TokenSequence(key, one, mask(one), at_ids=rng.permuted(GIVEN[: len(one) - 1], axis=1)[:, :3])
        for key, one in enumerate(ids)
    ]


def together(engine: Engine, sequences: Sequence[TokenSequence]) -> dict[int, SequenceScores]:
    plan = SegmentPlan(sequences)
    found: dict[int, SequenceScores] = {}
    for key, scores in engine.score(plan.sequences):
        found |= dict(plan.add(key, scores))
    return found


def assert_equal(one: SequenceScores, other: SequenceScores) -> None:
    for name in ("logprobs", "top_logprobs", "entropy"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=0, atol=ATOL, err_msg=name)
    assert (one.at_ids is None) == (other.at_ids is None)
    if one.at_ids is not None:
        np.testing.assert_array_equal(one.at_ids, other.at_ids)
        np.testing.assert_allclose(one.at_logprobs, other.at_logprobs, rtol=0, atol=ATOL)
    # Ties aside: an id or a rank may change places where logprobs are equal.
    assert (one.ranks != other.ranks).mean() < 0.01
    assert np.abs(one.ranks - other.ranks).max(initial=0) <= 1
    is_other = one.top_ids != other.top_ids
    gaps = np.abs(np.diff(one.top_logprobs, axis=1))
    near = np.pad(gaps, ((0, 0), (1, 0)), constant_values=9) < ATOL
    near |= np.pad(gaps, ((0, 0), (0, 1)), constant_values=0) < ATOL
    assert (~is_other | near).all()


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Engine:
    spec = replace(plan_engine(str(tiny_llama), engine="transformers", top_k=5), shares=True)
    engine = spec.start()
    assert engine.shares
    assert engine.details["sharing"] == "yes"
    return engine


@pytest.mark.parametrize("which", ["all", "sampled", "one"])
def test_trees_come_out_as_each_sequence_alone(engine: Engine, which: str) -> None:
    for name, make in TREES.items():
        sequences = wanted(make(), which)
        alone = dict(engine.score(sequences))
        before = engine.n_computed
        found = together(engine, sequences)
        n_unique = token_counts([each.token_ids for each in sequences]).n_unique
        # Branches whose points lie close are run from the first of them on.
        assert engine.n_computed - before <= n_unique + 32 * len(sequences), name
        for key, scores in alone.items():
            assert_equal(found[key], scores)


def test_a_branch_without_its_trunk_is_run_whole(engine: Engine) -> None:
    plan = SegmentPlan(wanted(flat(4, 20), "all"))
    shared = dict(engine.score(plan.sequences))
    for sequence in plan.sequences:
        [(_, scores)] = engine.score([sequence])
        assert_equal(shared[sequence.key], scores)


def test_a_window_of_several_trees_and_lone_sequences(engine: Engine) -> None:
    ids = [*flat(5, 30, 1), *nested(50, 2), *(random_ids(900 + i, 33) for i in range(4))]
    sequences = wanted(ids, "all")
    alone = dict(engine.score(sequences))
    found = together(engine, sequences)
    for key, scores in alone.items():
        assert_equal(found[key], scores)


ARCHITECTURES = {
    # name: whether sharing is used, and a word of the reason where not.
    "gpt2": None,
    "bloom": None,  # ALiBi
    "mistral": None,  # sliding windows
    "gemma3_text": None,  # of some layers
    "gpt_oss": None,  # sliding windows and attention sinks
    "phi3": None,
    "longrope": None,
    "gemma3": None,  # multimodal, here without images
    "dynamic": "positions change",
    "mamba": "recurrent",
    "qwen3_next": "recurrent",
    "llama4_text": "chunked",
}


def make_model(name: str, path: Path) -> None:
    """A tiny model whose windows are shorter than the sequences here."""
    from tests.scoring import tiny_architectures, tiny_models

    if name == "longrope":
        tiny_models.MODELS[name](path)
    elif name == "dynamic":
        ropes = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
        settings = tiny_models.BASE | {"rope_parameters": ropes}
        tiny_models.save(path, "LlamaForCausalLM", "LlamaConfig", **settings)
    else:
        tiny_architectures.make(name, path)
    config = json.loads((path / "config.json").read_text())
    text = config.get("text_config", config)
    if text.get("sliding_window"):
        text["sliding_window"] = 16
    (path / "config.json").write_text(json.dumps(config))


def assert_shares_or_says_why_not(engine: Engine, switch_length: int | None, reason: str | None) -> None:
    said = str(engine.details["sharing"])
    assert engine.shares == (reason is None), said
    assert reason is None or reason in said
    sequences = wanted([*flat(4, 50, 5), *nested(60, 6)], "all")
    alone, before = dict(engine.score(sequences)), engine.n_computed
    found: dict[int, SequenceScores] = {}
    for group in by_length(sequences, switch_length):
        found |= together(engine, group)
    n_tokens = sum(len(each.token_ids) for each in sequences)
    assert (engine.n_computed - before < n_tokens) == engine.shares
    for key, scores in alone.items():
        assert_equal(found[key], scores)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_share_or_say_why_not(tmp_path: Path, name: str) -> None:
    make_model(name, tmp_path)
    spec = replace(plan_engine(str(tmp_path), engine="transformers", top_k=5), shares=True)
    assert_shares_or_says_why_not(spec.start(), spec.model.switch_length, ARCHITECTURES[name])
