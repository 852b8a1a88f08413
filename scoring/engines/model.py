"""A model on disk, described from its configuration and files without loading it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tokscore.dataset.errors import InputError, foreign
from tokscore.scoring.engines.checkpoint.adapter import ADAPTER_CONFIG, base_model_of
from tokscore.scoring.engines.checkpoint.architecture import check_architecture
from tokscore.scoring.engines.checkpoint.config import load_config
from tokscore.scoring.engines.checkpoint.positions import max_length_of, switch_length_of
from tokscore.scoring.engines.checkpoint.weights import Tensor, read_tensors

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# More weights than this are not hashed whole, but in blocks so close that every matrix holds some.
MAX_HASHED_BYTES = 8 * 2**30
BLOCK_BYTES = 64 * 2**10
BLOCK_EVERY_BYTES = 8 * 2**20
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
        trust_remote_code: Whether code that comes with the model may run.
        adapter: Folder of an adapter that is merged into it; None where there is none.
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
    trust_remote_code: bool = False
    adapter: Path | None = None

    def weight_files(self) -> list[Path]:
        """The files that hold the weights, by name."""
        files = sorted(self.path.glob("*.safetensors")) or sorted(self.path.glob("*.bin"))
        if not files:
            raise InputError(f"{self.name} has no weights; expected *.safetensors or *.bin.")
        return files

    def tensors(self) -> dict[str, Tensor]:
        """Names, types and shapes of the weights; none is read.

        Raises:
            InputError: A file is damaged.
        """
        return read_tensors(self.weight_files(), self.name)

    def sha256(self) -> str:
        """Hash over names and bytes of config.json and the weights, those of an adapter too.

        Above 8 GiB of weights it covers of each file the size, the end, and 64 KiB in every 8 MiB.
        """
        files = [self.path / "config.json", *self.weight_files()]
        if self.adapter is not None:
            files += [self.adapter / ADAPTER_CONFIG, *sorted(self.adapter.glob("adapter_model.*"))]
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


def find_model(model: str, revision: str | None = None, *, trust_remote_code: bool = False) -> ModelFiles:
    """The model in a local directory, or on the hub (fetched into its cache).

    Args:
        model: A model directory or hub id.
        revision: Branch, tag or commit on the hub; a directory has none.
        trust_remote_code: Whether code that comes with the model may run.

    Raises:
        InputError: There is no such model, or it is not a causal language model with its own weights.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return _describe(path.resolve(), path.resolve().name, None, trust_remote_code)
    # A hub id is `name` or `owner/name`; everything else can only be meant as a path.
    if path.exists() or model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise _not_a_model(model)
    snapshot = _fetch(model, revision)
    return _describe(snapshot, model, snapshot.name, trust_remote_code)


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
        reason = foreign(error).strip().partition("\n")[0]
        raise InputError(
            f"{_not_a_model(hub_id)}\nNo such directory here, and the hub did not provide it: {reason}"
        ) from error
    return path


def _describe(path: Path, name: str, revision: str | None, trust_remote_code: bool) -> ModelFiles:
    if (path / ADAPTER_CONFIG).is_file():
        return _describe_adapter(path, name, revision, trust_remote_code)
    if not (path / "config.json").is_file():
        raise _not_a_model(str(path))
    whole = load_config(path, name, trust_remote_code=trust_remote_code)
    check_architecture(whole, name)
    config = whole.get_text_config()
    vocab_size = getattr(config, "vocab_size", None)
    if not isinstance(vocab_size, int):
        raise InputError(f"{name}: config.json states no vocab_size; expected a causal language model.")
    if vocab_size < 1:
        raise InputError(f"{name}: config.json has vocab_size {vocab_size}; expected at least 1.")
    dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    if dtype not in ("float64", "float32", "bfloat16", "float16"):
        raise InputError(f"{name}: config.json has dtype {dtype:.60}; expected float32, bfloat16 or float16.")
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
        trust_remote_code,
    )


def _describe_adapter(path: Path, name: str, revision: str | None, trust_remote_code: bool) -> ModelFiles:
    """An adapter's base model, with the adapter and under its name."""
    base = base_model_of(path, name)
    if (Path(base).expanduser() / ADAPTER_CONFIG).is_file():
        raise InputError(f"{name} is an adapter of {base}, which is an adapter too; expected a model.")
    try:
        found = find_model(base, trust_remote_code=trust_remote_code)
    except InputError as error:
        raise InputError(f"{name} is an adapter of {base}, which cannot be used.\n{error}") from error
    return replace(found, name=name, revision=revision, adapter=path)


def _kv_width(config: PretrainedConfig) -> int:
    def size(name: str) -> int:
        value = getattr(config, name, None)
        return value if isinstance(value, int) and value > 0 else 0

    heads = size("num_attention_heads") or 1
    width = size("head_dim") or size("hidden_size") // heads
    return 2 * size("num_hidden_layers") * (size("num_key_value_heads") or heads) * width
