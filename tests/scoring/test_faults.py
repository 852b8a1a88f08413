"""Kinds of fault of engines that the contract test has no place for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.scoring.engines.test_contract import ATOL, NEEDS_VLLM, scores_of
from tokscore.dataset.errors import EngineError, InputError
from tokscore.scoring import TokenSequence, plan_engine
from tokscore.scoring.selfcheck import Chosen, default_tolerance, selfcheck

from .samples import MAX_LENGTH, EngineStarter, random_ids

BOTH = pytest.mark.parametrize("name", ["transformers", pytest.param("vllm", marks=NEEDS_VLLM)])
# Ends of key-value blocks: 16 positions each on CUDA, 128 in vLLM's CPU build.
BLOCK_ENDS = (16, 32, 128, 256, 384)


@BOTH
def test_the_first_token_of_every_branch_is_scored_as_without_sharing(
    name: str, start: EngineStarter, tiny_llama: Path
) -> None:
    """Branches that leave a trunk where a block ends, one token before and one behind, twice."""
    trunk = random_ids(11, BLOCK_ENDS[-1] + 1)
    places = [end + offset for end in BLOCK_ENDS for offset in (-1, 0, 1)]
    branches = [np.concatenate([trunk[:at], random_ids(1_000 + at, 5)]) for at in places]
    network = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float64)
    engine = start(name, tiny_llama)
    scores_of(engine, [trunk])
    passes = [scores_of(engine, branches) for _ in range(2)]
    for at, ids, cold, warm in zip(places, branches, *passes, strict=True):
        with torch.inference_mode():
            logprobs = network(torch.tensor([ids.tolist()])).logits[0].log_softmax(-1).numpy()
        expected = logprobs[np.arange(len(ids) - 1), ids[1:]]
        for found in (cold, warm):
            assert np.isfinite(found.logprobs[at - 1])
            np.testing.assert_allclose(found.logprobs[at - 1], expected[at - 1], atol=ATOL)
            np.testing.assert_allclose(found.logprobs, expected, atol=ATOL)


@pytest.mark.parametrize("name", [pytest.param("vllm", marks=NEEDS_VLLM)])
def test_scoring_never_decodes(
    name: str, start: EngineStarter, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every prompt's positions are computed once, and no step has a token that was generated."""
    engine = start(name, tiny_llama)
    scheduler = engine._engine.engine_core.engine_core.scheduler
    schedule = scheduler.schedule
    n_scheduled = n_generated = 0

    def watched(*arguments: object, **named: object) -> object:
        nonlocal n_scheduled, n_generated
        output = schedule(*arguments, **named)
        for request_id, n in output.num_scheduled_tokens.items():
            n_scheduled += n
            n_generated += scheduler.requests[request_id].num_output_tokens
        return output

    monkeypatch.setattr(scheduler, "schedule", watched)
    lengths = [2, 128, 129, 700, 31]
    scores_of(engine, [random_ids(n, n) for n in lengths])
    assert n_scheduled == sum(lengths)
    assert n_generated == 0


class ShortEngine:
    """An engine that leaves out the last row of one sequence, or all rows."""

    def __init__(self, engine: object, victim: int, n_kept: int | None) -> None:
        self._engine, self._victim, self._n_kept = engine, victim, n_kept
        self.details = engine.details

    def score(self, sequences: list[TokenSequence]) -> Iterator[tuple[int, object]]:
        for key, found in self._engine.score(sequences):
            if key != self._victim:
                yield key, found
            elif self._n_kept is not None:
                kept = slice(self._n_kept)
                columns = ("logprobs", "ranks", "top_ids", "top_logprobs", "entropy")
                yield key, type(found)(*(getattr(found, name)[kept] for name in columns))

    def close(self) -> None:
        pass


@BOTH
@pytest.mark.parametrize(
    ("n_kept", "message"),
    [
        (8, r"conversation second: .* logprobs of shape \(8,\) for 9 tokens to score"),
        (0, r"conversation second: .* logprobs of shape \(0,\) for 9 tokens to score"),
        (None, "returned nothing for 1 of 2 conversations; the first is second"),
    ],
)
def test_rows_that_a_real_engine_loses_are_named_with_both_counts(
    name: str,
    start: EngineStarter,
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    n_kept: int | None,
    message: str,
) -> None:
    spec = plan_engine(str(tiny_llama), engine=name, top_k=5)
    engine = ShortEngine(start(name, tiny_llama), 1, n_kept)
    monkeypatch.setattr(type(spec), "start", lambda *_: engine)
    sequences = [TokenSequence(0, random_ids(0, 12)), TokenSequence(1, random_ids(1, 10))]
    chosen = Chosen(sequences, ["first", "second"], 0, 0)
    with pytest.raises(EngineError, match=message):
        selfcheck(chosen, spec, spec, default_tolerance("float32"))


def test_an_adapter_that_names_no_base_model_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_llama / "config.json").read_bytes())
    (tmp_path / "adapter_config.json").write_text(json.dumps({"modules_to_save": ["lm_head"]}))
    with pytest.raises(InputError, match="base_model_name_or_path None; expected the directory or hub id"):
        plan_engine(str(tmp_path), engine="transformers")


@pytest.mark.parametrize("name", [pytest.param("vllm", marks=NEEDS_VLLM)])
def test_a_model_configured_for_fast_prefill_is_refused(
    name: str, start: EngineStarter, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the model's own configuration switches it on, and no argument did."""
    from tokscore.scoring.engines.vllm.arguments import check_config

    config = start(name, tiny_llama)._engine.vllm_config
    check_config(config, MAX_LENGTH)
    monkeypatch.setattr(config.cache_config, "kv_sharing_fast_prefill", True, raising=False)
    with pytest.raises(EngineError, match=r"kv_sharing_fast_prefill.*fast prefill leaves out"):
        check_config(config, MAX_LENGTH)
