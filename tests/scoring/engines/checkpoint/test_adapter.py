from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.scoring.samples import random_ids
from tokscore.dataset.errors import InputError
from tokscore.scoring import TokenSequence, load_engine
from tokscore.scoring.engines.model import find_model

# PEFT's use of transformers.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
Tiny = Callable[[str], Path]
IDS = random_ids(3, 40)


def lora(base: Path, path: Path, **settings: object) -> np.ndarray:
    """Save an adapter that matters, and what PEFT itself says of the tokens."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = peft.LoraConfig(
        **{"r": 4, "target_modules": ["q_proj", "lm_head"], "task_type": "CAUSAL_LM"} | settings
    )
    adapted = peft.get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(path)
    with torch.inference_mode():
        logits = adapted.eval()(input_ids=torch.from_numpy(IDS.astype(np.int64))[None]).logits[0, :-1]
    return np.asarray(logits.double().log_softmax(-1).numpy()[np.arange(39), IDS[1:]])


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}, {"modules_to_save": ["embed_tokens"]}])
def test_an_adapter_is_scored_merged(tiny: Tiny, tmp_path: Path, settings: dict[str, object]) -> None:
    expected = lora(tiny("llama"), tmp_path / "lora", **settings)
    engine = load_engine("transformers", str(tmp_path / "lora"))
    [(_, scores)] = engine.score([TokenSequence(0, IDS)])
    np.testing.assert_allclose(scores.logprobs, expected, atol=1e-4)
    [(_, base)] = load_engine("transformers", str(tiny("llama"))).score([TokenSequence(0, IDS)])
    assert np.abs(base.logprobs - expected).max() > 0.1


def test_adapters_of_one_model_have_hashes_of_their_own(tiny: Tiny, tmp_path: Path) -> None:
    lora(tiny("llama"), tmp_path / "one")
    lora(tiny("llama"), tmp_path / "other", r=2)
    hashes = {
        find_model(str(path)).sha256() for path in (tiny("llama"), tmp_path / "one", tmp_path / "other")
    }
    assert len(hashes) == 3


def test_an_adapter_for_more_layers_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    lora(tiny("llama"), tmp_path / "lora")
    from safetensors.torch import load_file, save_file

    file = tmp_path / "lora/adapter_model.safetensors"
    weights = load_file(file)
    weights |= {name.replace("layers.1", "layers.2"): value.clone() for name, value in weights.items()}
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"2 weights of the adapter .*layers\.2"):
        load_engine("transformers", str(tmp_path / "lora"))


def test_an_adapter_without_its_base_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "/no/such/model"}')
    with pytest.raises(InputError, match=r"is an adapter of /no/such/model, which cannot be used"):
        find_model(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"base_model_name_or_path None; expected"):
        find_model(str(tmp_path))


def test_an_adapter_of_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    with pytest.raises(InputError, match="which is an adapter too"):
        find_model(str(tmp_path))
