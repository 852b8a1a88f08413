"""Loading a tokenizer of transformers, by AutoTokenizer or by the class that it is known to choose."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokscore.dataset.errors import InputError, foreign, is_about_code, needs_code
from tokscore.rendering.tokenizers.class_choice import remember_class, remembered_class

_HUB_TIMEOUT_S = 10.0
_NOT_FOUND = (
    "{model} is no directory here and was not found on the hub or in its cache; "
    "expected a model directory or a hub id such as org/name."
)
PROBE = "Hello, world: 3 plus 4 makes 7."
UNICODE_PROBE = PROBE + " é 你好 🎉"


def check_model_exists(model: str) -> None:
    """Refuse a name that can be neither a model directory nor a hub id.

    Raises:
        InputError: With what was found.
    """
    path = Path(model)
    if path.is_file():
        raise InputError(f"{model} is a file; expected a model directory or a hub id.")
    if path.is_dir():
        return
    if (
        model.count("/") > 1
        or model.startswith((".", "/", "~"))
        or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model)
    ):
        raise InputError(f"{model} does not exist; expected a model directory or a hub id such as org/name.")


def load_tokenizer(
    model: str, revision: str | None, *, trust_remote_code: bool
) -> Any:  # Any: transformers has no usable types
    """The tokenizer that AutoTokenizer gives.

    Args:
        model: Directory or hub id.
        revision: On the hub.
        trust_remote_code: Whether code that comes with the model may run.

    Raises:
        InputError: No such model, or it holds no tokenizer that can be loaded.
    """
    check_model_exists(model)
    from transformers.utils import logging

    logging.set_verbosity_error()
    cached_only = is_cached_only(model, revision)
    try:
        tokenizer = None if trust_remote_code else _load_remembered(model)
        if tokenizer is None:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(
                model,
                revision=revision or "main",
                local_files_only=cached_only,
                trust_remote_code=trust_remote_code,
            )
        # A tokenizer_class can name what is none, and some settings only show when it is used.
        longest = tokenizer.model_max_length if hasattr(tokenizer, "apply_chat_template") else None
        if not isinstance(longest, int | float) or not longest > 0:
            raise ValueError(f"{type(tokenizer).__name__}, model_max_length is {longest!r:.60}")
        tokenizer(UNICODE_PROBE)
        if not trust_remote_code:
            remember_class(model, tokenizer)
    except Exception as error:  # It raises its own, huggingface_hub's and built-in errors.
        if not trust_remote_code and is_about_code(error):
            raise InputError(needs_code(model)) from error
        if cached_only:
            raise InputError(_NOT_FOUND.format(model=model)) from error
        reason = (foreign(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{model} holds no tokenizer that can be loaded: {reason}") from error
    return tokenizer


def _load_remembered(model: str) -> Any:  # Any: as above
    """The same without AutoTokenizer, None where the class that it chooses is not known."""
    kind = remembered_class(model)
    if kind is None:
        return None
    try:
        return kind.from_pretrained(model, revision="main", local_files_only=False, _from_auto=True)
    except Exception:  # noqa: BLE001  AutoTokenizer says what is wrong
        return None


@lru_cache
def is_cached_only(model: str, revision: str | None) -> bool:
    """Whether a hub id has to be read from the local cache, because the hub cannot be asked.

    Raises:
        InputError: The hub answered that there is no such model.
    """
    if Path(model).is_dir():
        return False
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        HfApi().model_info(model, revision=revision, timeout=_HUB_TIMEOUT_S)
    except (HfHubHTTPError, HFValidationError) as error:
        if getattr(getattr(error, "response", None), "status_code", 404) >= 500:
            return True
        raise InputError(_NOT_FOUND.format(model=model)) from error
    except Exception:  # noqa: BLE001  without a network, many kinds
        return True
    return False
