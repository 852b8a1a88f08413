"""Whether the weights in a model's files are those that its configuration describes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from tokscore.dataset.errors import InputError, agreeing, counted, foreign

# Weights of encoders for other media and of heads for later tokens, which the logits of a text do not need.
_NOT_FOR_TEXT = re.compile(
    r"(^|[._])(vision|visual|image|video|audio|speech|talker|code2wav|token2wav|mtp|nextn)([._]|$)"
    r"|(^|\.)(multi_modal|multimodal|mm|vision|visual|audio|modality)_?(projector|projection|adapter)"
)
# Masks and tables that older checkpoints stored; the model makes them from its configuration.
_MADE = re.compile(r"(^|\.)(inv_freq|position_ids|masked_bias|causal_mask|num_batches_tracked)$")
MAX_HEADER_BYTES = 256 * 2**20
# Numbers that a configuration describes for one that the files hold; packed weights hold up to 16 in one.
MAX_EXCESS = 20
_SAFETENSORS_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "I8": "int8",
}  # fmt: skip


class Tensor(NamedTuple):
    """A weight in a file.

    Attributes:
        dtype: Name of its type in torch, float32 where that does not matter.
        shape: As stored.
    """

    dtype: str
    shape: tuple[int, ...]


class LoadReport(NamedTuple):
    """How weights and configuration go together, as transformers tells it.

    Attributes:
        missing: Weights that no file holds; transformers makes them up.
        mismatched: Weights of another shape, as `name is [4, 4] in the files and [4, 8] in config.json`.
        unexpected: Weights that the configuration leaves out.
    """

    missing: list[str]
    mismatched: list[str]
    unexpected: list[str]

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> LoadReport:  # Any: of transformers
        """From transformers' `loading_info`."""
        return cls(
            missing=sorted(map(str, report["missing_keys"])),
            mismatched=sorted(_mismatch(entry) for entry in report["mismatched_keys"]),
            unexpected=sorted(map(str, report["unexpected_keys"])),
        )

    def without_zeros(self, files: Sequence[Path]) -> LoadReport:
        """The report without biases of zeros that the configuration leaves out, as AutoGPTQ saves them.

        Args:
            files: Those of the weights.
        """
        biases = {key for key in self.unexpected if key.endswith(".bias")}
        zeros = _zeros(files, biases) if biases else set()
        return self._replace(unexpected=[key for key in self.unexpected if key not in zeros])

    def left_out(self, name: str) -> str | None:
        """The weights that are rightly left unused, by the place where they are; None where there are none.

        Args:
            name: Of the model, for messages.

        Raises:
            InputError: Other weights are left over, missing, or of another shape.
        """
        left_over = [key for key in self.unexpected if not (_NOT_FOR_TEXT.search(key) or _MADE.search(key))]
        for entries, one, several, complaint in (
            (self.missing, "is", "are", "missing: config.json describes what no file holds"),
            (self.mismatched, "has", "have", "another shape than config.json describes"),
            (left_over, "is", "are", "in the files and left out by config.json"),
        ):
            if entries:
                raise InputError(
                    f"{name}: {counted(len(entries), 'weight')} {agreeing(len(entries), one, several)} "
                    f"{complaint}; the first is {entries[0]}.\n"
                    "Its logprobs would be another model's. Mend config.json, or save the model again."
                )
        places = Counter(_place(key) for key in self.unexpected if not _MADE.search(key))
        return ", ".join(f"{place} ({n})" for place, n in sorted(places.items())) or None


def _mismatch(entry: Any) -> str:  # Any: a name, or a name with two shapes
    if isinstance(entry, tuple) and len(entry) == 3:
        name, stored, described = entry
        return f"{name}, {list(stored)} in the files and {list(described)} in config.json"
    return str(entry)


def _place(key: str) -> str:
    """`model.visual.blocks.3.weight` -> `model.visual`."""
    found = _NOT_FOR_TEXT.search(key)
    stop = -1 if found is None else key.find(".", found.end() - 1)
    return key if stop < 0 else key[:stop]


def read_tensors(files: Sequence[Path], name: str) -> dict[str, Tensor]:
    """Names, types and shapes of all weights, without reading them.

    Args:
        files: All safetensors, or all of torch.
        name: Of the model, for messages.

    Raises:
        InputError: A file is damaged.
    """
    found: dict[str, Tensor] = {}
    for file in files:
        try:
            found |= _safetensors(file) if file.suffix == ".safetensors" else _torch_file(file)
        except Exception as error:  # Of json, torch, pickle and the file system.
            raise InputError(f"{name}: {file.name} cannot be read: {foreign(error)}") from error
    return found


def _safetensors(file: Path) -> dict[str, Tensor]:
    """Source: the format's description at https://github.com/huggingface/safetensors."""
    with file.open("rb") as handle:
        size = int.from_bytes(handle.read(8), "little")
        if not 2 <= size <= min(MAX_HEADER_BYTES, file.stat().st_size):
            raise ValueError(f"its header would have {size:,} bytes")
        header = json.loads(handle.read(size))
    header.pop("__metadata__", None)
    n_cut = 8 + size + max(entry["data_offsets"][1] for entry in header.values()) - file.stat().st_size
    if n_cut > 0:
        raise ValueError(f"{n_cut:,} bytes are cut off")
    return {
        name: Tensor(_SAFETENSORS_TYPES.get(entry["dtype"], "float32"), tuple(map(int, entry["shape"])))
        for name, entry in header.items()
    }


def _torch_file(file: Path) -> dict[str, Tensor]:
    import torch

    stored = torch.load(file, map_location="meta", weights_only=True, mmap=True)
    return {
        name: Tensor(str(value.dtype).removeprefix("torch."), tuple(value.shape))
        for name, value in stored.items()
        if isinstance(value, torch.Tensor)
    }


def _zeros(files: Sequence[Path], names: Set[str]) -> set[str]:
    """Those of some weights that are nothing but zeros."""
    import torch

    found: set[str] = set()
    for file in files:
        if file.suffix != ".safetensors":
            stored = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            found |= {name for name in names & stored.keys() if not stored[name].any()}
            continue
        from safetensors import safe_open

        with safe_open(file, "pt") as handle:
            found |= {name for name in names & set(handle.keys()) if not handle.get_tensor(name).any()}
    return found
