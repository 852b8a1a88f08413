"""Packed weights are held against config.json by what they stand for, before an engine reads them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch

from tests.scoring.packed_models import MODELS, Tensors
from tests.scoring.tiny_models import change_config, change_weights
from tokscore.dataset.errors import InputError
from tokscore.scoring import load_engine
from tokscore.scoring.engines.checkpoint.config import load_config
from tokscore.scoring.engines.checkpoint.skeleton import check_files
from tokscore.scoring.engines.checkpoint.weights import LoadReport
from tokscore.scoring.engines.model import find_model

Packed = Callable[[str], Path]
K_PROJ = "model.layers.1.self_attn.k_proj"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """The folder of one of `packed_models.MODELS`."""

    @cache
    def made(name: str) -> Path:
        path = tmp_path_factory.mktemp("packed") / name
        MODELS[name](path)
        return path

    return made


def check(path: Path) -> LoadReport:
    model = find_model(str(path))
    report = check_files(load_config(path, model.name), model.weight_files(), model.name)
    assert report is not None
    report.left_out(model.name)
    return report


@pytest.mark.parametrize(
    "name", ["gptq", "gptq-ordered", "gptq-8", "awq", "compressed-asymmetric", "compressed-8"]
)
def test_packed_weights_fit_their_configuration(packed: Packed, name: str) -> None:
    assert check(packed(name)) == ([], [], [])


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda weights: {key: value for key, value in weights.items() if key != name}


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("gptq", without(f"{K_PROJ}.scales"), rf"1 weight is missing.*{K_PROJ}\.scales"),
        ("awq", without(f"{K_PROJ}.qzeros"), rf"1 weight is missing.*{K_PROJ}\.qzeros"),
        ("compressed", without(f"{K_PROJ}.weight_scale"), rf"1 weight is missing.*{K_PROJ}\.weight_scale"),
        ("awq", without(f"{K_PROJ}.qweight"), rf"1 weight is missing.*{K_PROJ}\.weight"),
        (
            "gptq",
            lambda weights: weights | {f"{K_PROJ}.bias": torch.ones(128)},
            rf"1 weight is in the files and left out by config.json; the first is {K_PROJ}\.bias",
        ),
        (
            "compressed",
            lambda weights: (
                weights
                | {
                    name.replace(".1.", ".2."): value.clone()
                    for name, value in weights.items()
                    if ".1." in name
                }
            ),
            r"9 weights are in the files and left out by config.json",
        ),
    ],
)
def test_what_vllm_would_make_up_or_drop_is_refused(
    packed: Packed, tmp_path: Path, name: str, change: Callable[[Tensors], Tensors], found: str
) -> None:
    path = copytree(packed(name), tmp_path / "changed")
    change_weights(path, change)
    with pytest.raises(InputError, match=found):
        check(path)


def test_another_size_is_refused_with_both(packed: Packed, tmp_path: Path) -> None:
    path = copytree(packed("gptq"), tmp_path / "wide")
    change_config(path, intermediate_size=384)
    with pytest.raises(InputError, match=r"6 weights have another shape .*\[128, 256\].*\[128, 384\]"):
        check(path)


def test_biases_of_zeros_change_nothing(packed: Packed, tmp_path: Path) -> None:
    path = copytree(packed("gptq"), tmp_path / "zeros")
    change_weights(path, lambda weights: weights | {f"{K_PROJ}.bias": torch.zeros(128)})
    assert check(path).unexpected == []


def test_integers_that_nothing_explains_are_no_weights(packed: Packed, tmp_path: Path) -> None:
    plain = copytree(packed("gptq").with_name("gptq-plain"), tmp_path / "plain")

    def as_integers(weights: Tensors) -> Tensors:
        return weights | {f"{K_PROJ}.weight": (weights[f"{K_PROJ}.weight"] * 50).to(torch.int8)}

    change_weights(plain, as_integers)
    with pytest.raises(InputError, match=rf"1 weight is of integers, .* the first is {K_PROJ}\.weight"):
        load_engine("transformers", str(plain))


@pytest.mark.parametrize(
    "change",
    [
        {"bits": [4]},
        {"bits": None},
        {"bits": True},
        {"checkpoint_format": "marlin"},
        {"checkpoint_format": []},
        {"quant_method": "bitsandbytes"},
        {"quant_method": ["gptq"]},
    ],
)
def test_a_layout_that_is_not_known_is_not_judged(packed: Packed, change: dict[str, Any]) -> None:
    from tokscore.scoring.engines.checkpoint.packed import plain_weights

    model = find_model(str(packed("gptq")))
    config = load_config(model.path, model.name).quantization_config
    assert plain_weights(model.tensors(), config) is not None
    assert plain_weights(model.tensors(), config | change) is None


@pytest.mark.parametrize(
    "groups", [None, {}, [], {"group_0": None}, {"group_0": {"weights": {"num_bits": [4]}}}]
)
def test_groups_that_say_no_number_of_bits_are_not_judged(packed: Packed, groups: object) -> None:
    from tokscore.scoring.engines.checkpoint.packed import plain_weights

    model = find_model(str(packed("compressed")))
    config = load_config(model.path, model.name).quantization_config
    assert plain_weights(model.tensors(), dict(config) | {"config_groups": groups}) is None
