"""Quantized checkpoints are scored as what their numbers stand for, or refused by name."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import unavailable
from tests.scoring.samples import random_ids
from tokscore.dataset.errors import EngineError, InputError
from tokscore.scoring import TokenSequence, load_engine

pytestmark = pytest.mark.filterwarnings("ignore")
FLOAT8_MAX = 448.0
BLOCK = 32


def with_config(model: Path, path: Path, quantization: dict[str, Any] | None) -> Path:
    shutil.copytree(model, path)
    config = json.loads((path / "config.json").read_text())
    if quantization is not None:
        config["quantization_config"] = quantization
    (path / "config.json").write_text(json.dumps(config))
    return path


def in_float8(weight: torch.Tensor, block: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The weight in float8, its scales, and in float64 what both stand for."""
    n_rows, n_columns = weight.shape
    rows, columns = (block, block) if block else (n_rows, n_columns)
    tiles = weight.double().reshape(n_rows // rows, rows, n_columns // columns, columns)
    scales = (tiles.abs().amax((1, 3)) / FLOAT8_MAX).float()
    packed = (tiles / scales.double()[:, None, :, None]).to(torch.float8_e4m3fn)
    whole = packed.double() * scales.double()[:, None, :, None]
    shape = (n_rows, n_columns)
    return packed.reshape(shape), scales if block else scales.reshape(()), whole.reshape(shape)


@torch.inference_mode()
def logprobs_in_float64(path: Path, ids: np.ndarray) -> np.ndarray:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, attn_implementation="eager")
    logits = model(torch.from_numpy(ids)[None].long()).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, torch.from_numpy(ids[1:, None]).long())[:, 0].numpy()


@pytest.mark.parametrize(("scheme", "block"), [("dynamic", BLOCK), ("dynamic", None), ("static", None)])
def test_float8_weights_are_those_times_their_scales(
    tiny_model: Path, tmp_path: Path, scheme: str, block: int | None
) -> None:
    from safetensors.torch import load_file, save_file

    packed: dict[str, torch.Tensor] = {}
    whole: dict[str, torch.Tensor] = {}
    for name, weight in load_file(tiny_model / "model.safetensors").items():
        packed[name] = whole[name] = weight
        if name.endswith("proj.weight"):
            packed[name], packed[f"{name}_scale_inv"], whole[name] = in_float8(weight, block)
            if scheme == "static":
                packed[name.replace("weight", "activation_scale")] = torch.tensor(0.01)
    config: dict[str, Any] = {
        "quant_method": "fp8",
        "activation_scheme": scheme,
        "modules_to_not_convert": ["lm_head"],
    }
    quantized = with_config(
        tiny_model, tmp_path / "quantized", config | ({"weight_block_size": [block, block]} if block else {})
    )
    plain = with_config(tiny_model, tmp_path / "plain", None)
    for path, tensors in ((quantized, packed), (plain, whole)):
        save_file(
            {n: t.contiguous() for n, t in tensors.items()}, path / "model.safetensors", {"format": "pt"}
        )
    ids = random_ids(0, 40) % 259
    engine = load_engine("transformers", str(quantized), top_k=1)
    try:
        [(_, scores)] = engine.score([TokenSequence(0, ids)])
        if not torch.cuda.is_available():
            assert engine.details["quantization"] == "fp8, dequantized at load"
    finally:
        engine.close()
    np.testing.assert_allclose(scores.logprobs, logprobs_in_float64(plain, ids), atol=1e-4)  # float32


@pytest.mark.parametrize("method", ["modelopt", "mystery", 7, None])
def test_a_method_that_transformers_does_not_know_is_refused(
    tiny_model: Path, tmp_path: Path, method: object
) -> None:
    path = with_config(tiny_model, tmp_path / "model", {"quant_method": method, "bits": 4})
    with pytest.raises(InputError, match=r"quantization_config.quant_method is .* which transformers cannot"):
        load_engine("transformers", str(path), top_k=1)


@pytest.mark.parametrize(
    ("method", "package", "module"),
    [
        ({"quant_method": "gptq", "bits": 4}, "optimum", "optimum"),
        ({"quant_method": "awq", "bits": 4}, "gptqmodel", "gptqmodel"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", "bitsandbytes"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes", "bitsandbytes"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors", "compressed_tensors"),
    ],
)
def test_a_method_whose_package_is_missing_names_it(
    tiny_model: Path, tmp_path: Path, method: dict[str, Any], package: str, module: str
) -> None:
    if find_spec(module) is not None:
        unavailable(f"{package} is installed, so that its absence cannot be tried")
    path = with_config(tiny_model, tmp_path / "model", method)
    with pytest.raises(EngineError, match=f"(?s)cannot load model.*{package}"):
        load_engine("transformers", str(path), top_k=1)
