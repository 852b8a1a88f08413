"""An adapter of PEFT, such as LoRA, merged into its base model in memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokscore.dataset.errors import EngineError, InputError, agreeing, counted
from tokscore.scoring.engines.checkpoint.config import first_line, read_json
from tokscore.scoring.engines.checkpoint.messages import quiet

ADAPTER_CONFIG = "adapter_config.json"
# A transformers model or module: the library is not typed.
Model = Any


def base_model_of(adapter: Path, name: str) -> str:
    """Directory or hub id of the model that an adapter belongs to.

    Raises:
        InputError: Its configuration does not say.
    """
    base = read_json(adapter / ADAPTER_CONFIG, name).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise InputError(
            f"{name}: {ADAPTER_CONFIG} has base_model_name_or_path {base!r:.60}; expected the directory "
            "or hub id of its base model."
        )
    return base


def merge_adapter(model: Model, adapter: Path, name: str) -> Model:
    """The base model with the adapter in its weights.

    Raises:
        EngineError: PEFT is not installed.
        InputError: The adapter does not fit the model, or is of a kind that is no change of weights.
    """
    try:
        import peft
    except ImportError as error:
        raise EngineError(
            f"{name} is an adapter, and scoring it needs peft, which is not installed. "
            "Install it with: pip install 'tokscore[adapters]'"
        ) from error
    try:
        with quiet(), _no_warnings():
            adapted = peft.PeftModel.from_pretrained(model, adapter)
            # Once more, for its report.
            report = adapted.load_adapter(adapter, "default")
    except Exception as error:  # It raises its own, safetensors', torch's and built-in errors.
        raise InputError(f"{name}: peft cannot load the adapter: {first_line(error)}") from error
    # PEFT makes up the one and leaves out the other.
    unfit = sorted(map(str, [*report.missing_keys, *report.unexpected_keys]))
    if unfit:
        raise InputError(
            f"{name}: {counted(len(unfit), 'weight')} of the adapter "
            f"{agreeing(len(unfit), 'is missing or has', 'are missing or have')} no place in the model; "
            f"the first is {unfit[0]}."
        )
    if not hasattr(adapted, "merge_and_unload"):
        kind = adapted.peft_config["default"].peft_type
        raise InputError(f"{name} is an adapter of kind {kind}, which cannot be merged; it is not scored.")
    with quiet(), _no_warnings():
        return adapted.merge_and_unload()


@contextmanager
def _no_warnings() -> Iterator[None]:
    """PEFT warns of what becomes an error here, and of what transformers will change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
