from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
import torch

from tests.scoring.tiny_models import BASE, change_config, change_weights, save
from tokscore.dataset.errors import InputError
from tokscore.scoring import load_engine
from tokscore.scoring.engines.checkpoint.config import load_config
from tokscore.scoring.engines.checkpoint.skeleton import check_skeleton, compare
from tokscore.scoring.engines.model import find_model

Tiny = Callable[[str], Path]


def compared(path: Path) -> str | None:
    """The check that loads no weight, as vLLM's engine does it."""
    model = find_model(str(path))
    return compare(load_config(path, model.name), model.tensors(), model.name).left_out(model.name)


@pytest.mark.parametrize(
    ("name", "found"),
    [("left-out-bias", r"8 weights .*self_attn.k_proj.bias"), ("left-out-layer", r"9 weights .*layers.2.")],
)
def test_weights_that_the_configuration_leaves_out_are_not_dropped(tiny: Tiny, name: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        load_engine("transformers", str(tiny(name)))
    with pytest.raises(InputError, match=found):
        compared(tiny(name))


def test_the_same_weights_described_are_scored(tiny: Tiny) -> None:
    load_engine("transformers", str(tiny("biased"))).close()
    assert compared(tiny("biased")) is None


def test_vision_towers_are_named_and_left_out(tiny: Tiny, tmp_path: Path) -> None:
    path = copytree(tiny("llama"), tmp_path / "sees")
    extra = {
        "model.visual.blocks.0.weight": torch.ones(2),
        "model.visual.blocks.1.weight": torch.ones(2),
        "vision_tower.patch.bias": torch.ones(2),
        "multi_modal_projector.linear.weight": torch.ones(2),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2),
    }
    change_weights(path, lambda weights: weights | extra)
    engine = load_engine("transformers", str(path))
    expected = "model.visual (2), multi_modal_projector (1), vision_tower (1)"
    assert engine.details["unused_weights"] == expected == compared(path)


def test_weights_of_another_shape_are_named_with_both(tiny: Tiny, tmp_path: Path) -> None:
    path = copytree(tiny("llama"), tmp_path / "wide")
    change_config(path, intermediate_size=96)
    for load in (lambda path: load_engine("transformers", str(path)), compared):
        with pytest.raises(
            InputError, match=r"6 weights have another shape .*\[64, 128\].*\[64, 96\]"
        ) as error:
            load(path)
        assert "report" not in str(error.value)


def test_files_of_torch_are_compared_too(tiny: Tiny, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    path = copytree(tiny("left-out-bias"), tmp_path / "torch")
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="8 weights are in the files"):
        compared(path)


def test_experts_that_transformers_merges_are_no_difference(tmp_path: Path) -> None:
    save(
        tmp_path / "experts",
        "MixtralForCausalLM",
        "MixtralConfig",
        **BASE,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    assert compared(tmp_path / "experts") is None


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"num_hidden_layers": 9_999}, "9,999 layers, and the files only 21 weights"),
        ({"hidden_size": 2**20, "intermediate_size": 2**20}, "describes weights with"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; expected at most"),
    ],
)
def test_a_configuration_far_beyond_the_weights_is_refused_at_once(
    tiny: Tiny, tmp_path: Path, changes: dict[str, int], found: str
) -> None:
    path = copytree(tiny("llama"), tmp_path / "large")
    change_config(path, **changes)

    def check() -> None:
        model = find_model(str(path))
        check_skeleton(load_config(path, model.name), model.tensors(), model.name)

    with pytest.raises(InputError, match=found):
        check()


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda held: b"\xff" * 100, "its header would have"),
        (lambda held: held[:-1], "bytes are cut off"),
        (lambda held: held[:8] + b"x" + held[9:], "Expecting value"),
    ],
)
def test_a_damaged_file_is_named(
    tiny: Tiny, tmp_path: Path, damage: Callable[[bytes], bytes], found: str
) -> None:
    path = copytree(tiny("llama"), tmp_path / "damaged")
    file = path / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match=rf"damaged: model.safetensors cannot be read: .*{found}"):
        load_engine("transformers", str(path))
