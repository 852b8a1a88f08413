"""`alpaca`: instructions, inputs and outputs, as LLaMA-Factory reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.conversations.media import check_no_media
from tokscore.rendering.conversations.values import kind_of
from tokscore.rendering.reading.fields.messages import tools_or_text
from tokscore.rendering.reading.fields.values import get, metadata_text, need
from tokscore.rendering.reading.formats.format import Format, Place

_QUESTION = ("instruction", "input")
# Beside these, an instruction or an output is something else.
_OTHERS = ("messages", "conversations", "prompt", "completion", "chosen", "rejected")
_READ = (*_QUESTION, "output", "system", "history", "tools", "id", "text")


def _matches(record: Mapping[str, Any]) -> bool:
    return (
        isinstance(record.get("instruction"), str)
        and isinstance(record.get("output"), str)
        and not any(key in record for key in _OTHERS)
    )


def _parse(record: Mapping[str, Any], _place: Place) -> Conversation:
    check_no_media(record)
    asked = [get(record, key, str, "$", "text") for key in _QUESTION]
    question = "\n".join(text for text in asked if text)
    if not question:
        raise ConversationError("and input are empty; expected text.", path="$.instruction")
    system = get(record, "system", str, "$", "text")
    messages = [{"role": "system", "content": system}] if system else []
    for i, turn in enumerate(get(record, "history", list, "$", "a list of pairs of texts") or ()):
        path = f"$.history[{i}]"
        if not isinstance(turn, list) or not all(isinstance(text, str) for text in turn) or len(turn) != 2:
            raise ConversationError(
                f"is {kind_of(turn)}; expected [a question, its answer], both text.", path=path
            )
        messages += _turn(*turn)
    messages += _turn(question, need(record, "output", str, "$", "text"))
    keys = [key for key in record if key not in _READ]
    tools = tools_or_text(record.get("tools"), "$.tools")
    return Conversation(messages, tools, metadata=metadata_text(record, keys))


def _turn(question: str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


FORMAT = Format(
    name="alpaca",
    fields="instruction, input, output, system, history[[question, answer]], tools: instruction and input, "
    "with a newline between them, are the user's, and the template of the model stands in for Alpaca's own "
    "text; other fields are metadata",
    has_logprobs=False,
    has_branches=False,
    example='{"instruction": "Greet the user.", "input": "Hi", "output": "Hello!"}',
    matches=_matches,
    parse=_parse,
)
