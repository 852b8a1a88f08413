"""vLLM's paths, memory and settings, on the tiny model."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace as replace_struct
from safetensors.torch import load_file

from tests.scoring.engines.test_contract import ATOL, scores_of, whole
from tests.scoring.samples import MAX_LENGTH, EngineStarter, random_ids
from tokscore.dataset.errors import EngineError, UsageError
from tokscore.scoring import TokenSequence, plan_engine
from tokscore.scoring.engines.settings import EngineSettings
from tokscore.scoring.engines.vllm import requests
from tokscore.scoring.engines.vllm.arguments import vllm_settings

vllm = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]

# float32, the same engine in other batches.
NOISE = 5e-5


class Preemptions:
    """Counts what the scheduler of an engine in this process takes back."""

    def __init__(self, engine: object, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n = self.n_decoded = 0
        scheduler = engine._engine.engine_core.engine_core.scheduler
        preempt, schedule = scheduler._preempt_request, scheduler.schedule

        def counted(*arguments: object, **named: object) -> object:
            self.n += 1
            return preempt(*arguments, **named)

        def watched(*arguments: object, **named: object) -> object:
            output = schedule(*arguments, **named)
            for name in output.num_scheduled_tokens:
                self.n_decoded += scheduler.requests[name].num_output_tokens > 0
            return output

        monkeypatch.setattr(scheduler, "_preempt_request", counted)
        monkeypatch.setattr(scheduler, "schedule", watched)


@pytest.mark.parametrize("path", [pytest.param(path, marks=vllm) for path in ("fused", "tensors", "flat")])
def test_preempted_and_chunked_prompts_score_as_in_a_roomy_run(
    start: EngineStarter, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    sequences = [random_ids(seed, n) for seed, n in enumerate([900, 880, 860, 40, 700, 5])]
    roomy = scores_of(start("vllm", tiny_llama, engine_path=path), sequences)
    # 12 blocks of 128 tokens; two prompts go on at a time and both want 7 or 8.
    arguments = {"kv_cache_memory_bytes": 12 * 128 * 512, "long_prefill_token_threshold": 128}
    options = {"engine_path": path, "batch_tokens": 256, "engine_arg": arguments}
    monkeypatch.setattr(requests, "QUEUED_BATCHES", {"cpu": 20})
    engine = start("vllm", tiny_llama, **options)
    watch = Preemptions(engine, monkeypatch)
    tight = scores_of(engine, sequences)
    assert watch.n > 0
    assert watch.n_decoded == 0
    for one, other, ids in zip(tight, roomy, sequences, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=NOISE)
        np.testing.assert_allclose(one.top_logprobs, other.top_logprobs, atol=NOISE)
        np.testing.assert_allclose(one.logprobs, whole(tiny_llama, ids), atol=ATOL)


@pytest.mark.parametrize("path", [pytest.param(path, marks=vllm) for path in ("tensors", "flat")])
def test_the_paths_agree(start: EngineStarter, tiny_llama: Path, path: str) -> None:
    ids = random_ids(3, 400)
    wanted = np.random.default_rng(1).random(399) < 0.5
    sequences = [TokenSequence(0, ids), TokenSequence(1, ids, wanted)]
    fused = dict(start("vllm", tiny_llama).score(sequences))
    engine = start("vllm", tiny_llama, engine_path=path)
    assert engine.details["path"] == path
    other = dict(engine.score(sequences))
    for key in (0, 1):
        np.testing.assert_allclose(fused[key].logprobs, other[key].logprobs, atol=NOISE)
        np.testing.assert_allclose(fused[key].top_logprobs, other[key].top_logprobs, atol=NOISE)
        np.testing.assert_array_equal(fused[key].top_ids, other[key].top_ids)
        np.testing.assert_array_equal(fused[key].ranks, other[key].ranks)


@pytest.mark.parametrize("arguments", [pytest.param(None, marks=vllm)])
def test_a_path_that_fails_its_test_gives_way_to_the_next(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, arguments: None
) -> None:
    from tokscore.scoring.engines.vllm.worker import prompts as vllm_worker

    real = vllm_worker.score_rows
    monkeypatch.setattr(
        vllm_worker, "score_rows", lambda *given: real(*given)._replace(entropy=real(*given).entropy + 5)
    )
    engine = plan_engine(str(tiny_llama), engine="vllm", top_k=3).start(64)
    try:
        assert engine.details["path"] == "tensors"
        [(_, scores)] = engine.score([TokenSequence(0, random_ids(0, 40))])
        np.testing.assert_allclose(scores.logprobs, whole(tiny_llama, random_ids(0, 40)), atol=ATOL)
    finally:
        engine.close()


@pytest.mark.parametrize("path", [pytest.param("fused", marks=vllm)])
def test_a_path_asked_for_by_name_is_not_replaced(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    from tokscore.scoring.engines.vllm.worker import prompts as vllm_worker

    def broken(*given: object) -> object:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(vllm_worker, "score_rows", broken)
    spec = plan_engine(str(tiny_llama), engine="vllm", top_k=3, engine_path=path)
    with pytest.raises(EngineError, match=r"fused: .*no such kernel"):
        spec.start(64)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("kv_sharing_fast_prefill", True, "fast prefill leaves out"),
        ("enable_prefix_caching", True, "comes without logprobs"),
        ("speculative_config", {"model": "x"}, "speculative"),
        ("enable_lora", True, "merge the adapter"),
        ("max_num_batched_tokens", 10, "scoring sets it itself"),
        ("max_model_len", 0, "expected a whole number above 0"),
        ("logits_bytes", "1GB", "expected a whole number above 0"),
    ],
)
def test_arguments_that_make_rows_wrong_are_refused_before_the_start(
    tiny_llama: Path, name: str, value: object, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        plan_engine(str(tiny_llama), engine="vllm", engine_arg={name: value})


def test_memory_for_logits_can_be_stated_and_leaves_the_rest_to_vllm(tiny_llama: Path) -> None:
    plain = plan_engine(str(tiny_llama), engine="transformers")
    asked = replace(
        plain,
        settings=EngineSettings(engine_arg={"logits_bytes": 20 * 2**30, "max_num_seqs": 3}),
        identity=replace_struct(plain.identity, engine="vllm"),
    )
    little, much = (vllm_settings(spec, 64, stock=False, gpu_bytes=80 * 2**30) for spec in (plain, asked))
    assert (little.logits_bytes, much.logits_bytes) == (1280 * 2**20, 20 * 2**30)
    assert little.arguments["gpu_memory_utilization"] == 0.9
    assert much.arguments["gpu_memory_utilization"] == round(1 - 22 / 80, 3)
    assert "logits_bytes" not in much.arguments
    assert asked.recorded()["engine_arguments"] == '{"max_num_seqs": 3}', "memory does not change the plan"
    assert much.arguments["max_num_seqs"] == 3


@pytest.mark.parametrize("name", ["transformers", *[pytest.param("vllm", marks=vllm)]])
def test_a_longer_maximum_than_the_configuration_says_can_be_stated(
    start: EngineStarter, tiny_llama: Path, name: str
) -> None:
    ids = random_ids(12, MAX_LENGTH + 200)
    options = {"engine_arg": {"max_model_len": len(ids)}}
    engine = start(name, tiny_llama, **options)
    assert engine.max_length == len(ids)
    [scores] = scores_of(engine, [ids])
    np.testing.assert_allclose(scores.logprobs, whole(tiny_llama, ids), atol=ATOL)


LONG_POSITIONS = {
    # A configuration that states the original length, as Qwen's does.
    "yarn": (256, {"factor": 4.0}),
    "longrope": (1_024, {"short_factor": [1.0] * 16, "long_factor": [4.0] * 16}),
}


@pytest.mark.parametrize("name", ["transformers", *[pytest.param("vllm", marks=vllm)]])
@pytest.mark.parametrize("kind", LONG_POSITIONS)
def test_scaled_positions_are_scored_up_to_the_length_that_they_reach(
    start: EngineStarter, tiny_llama: Path, tmp_path: Path, kind: str, name: str
) -> None:
    stated, scaling = LONG_POSITIONS[kind]
    rope = scaling | {"rope_type": kind, "rope_theta": 1e4, "original_max_position_embeddings": 256}
    config = json.loads((tiny_llama / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"max_position_embeddings": stated, "rope_parameters": rope})
    )
    (tmp_path / "model.safetensors").symlink_to(tiny_llama / "model.safetensors")
    ids = random_ids(13, 1_024)
    engine = start(name, tmp_path)
    assert engine.max_length == 1_024
    [scores] = scores_of(engine, [ids])
    np.testing.assert_allclose(scores.logprobs, whole(tmp_path, ids), atol=ATOL)
    assert engine.details.get("positions") == ("long" if (name, kind) == ("vllm", "longrope") else None)


@pytest.mark.parametrize("name", [pytest.param("vllm", marks=vllm)])
def test_a_float32_head_keeps_what_a_bf16_head_rounds_away(
    start: EngineStarter, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Against float64 logits of the hidden states that vLLM's bf16 body hands to the head."""
    weight = load_file(tiny_llama / "model.safetensors")["lm_head.weight"].bfloat16().double()
    from tokscore.scoring.engines.vllm.worker import prompts as vllm_worker

    hidden_states = []
    step = vllm_worker.PromptScorer.step

    def watched(scorer: object, spans: object, states: torch.Tensor, targets_of: object) -> object:
        hidden_states.append(states.double())
        return step(scorer, spans, states, targets_of)

    monkeypatch.setattr(vllm_worker.PromptScorer, "step", watched)
    ids = random_ids(14, 300)
    errors = {}
    for head in ("model", "float32"):
        options = {"head_dtype": head}
        engine = start(name, tiny_llama, dtype="bfloat16", **options)
        assert engine.details["head_dtype"] == ("float32" if head == "float32" else "bfloat16")
        [scores] = scores_of(engine, [ids])
        expected = (hidden_states[-1][:299] @ weight.T).log_softmax(-1)[np.arange(299), ids[1:]]
        errors[head] = np.abs(scores.logprobs - expected.numpy())
    assert errors["float32"].max() < 2e-5
    assert errors["model"].mean() > 1e-3


def test_options_for_vllm_are_refused_elsewhere(tiny_llama: Path) -> None:
    with pytest.raises(UsageError, match="`tensor_parallel_size` is for vllm; the engine is transformers"):
        plan_engine(str(tiny_llama), engine="transformers", tensor_parallel_size=2)
