"""A model's configuration, read so that neither its code runs nor an impossible size is acted on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokscore.dataset.errors import InputError, foreign, is_about_code, needs_code

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MAX_CONFIG_BYTES = 64 * 2**20
MAX_DEPTH = 64
# transformers makes a list as long as such a number, or a module for each, before anything is compared.
MAX_PARTS = 100_000
_PARTS = re.compile(r"layer|block|expert|head|stage|depth|group|codebook|num_labels", re.IGNORECASE)
MAX_NUMBER = 2**40


def load_config(path: Path, name: str, *, trust_remote_code: bool = False) -> PretrainedConfig:
    """The configuration in a model's folder.

    Args:
        path: The folder.
        name: Of the model, for messages.
        trust_remote_code: Whether code in the folder may run.

    Raises:
        InputError: It cannot be read, has numbers that no model has, or needs code that must not run.
    """
    read_json(path / "config.json", name)
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # It raises its own, huggingface_hub's and built-in errors.
        if not trust_remote_code and is_about_code(error):
            raise InputError(needs_code(name)) from error
        raise InputError(f"{name}: config.json cannot be used: {first_line(error)}") from error


def read_json(path: Path, name: str) -> dict[str, Any]:  # Any: JSON values
    """A JSON object of a model's folder, checked for depth and numbers.

    Raises:
        InputError: It is none, or too large, deep or far out.
    """
    place = f"{name}: {path.name}"
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"{place} has more than {MAX_CONFIG_BYTES // 2**20} MiB.")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = "too many brackets inside each other" if isinstance(error, RecursionError) else error
        raise InputError(f"{place} cannot be read: {reason}") from error
    if not isinstance(found, dict):
        raise InputError(f"{place} holds {type(found).__name__}; expected an object.")
    _check_values(found, place)
    return found


def _check_values(found: dict[str, Any], place: str) -> None:  # Any: JSON values
    waiting: list[tuple[str, object, int]] = [("", found, 0)]
    while waiting:
        key, value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise InputError(f"{place}: values are more than {MAX_DEPTH} levels deep.")
        if isinstance(value, dict):
            waiting.extend((str(inner), child, depth + 1) for inner, child in value.items())
        elif isinstance(value, list):
            waiting.extend((key, child, depth + 1) for child in value)
        elif isinstance(value, int) and not isinstance(value, bool):
            limit = MAX_PARTS if _PARTS.search(key) else MAX_NUMBER
            if abs(value) > limit:
                shown = value if abs(value) < 10**20 else "a number of many digits"
                raise InputError(f"{place}: {key:.60} is {shown}; expected at most {limit:,}.")


def first_line(error: Exception) -> str:
    """The first line of its message; its type where it has none."""
    return (foreign(error).strip() or type(error).__name__).splitlines()[0]
