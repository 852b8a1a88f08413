"""Before vLLM is started: whether the weights fit the model, and what is known against sharing its cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokscore.dataset.errors import EngineError
from tokscore.scoring.engines.checkpoint.config import load_config

if TYPE_CHECKING:
    from tokscore.scoring.engines.spec import EngineSpec


def reason_against_sharing(spec: EngineSpec) -> str | None:
    """Why branches cannot read what their trunks left in the cache; None where nothing is known."""
    from vllm import SamplingParams

    from tokscore.scoring.engines.key_values import reason_against

    if "skip_reading_prefix_cache" not in SamplingParams.__struct_fields__:
        return "this vLLM cannot be told which requests read its cache"
    model = spec.model
    return reason_against(load_config(model.path, model.name, trust_remote_code=model.trust_remote_code))


def check_weights(spec: EngineSpec) -> str | None:
    """The weights that are left unused, by place; None where there are none, or it cannot be told.

    vLLM leaves out what its own code of a model does not ask for.

    Raises:
        InputError: Weights are missing, left over, or of another shape than config.json says.
    """
    from tokscore.scoring.engines.checkpoint.quantization import quantization_of
    from tokscore.scoring.engines.checkpoint.skeleton import UnknownModelError, check_files

    model = spec.model
    if model.adapter is not None:
        raise EngineError(
            f"{model.name} is an adapter, and vLLM leaves out what one adds to the head of a model.\n"
            "Use `engine='transformers'`, or merge it into its base model and score the result."
        )
    config = load_config(model.path, model.name, trust_remote_code=model.trust_remote_code)
    # Overrides make another configuration, and what `quantization` reads is said nowhere else.
    is_packed = spec.settings.quantization is not None and quantization_of(config) is None
    if is_packed or spec.settings.engine_arg.keys() & {"load_format", "hf_overrides"}:
        return None
    try:
        report = check_files(
            config, model.weight_files(), model.name, trust_remote_code=model.trust_remote_code
        )
    except UnknownModelError:
        return None
    return None if report is None else report.left_out(model.name)
