"""How many tokens a model takes, and where the positions of a sequence change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tokscore.dataset.errors import InputError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# For models that state no maximum.
UNLIMITED_LENGTH = 2**31 - 1


def max_length_of(config: PretrainedConfig) -> int:
    """Most tokens in one sequence.

    YaRN reaches `factor` times the original length, whether `max_position_embeddings` says so or still holds
    the original. Other ways to scale positions leave it open whether it is scaled already: it is believed.

    Raises:
        InputError: A length or factor is none.

    Source:
        Peng et al. (2023), YaRN: Efficient Context Window Extension of Large Language Models, section 3.
    """
    for key in ("max_position_embeddings", "max_sequence_length", "max_seq_len", "seq_length"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:
            return min(max(value, _yarn_length(config, value)), UNLIMITED_LENGTH)
    return UNLIMITED_LENGTH


def switch_length_of(config: PretrainedConfig) -> int | None:
    """The length above which all tokens of a sequence have other positions; None where there is none.

    Raises:
        InputError: A length or factor is none.

    Source:
        Ding et al. (2024), LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens, section 3.4.
    """
    stated = getattr(config, "max_position_embeddings", None)
    stated = stated if isinstance(stated, int) and stated > 0 else UNLIMITED_LENGTH
    lengths = [
        original for kind, original, _ in _positions(config, stated) if kind in ("longrope", "dynamic")
    ]
    return min(lengths, default=None)


def _yarn_length(config: PretrainedConfig, stated: int) -> int:
    """The reach of YaRN, 0 without it; the shortest where layers differ."""
    return min(
        int(original * factor) if kind == "yarn" and factor else 0
        for kind, original, factor in _positions(config, stated)
    )


def _positions(config: PretrainedConfig, stated: int) -> list[tuple[str, int, float | None]]:
    """Type of the rotary positions, length before they are scaled, and factor; for each kind of layers."""
    found = getattr(config, "rope_parameters", None) or {}
    if not isinstance(found, Mapping):
        raise InputError(f"config.json: rope_parameters is {found!r:.60}; expected an object.")
    # Of all layers, or by their kind; None for those without rotary positions.
    kinds = [value for value in found.values() if isinstance(value, Mapping)] or [found]
    return [
        (
            str(kind.get("rope_type", kind.get("type"))),
            int(_number(kind, "original_max_position_embeddings") or stated),
            _number(kind, "factor"),
        )
        for kind in kinds
    ]


def _number(rope: Mapping[str, object], key: str) -> float | None:
    value = rope.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 < value < UNLIMITED_LENGTH:
        raise InputError(
            f"config.json: {key} of the rotary positions is {value!r:.60}; expected a number above 0."
        )
    return value
