"""`text-dump`: prompts and answers as a trainer printed them, with the text of the template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.trace import NO_PARENT, Node, Trace
from tokscore.rendering.reading.fields.values import metadata_text, need
from tokscore.rendering.reading.formats.format import Format, Place

# verl's names, then SkyRL's.
_FIELDS = (("input", "output"), ("input_prompt", "output_response"))
_SCORES = ("score", "step", "gts")
# Training sets that have an input and an output too.
_OTHERS = ("instruction", "messages", "conversations", "prompt")


def _matches(record: Mapping[str, Any]) -> bool:
    pair = _pair(record)
    is_dump = pair == _FIELDS[1] or any(key in record for key in _SCORES)
    return pair is not None and is_dump and not any(key in record for key in _OTHERS)


def _pair(record: Mapping[str, Any]) -> tuple[str, str] | None:
    return next((pair for pair in _FIELDS if all(isinstance(record.get(key), str) for key in pair)), None)


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    prompt_key, answer_key = next((pair for pair in _FIELDS if pair[0] in record), _FIELDS[0])
    prompt = need(record, prompt_key, str, "$", "the text of a prompt")
    answer = need(record, answer_key, str, "$", "the text of an answer")
    if not prompt and not answer:
        raise ConversationError(f"and {answer_key} are empty; expected text.", path=f"$.{prompt_key}")
    nodes = (
        Node(NO_PARENT, ({"role": "user", "content": prompt},)),
        Node(0, ({"role": "assistant", "content": answer},), is_sampled=True),
    )
    # Reward functions add fields of their own.
    keys = [key for key in record if key not in (prompt_key, answer_key, "id")]
    return Trace(nodes, metadata=metadata_text(record, keys, rendered_text=True), is_text=True)


FORMAT = Format(
    name="text-dump",
    fields="input, output (verl) or input_prompt, output_response (SkyRL), tokenised as they are: the first "
    "as prompt, the second as sampled; all other fields, such as score, step and gts, are metadata. verl "
    "drops special tokens from its text, so that the ids of its dumps are not those that were sampled",
    has_logprobs=False,
    has_branches=False,
    example='{"input": "<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n", '
    '"output": "Hello!<|im_end|>", "score": 1.0, "step": 5}',
    matches=_matches,
    parse=_parse,
)
