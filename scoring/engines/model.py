"""A model on disk, described from its configuration and files without loading it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tokscore.dataset.errors import InputError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# More weights than this are not hashed whole, but in blocks so close that every matrix holds some.
MAX_HASHED_BYTES = 8 * 2**30
BLOCK_BYTES = 64 * 2**10
BLOCK_EVERY_BYTES = 8 * 2**20
# For models that state no maximum.
UNLIMITED_LENGTH = 2**31 - 1
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]
# Folders and consolidated files repeat the weights in other formats.
_HUB_IGNORED = ["*/*", "consolidated*"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model directory.

    Attributes:
        path: Where it lies on this machine.
        name: Base name of the directory, or the hub id.
        revision: Commit on the hub, where known.
        vocab_size: Width of the logits.
        max_length: Most tokens in one sequence.
        config_length: The same as the configuration says it, where the user says otherwise.
        dtype: Type that the configuration states, float32 where it states none.
        kv_width: Numbers that a key-value cache holds for one token.
        switch_length: As `switch_length_of` says.
    """

    path: Path
    name: str
    revision: str | None
    vocab_size: int
    max_length: int
    config_length: int
    dtype: str
    kv_width: int
    switch_length: int | None = None

    def weight_files(self) -> list[Path]:
        """The files that hold the weights, by name."""
        files = sorted(self.path.glob("*.safetensors")) or sorted(self.path.glob("*.bin"))
        if not files:
            raise InputError(f"{self.name} has no weights; expected *.safetensors or *.bin.")
        return files

    def sha256(self) -> str:
        """Hash over names and bytes of config.json and the weights.

        Above 8 GiB of weights it covers of each file the size, the end, and 64 KiB in every 8 MiB.
        """
        files = [self.path / "config.json", *self.weight_files()]
        is_large = sum(file.stat().st_size for file in files) > MAX_HASHED_BYTES
        total = hashlib.sha256()
        for file in files:
            with file.open("rb") as handle:
                digest = _hash_of_blocks(handle) if is_large else hashlib.file_digest(handle, "sha256")
            total.update(f"{digest.hexdigest()}  {file.name}\n".encode())
        return total.hexdigest()


def _hash_of_blocks(file: BinaryIO) -> hashlib._Hash:
    size = file.seek(0, os.SEEK_END)
    digest = hashlib.sha256(f"{size} bytes".encode())
    for start in (*range(0, size, BLOCK_EVERY_BYTES), max(0, size - BLOCK_BYTES)):
        file.seek(start)
        digest.update(file.read(BLOCK_BYTES))
    return digest


def find_model(model: str, revision: str | None = None) -> ModelFiles:
    """The model in a local directory, or on the hub (fetched into its cache).

    Raises:
        InputError: There is no such model, or it is not a causal language model with its own weights.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return _describe(path.resolve(), path.resolve().name, None)
    # A hub id is `name` or `owner/name`; everything else can only be meant as a path.
    if path.exists() or model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise _not_a_model(model)
    snapshot = _fetch(model, revision)
    return _describe(snapshot, model, snapshot.name)


def _not_a_model(model: str) -> InputError:
    return InputError(f"{model} has no config.json; expected a model directory or hub id.")


def _fetch(hub_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    def fetch(revision: str | None, patterns: list[str]) -> Path:
        return Path(
            snapshot_download(
                hub_id, revision=revision, allow_patterns=patterns, ignore_patterns=_HUB_IGNORED
            )
        )

    try:
        path = fetch(revision, _HUB_FILES)
        if not any(path.glob("*.safetensors")):
            fetch(path.name, ["*.bin"])
    except Exception as error:  # The client raises its own, httpx's and built-in errors.
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"{_not_a_model(hub_id)}\nNo such directory here, and the hub did not provide it: {reason}"
        ) from error
    return path


def _describe(path: Path, name: str, revision: str | None) -> ModelFiles:
    if (path / "adapter_config.json").is_file():
        raise InputError(f"{name} is an adapter; merge it into its base model and score the result.")
    if not (path / "config.json").is_file():
        raise _not_a_model(str(path))
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path).get_text_config()
    except Exception as error:  # It raises its own, huggingface_hub's and built-in errors.
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"{name}: config.json cannot be used: {reason}") from error
    vocab_size = getattr(config, "vocab_size", None)
    if not isinstance(vocab_size, int):
        raise InputError(f"{name}: config.json states no vocab_size; expected a causal language model.")
    dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    max_length = max_length_of(config)
    return ModelFiles(
        path,
        name,
        revision,
        vocab_size,
        max_length,
        max_length,
        dtype,
        _kv_width(config),
        switch_length_of(config),
    )


def max_length_of(config: PretrainedConfig) -> int:
    """Most tokens in one sequence.

    YaRN reaches `factor` times the original length, whether `max_position_embeddings` says so or still holds
    the original. Other ways to scale positions leave it open whether it is scaled already: it is believed.

    Source:
        Peng et al. (2023), YaRN: Efficient Context Window Extension of Large Language Models, section 3.
    """
    for key in ("max_position_embeddings", "max_sequence_length", "max_seq_len", "seq_length"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:
            return max(value, _yarn_length(config, value))
    return UNLIMITED_LENGTH


def switch_length_of(config: PretrainedConfig) -> int | None:
    """The length above which all tokens of a sequence have other positions; None where there is none.

    Source:
        Ding et al. (2024), LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens, section 3.4.
    """
    stated = getattr(config, "max_position_embeddings", None) or UNLIMITED_LENGTH
    lengths = [
        original for kind, original, _ in _positions(config, stated) if kind in ("longrope", "dynamic")
    ]
    return min(lengths, default=None)


def _yarn_length(config: PretrainedConfig, stated: int) -> int:
    """What YaRN reaches, 0 without it; the shortest where layers differ."""
    return min(
        int(original * factor) if kind == "yarn" and factor else 0
        for kind, original, factor in _positions(config, stated)
    )


def _positions(config: PretrainedConfig, stated: int) -> list[tuple[str, int, float | None]]:
    """Type of the rotary positions, length before they are scaled, and factor; for each kind of layers."""
    found = getattr(config, "rope_parameters", None) or {}
    # Of all layers, or by their kind; None for those without rotary positions.
    kinds = [value for value in found.values() if isinstance(value, Mapping)] or [found]
    return [
        (
            str(kind.get("rope_type", kind.get("type"))),
            int(kind.get("original_max_position_embeddings") or stated),
            kind.get("factor"),
        )
        for kind in kinds
    ]


def _kv_width(config: PretrainedConfig) -> int:
    heads = getattr(config, "num_attention_heads", None) or 1
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or (getattr(config, "hidden_size", 0) or 0) // heads
    layers = getattr(config, "num_hidden_layers", 0) or 0
    return int(2 * layers * kv_heads * width)
