"""What the configuration files of a model say of its ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokscore.dataset.errors import InputError
from tokscore.rendering.tokenizers.loading import is_cached_only


def eos_ids(model: str, revision: str | None, tokenizer: Any) -> frozenset[int]:  # Any: of transformers
    """Ids that end a turn, from the tokenizer and the generation config.

    Raises:
        InputError: The generation config holds something else.
    """
    ids = {tokenizer.eos_token_id}
    path = _model_file(model, revision, "generation_config.json")
    if path is not None:
        ids |= _declared_eos(path)
    return frozenset(int(i) for i in ids if i is not None)


def n_outputs(model: str, revision: str | None) -> int:
    """How many ids the model has a logit for, by its config.json; 0 where it does not tell."""
    path = _model_file(model, revision, "config.json")
    if path is None:
        return 0
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # who loads the model says what is wrong with it
        return 0
    while isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    size = config.get("vocab_size") if isinstance(config, dict) else None
    return size if isinstance(size, int) else 0


def _declared_eos(path: Path) -> set[int | None]:
    try:
        declared = json.loads(path.read_text("utf-8")).get("eos_token_id")
    except (ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is no JSON object: {error}.") from error
    ids = declared if isinstance(declared, list) else [declared]
    if not all(i is None or (isinstance(i, int) and 0 <= i < 2**31) for i in ids):
        raise InputError(f"{path}: eos_token_id is {declared!r:.60}; expected an id or a list of ids.")
    return set(ids)


def _model_file(model: str, revision: str | None, name: str) -> Path | None:
    """A file in the model's directory or on the hub; None without."""
    path = Path(model) / name
    if path.is_file():
        return path
    if Path(model).is_dir():
        return None
    from transformers.utils import cached_file

    found = cached_file(
        model,
        name,
        revision=revision or "main",
        local_files_only=is_cached_only(model, revision),
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(found) if found else None
