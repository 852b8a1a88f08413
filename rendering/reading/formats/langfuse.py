"""`langfuse`: generations of Langfuse, alone or inside the traces that they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import kind_of
from tokscore.rendering.conversations.trace import Trace, Usage
from tokscore.rendering.reading.fields.message_tree import ModelCall, message_tree
from tokscore.rendering.reading.fields.messages import decoded, openai_message, openai_tools
from tokscore.rendering.reading.fields.usage import usage_of
from tokscore.rendering.reading.fields.values import get, metadata_text, object_at
from tokscore.rendering.reading.formats.format import Format, Place

_GENERATION = "GENERATION"
_MESSAGES = "messages, or an object that holds them"
_METADATA = ("traceId", "trace_id", "sessionId", "name", "model", "metadata", "scores", "level")
_ANSWER_KEYS = ("content", "tool_calls", "reasoning_content", "function_call")
# Langfuse's names of today, then those of its first version and of OpenAI.
_COUNTS = (("input", "output"), ("promptTokens", "completionTokens"), ("prompt_tokens", "completion_tokens"))


def _matches(record: Mapping[str, Any]) -> bool:
    observations = record.get("observations")
    if isinstance(observations, list):
        return any(_is_generation(each) for each in observations)
    return _is_generation(record) and "input" in record and "output" in record


def _is_generation(value: object) -> bool:
    return isinstance(value, dict) and str(value.get("type")).upper() == _GENERATION


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    observations = get(record, "observations", list, "$", "a list of observations")
    if observations is None:
        given = [(record, "$")]
    else:
        found = [(each, f"$.observations[{i}]") for i, each in enumerate(observations)]
        given = [(object_at(each, path), path) for each, path in found if _is_generation(each)]
        given.sort(key=lambda each: str(each[0].get("startTime", each[0].get("start_time", ""))))
    calls = [call for each, path in given for call in _calls(each, path)]
    if not calls:
        raise ConversationError(
            "holds no generation with messages; expected at least one.",
            path="$" if observations is None else "$.observations",
        )
    tools = (_tools(each, path) for each, path in given)
    return Trace(
        message_tree(calls),
        next((each for each in tools if each), None),
        metadata=metadata_text(record, _METADATA),
    )


def _calls(generation: Mapping[str, Any], path: str) -> Iterator[ModelCall]:
    prompt = _prompt(generation.get("input"), f"{path}.input")
    answers = _answers(generation.get("output"), f"{path}.output")
    usage = _usage(generation, path) if len(answers) <= 1 else None
    for answer in answers or ([],):
        yield ModelCall(prompt, answer, usage)


def _prompt(value: object, path: str) -> list[dict[str, Any]]:
    value = _decoded_text(value, path)
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if isinstance(value, dict) and "messages" in value:
        value, path = value["messages"], f"{path}.messages"
    if isinstance(value, dict) and "role" in value:
        value = [value]
    if not isinstance(value, list) or not value:
        raise ConversationError(f"is {kind_of(value)}; expected {_MESSAGES}.", path=path)
    return [openai_message(each, f"{path}[{i}]") for i, each in enumerate(value)]


def _answers(value: object, path: str) -> list[list[dict[str, Any]]]:
    """The messages of each choice; none where the call gave nothing."""
    value = _decoded_text(value, path)
    if value is None:
        return []
    if isinstance(value, dict) and isinstance(value.get("choices"), list):
        return [
            [_answer(object_at(each, f"{path}.choices[{i}]").get("message"), f"{path}.choices[{i}].message")]
            for i, each in enumerate(value["choices"])
        ]
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value, path = value["messages"], f"{path}.messages"
    if isinstance(value, list):
        return [[_answer(each, f"{path}[{i}]") for i, each in enumerate(value)]]
    return [[_answer(value, path)]]


def _answer(value: object, path: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"role": "assistant", "content": value}
    if isinstance(value, dict) and any(key in value for key in _ANSWER_KEYS):
        return openai_message({"role": "assistant", "content": None} | value, path)
    raise ConversationError(f"is {kind_of(value)}; expected text or a message.", path=path)


def _decoded_text(value: object, path: str) -> object:
    """The value of JSON text; text that is no JSON object or array is itself."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return decoded(value, path, _MESSAGES)
        except ConversationError:
            return value
    return value


def _tools(generation: Mapping[str, Any], path: str) -> list[dict[str, Any]] | None:
    given = _decoded_text(generation.get("input"), f"{path}.input")
    return openai_tools(given.get("tools"), f"{path}.input.tools") if isinstance(given, dict) else None


def _usage(generation: Mapping[str, Any], path: str) -> Usage | None:
    for key in ("usageDetails", "usage_details", "usage"):
        usage = get(generation, key, dict, path, "an object") or {}
        for prompt, completion in _COUNTS:
            found = usage_of(usage, f"{path}.{key}", (prompt,), completion)
            if found is not None:
                return found
    return None


FORMAT = Format(
    name="langfuse",
    fields="type=GENERATION, input and output (messages, an object that holds them and tools, or text; all "
    "also as JSON text), usageDetails, model, traceId; or observations[] of these, whose calls become one "
    "tree in the order of startTime; lists of them under data",
    has_logprobs=False,
    has_branches=True,
    example='{"id": "a", "traceId": "t", "type": "GENERATION", "input": [{"role": "user", "content": "Hi"}], '
    '"output": {"role": "assistant", "content": "Hello!"}}',
    matches=_matches,
    parse=_parse,
    is_served=True,
    records_key="data",
)
