"""`langfuse`: generations of Langfuse, alone or inside the traces that they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.trace import Trace, Usage
from tokscore.rendering.conversations.values import kind_of
from tokscore.rendering.reading.fields.message_tree import ModelCall, Tools, first_tools, message_tree
from tokscore.rendering.reading.fields.messages import decoded, openai_message, openai_tools
from tokscore.rendering.reading.fields.usage import usage_of
from tokscore.rendering.reading.fields.values import get, metadata_text, object_at
from tokscore.rendering.reading.formats.format import Format, Place

_GENERATION, _ASSISTANT = "GENERATION", "assistant"
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
    calls = _joined([[*_calls(each, path)] for each, path in given])
    if not calls:
        raise ConversationError(
            "holds no generation with messages; expected at least one.",
            path="$" if observations is None else "$.observations",
        )
    # A call without tools may be one of which they were not recorded.
    tools, status = first_tools(each for each in (_tools(*one) for one in given) if each)
    return Trace(message_tree(calls), tools, metadata=metadata_text(record, _METADATA), status=status)


def _calls(generation: Mapping[str, Any], path: str) -> Iterator[ModelCall]:
    prompt = _prompt(generation.get("input"), f"{path}.input")
    answers = _answers(generation.get("output"), f"{path}.output")
    usage = _usage(generation, path) if len(answers) <= 1 else None
    for answer in answers or ([],):
        yield ModelCall(prompt, answer, usage)


def _joined(generations: Sequence[list[ModelCall]]) -> list[ModelCall]:
    """All calls; answers that another prompt repeats one behind the other are one answer, and no choices."""
    prompts = [calls[0].prompt for calls in generations]
    found: list[ModelCall] = []
    for calls in generations:
        answer = [message for call in calls for message in call.answer]
        whole = [*calls[0].prompt, *answer]
        is_one = len(calls) > 1 and any(prompt[: len(whole)] == whole for prompt in prompts)
        found += [ModelCall(calls[0].prompt, answer)] if is_one else calls
    return found


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
    return [openai_message(each, f"{path}[{i}]") for i, each in enumerate(value[: _n_messages(value)])]


def _n_messages(prompt: Sequence[object]) -> int:
    """How many of them are messages: LangChain's handler puts the tools behind, with a role of their own."""
    n = len(prompt)
    while n and _is_tool(prompt[n - 1]):
        n -= 1
    return n


def _is_tool(value: object) -> bool:
    content = value.get("content") if isinstance(value, dict) and value.get("role") == "tool" else None
    return isinstance(content, dict) and isinstance(content.get("function"), dict)


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
    if isinstance(value, list) and len(value) > 1 and all(map(_is_answer, value)):  # choices
        return [[_answer(each, f"{path}[{i}]")] for i, each in enumerate(value)]
    if isinstance(value, list):
        return [[_answer(each, f"{path}[{i}]") for i, each in enumerate(value)]]
    return [[_answer(value, path)]]


def _is_answer(value: object) -> bool:
    return isinstance(value, dict) and "role" in value and value["role"] in (None, _ASSISTANT)


def _answer(value: object, path: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"role": _ASSISTANT, "content": value}
    if isinstance(value, dict) and any(key in value for key in _ANSWER_KEYS):
        given = {key: each for key, each in value.items() if key != "role" or each is not None}
        return openai_message({"role": _ASSISTANT, "content": None} | given, path)
    raise ConversationError(f"is {kind_of(value)}; expected text or a message.", path=path)


def _decoded_text(value: object, path: str) -> object:
    """The value of JSON text; text that is no JSON object or array is itself."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return decoded(value, path, _MESSAGES)
        except ConversationError:
            return value
    return value


def _tools(generation: Mapping[str, Any], path: str) -> Tools:
    path, given = f"{path}.input", _decoded_text(generation.get("input"), f"{path}.input")
    if isinstance(given, dict):
        key = "tools" if given.get("tools") else "functions"
        return openai_tools(given.get(key), f"{path}.{key}")
    if isinstance(given, list):
        return openai_tools([each["content"] for each in given[_n_messages(given) :]], path)
    return None


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
