"""Tiny random models in float32 that look like what is scored, or like what must be refused.

`python -m tests.scoring.tiny_models FOLDER [NAME ...]` writes them, each in a folder of its name.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE = 300
BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "dtype": "float32",
}
_ENCODER_DECODER = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "pad_token_id": 258,
    "bos_token_id": 257,
    "eos_token_id": 257,
    "decoder_start_token_id": 257,
}


def save(path: Path, architecture: str, config: str, **settings: object) -> None:
    """A model of transformers with random weights."""
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, architecture)(getattr(transformers, config)(**settings))
    model.float().save_pretrained(path)


def _without(*names: str, **others: object) -> dict[str, Any]:
    return {name: value for name, value in BASE.items() if name not in names} | others


def change_config(path: Path, **changes: object) -> None:
    """Change values of config.json; None removes one."""
    file = path / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def change_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Change the weights."""
    from safetensors.torch import load_file, save_file

    file = path / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def _with_biases(path: Path) -> None:
    """Random biases for the zeros that a new model has."""
    change_weights(
        path,
        lambda weights: {
            name: torch.randn_like(value) if name.endswith("bias") else value
            for name, value in weights.items()
        },
    )


def _biased(path: Path) -> None:
    """A Llama whose biases matter."""
    save(path, "LlamaForCausalLM", "LlamaConfig", **BASE, attention_bias=True)
    _with_biases(path)


def _biased_phi(path: Path) -> None:
    """A Phi whose head has a bias that matters."""
    MODELS["phi"](path)
    _with_biases(path)


def _left_out_bias(path: Path) -> None:
    """The same files, with a configuration that says nothing of biases."""
    _biased(path)
    change_config(path, attention_bias=False)


def _left_out_layer(path: Path) -> None:
    """Three layers in the files, two in the configuration."""
    save(path, "LlamaForCausalLM", "LlamaConfig", **BASE | {"num_hidden_layers": 3})
    change_config(path, num_hidden_layers=2)


def save_bigram(path: Path, logits: torch.Tensor) -> None:
    """A Llama whose logits depend on the last token alone.

    Args:
        path: Where it is written.
        logits: A row for each last token, [ids, ids]; -inf rules an id out.
    """
    n_ids = len(logits)
    width = -(-n_ids // 64) * 64
    shape = {"hidden_size": width, "head_dim": 64, "num_attention_heads": 1, "num_key_value_heads": 1}
    save(
        path,
        "LlamaForCausalLM",
        "LlamaConfig",
        **BASE | shape | {"vocab_size": n_ids, "num_hidden_layers": 1, "rms_norm_eps": 1e-30},
    )

    def only_the_last_token(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        weights = {name: torch.zeros_like(value) for name, value in weights.items()}
        weights["model.norm.weight"] += 1
        weights["model.embed_tokens.weight"][:, :n_ids] = torch.eye(n_ids)
        # Its norm makes sqrt(width) of the 1 of an embedding; what is beyond float32 is infinite.
        finite = (logits.double().T / width**0.5).clamp(min=-3e38)
        weights["lm_head.weight"][:, :n_ids] = finite.float()
        return weights

    change_weights(path, only_the_last_token)
    _write_tokenizer(path)


def _bart(path: Path) -> None:
    """Bart whose files also hold the tied head, as torch's do."""
    save(
        path,
        "BartForConditionalGeneration",
        "BartConfig",
        **_ENCODER_DECODER,
        max_position_embeddings=512,
        init_std=0.2,
    )

    def untie(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        shared = weights["model.shared.weight"]
        copies = ("lm_head.weight", "model.decoder.embed_tokens.weight")
        return weights | {name: shared.clone() for name in copies}

    change_weights(path, untie)


def _llama_with_code(path: Path) -> None:
    """A Llama that says its classes are in a file of its folder; importing it writes `ran`."""
    save(path, "LlamaForCausalLM", "LlamaConfig", **BASE)
    (path / "custom.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
        f"Path({str(path / 'ran')!r}).touch()\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
        "class OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )
    names = {"AutoConfig": "custom.OwnConfig", "AutoModelForCausalLM": "custom.OwnForCausalLM"}
    change_config(path, model_type="own", architectures=["OwnForCausalLM"], auto_map=names)


_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 16,
    "long_factor": [4.0] * 16,
}
_WHISPER = ("WhisperForConditionalGeneration", "WhisperConfig")
_REWARD = _without("head_dim", tie_word_embeddings=True, num_labels=1, pad_token_id=258)

MODELS: Mapping[str, Callable[[Path], None]] = {
    "llama": partial(save, architecture="LlamaForCausalLM", config="LlamaConfig", **BASE),
    "longrope": partial(
        save, architecture="LlamaForCausalLM", config="LlamaConfig", **BASE, rope_parameters=_LONGROPE
    ),
    "bert": partial(
        save,
        architecture="BertLMHeadModel",
        config="BertConfig",
        **_without("num_key_value_heads", "head_dim", pad_token_id=258),
    ),
    "xlnet": partial(
        save,
        architecture="XLNetLMHeadModel",
        config="XLNetConfig",
        vocab_size=VOCAB_SIZE,
        d_model=64,
        n_layer=2,
        n_head=4,
        d_inner=96,
        initializer_range=0.3,
    ),
    "whisper": partial(
        save, architecture=_WHISPER[0], config=_WHISPER[1], **_ENCODER_DECODER, max_target_positions=448
    ),
    "bart": _bart,
    "reward": partial(save, architecture="Qwen2ForSequenceClassification", config="Qwen2Config", **_REWARD),
    "body": partial(save, architecture="Qwen2Model", config="Qwen2Config", **_REWARD),
    "biased": _biased,
    "left-out-bias": _left_out_bias,
    "left-out-layer": _left_out_layer,
    "gemma2": partial(
        save, architecture="Gemma2ForCausalLM", config="Gemma2Config", **BASE, query_pre_attn_scalar=32
    ),
    "phi": partial(
        save, architecture="PhiForCausalLM", config="PhiConfig", **_without("head_dim", "num_key_value_heads")
    ),
    "granite": partial(
        save, architecture="GraniteForCausalLM", config="GraniteConfig", **BASE, logits_scaling=4.0
    ),
    "biased-phi": _biased_phi,
    "cohere": partial(
        save,
        architecture="CohereForCausalLM",
        config="CohereConfig",
        **_without("head_dim", logit_scale=0.5),
    ),
    "wider": partial(
        save, architecture="LlamaForCausalLM", config="LlamaConfig", **BASE | {"vocab_size": VOCAB_SIZE + 27}
    ),
    "code": _llama_with_code,
}


def make(name: str, folder: Path) -> Path:
    """Write one of the models, and a tokenizer of bytes beside it."""
    path = folder / name
    MODELS[name](path)
    _write_tokenizer(path)
    return path


def _write_tokenizer(path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    control = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


if __name__ == "__main__":
    for wanted in sys.argv[2:] or MODELS:
        shutil.rmtree(Path(sys.argv[1]) / wanted, ignore_errors=True)
        make(wanted, Path(sys.argv[1]))
