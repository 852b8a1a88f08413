"""Which models are causal language models, told from their configuration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokscore.dataset.errors import InputError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# `BertForMaskedLM`: a body and its head. The heads here give logits about the next token.
_HEAD = re.compile(r"For([A-Z]\w*)$")
_NEXT_TOKEN = re.compile(r"CausalLM|ConditionalGeneration|VisionText2Text|ProteinText2Text")
_REWARD = re.compile(r"Reward(Model|Head)?$|ValueHead$")


def check_architecture(config: PretrainedConfig, name: str) -> None:
    """Refuse what gives no logits about the next token of a text.

    Args:
        config: The whole configuration, not only that of its text model.
        name: Of the model, for messages.

    Raises:
        InputError: An encoder beside the decoder, another head, or none.
    """
    architectures = getattr(config, "architectures", None) or []
    if not isinstance(architectures, list) or not all(isinstance(value, str) for value in architectures):
        raise InputError(f"{name}: architectures is {architectures!r:.60}; expected a list of names.")
    if config.is_encoder_decoder:
        what = architectures[0] if architectures else config.model_type
        raise InputError(
            f"{name} is an encoder-decoder ({what}): its decoder reads an encoder's output, which a "
            "conversation does not have. Expected a causal language model."
        )
    for architecture in architectures:
        reason = _other_head(architecture)
        if reason is not None:
            raise InputError(
                f"{name} is a {architecture}, {reason}; expected a causal language model, such as one "
                "whose architecture ends with ForCausalLM."
            )


def _other_head(architecture: str) -> str | None:
    """The reason against an architecture, None where there is none."""
    if _REWARD.search(architecture):
        return "which gives rewards"
    head = _HEAD.search(architecture)
    if head is not None:
        return None if _NEXT_TOKEN.match(head[1]) else f"whose head is for {_words(head[1])}"
    return "which has no head" if architecture in _bodies() else None


def _words(head: str) -> str:
    """`SequenceClassification` as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", head).lower()


def _bodies() -> frozenset[str]:
    """Models without a head, by transformers' own list."""
    from transformers.models.auto import modeling_auto

    names = modeling_auto.MODEL_MAPPING_NAMES.values()
    return frozenset(name for value in names for name in ([value] if isinstance(value, str) else value))
