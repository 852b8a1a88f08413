"""`otel`: spans of model calls by OpenTelemetry's conventions for generative AI, as exported JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import check_message
from tokscore.rendering.conversations.trace import Trace, Usage
from tokscore.rendering.conversations.values import shown
from tokscore.rendering.reading.fields.message_tree import ModelCall, Tools, first_tools, message_tree
from tokscore.rendering.reading.fields.messages import answer_message, decoded, openai_tools, tool_call
from tokscore.rendering.reading.fields.usage import usage_of
from tokscore.rendering.reading.fields.values import get, metadata_text, need, object_at
from tokscore.rendering.reading.formats.format import Format, Place

_INPUT, _OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
_SYSTEM, _TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
_USAGE = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
# OpenLLMetry's attributes, one a field.
_PROMPT, _COMPLETION = "gen_ai.prompt", "gen_ai.completion"
_NUMBERED = re.compile(r"(?:gen_ai\.prompt|gen_ai\.completion)\.\d+\.role")
_METADATA = {
    "model": ("gen_ai.response.model", "gen_ai.request.model"),
    "conversation": ("gen_ai.conversation.id",),
}
_PARTS = "a list of parts, {type, content}"


def _matches(record: Mapping[str, Any]) -> bool:
    if isinstance(record.get("resourceSpans"), list):
        return True
    names = _names(record.get("attributes"))
    return _OUTPUT in names or _INPUT in names or any(_NUMBERED.fullmatch(name) for name in names)


def _names(attributes: object) -> set[str]:
    if isinstance(attributes, dict):
        return {*attributes}
    if isinstance(attributes, list):
        return {str(each.get("key")) for each in attributes if isinstance(each, dict)}
    return set()


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    spans = [(span, _attributes(span, path), path) for span, path in _spans(record)]
    spans.sort(key=lambda each: str(each[0].get("startTimeUnixNano", each[0].get("start_time", ""))))
    calls: list[ModelCall] = []
    tools: list[Tools] = []
    found: dict[str, object] = {}
    for span, attributes, path in spans:
        calls += _calls(attributes, f"{path}.attributes")
        tools += filter(None, [openai_tools(attributes.get(_TOOLS), f"{path}.attributes.{_TOOLS}")])
        for name, keys in _METADATA.items():
            found[name] = found.get(name) or next(filter(None, map(attributes.get, keys)), None)
        found["trace_id"] = found.get("trace_id") or span.get("traceId")
    if not calls:
        raise ConversationError(
            f"holds no span with {_INPUT} and {_OUTPUT}; expected at least one: their contents are recorded "
            "only where the application says so.",
            path="$.resourceSpans" if "resourceSpans" in record else "$.attributes",
        )
    common, status = first_tools(tools)
    return Trace(message_tree(calls), common, metadata=metadata_text(record, (), **found), status=status)


def _spans(record: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    if "resourceSpans" not in record:
        yield record, "$"
        return
    for i, resource in enumerate(need(record, "resourceSpans", list, "$", "a list of resources")):
        path = f"$.resourceSpans[{i}]"
        for j, scope in enumerate(get(object_at(resource, path), "scopeSpans", list, path, "a list") or ()):
            place = f"{path}.scopeSpans[{j}]"
            for k, span in enumerate(get(object_at(scope, place), "spans", list, place, "a list") or ()):
                yield object_at(span, f"{place}.spans[{k}]"), f"{place}.spans[{k}]"


def _attributes(span: Mapping[str, Any], path: str) -> dict[str, Any]:
    given = get(span, "attributes", (dict, list), path, "an object, or a list of keys and values")
    if given is None or isinstance(given, dict):
        return dict(given or {})
    found = {}
    for i, each in enumerate(given):
        place = f"{path}.attributes[{i}]"
        pair = object_at(each, place)
        found[need(pair, "key", str, place, "a name")] = _value(pair.get("value"), f"{place}.value")
    return found


def _value(value: object, path: str) -> object:
    """A value of OTLP's JSON, which names its type, as JSON has it."""
    if not isinstance(value, dict):
        return value
    if "arrayValue" in value:
        return [_value(each, place) for each, place in _members(value, "arrayValue", path)]
    if "kvlistValue" in value:
        pairs = [(object_at(pair, place), place) for pair, place in _members(value, "kvlistValue", path)]
        return {
            need(pair, "key", str, place, "a name"): _value(pair.get("value"), f"{place}.value")
            for pair, place in pairs
        }
    if "intValue" in value:  # written as text, since JavaScript's numbers are too short
        return _whole_number(value["intValue"], f"{path}.intValue")
    return next(iter(value.values()), None)


def _members(value: Mapping[str, Any], key: str, path: str) -> Iterator[tuple[object, str]]:
    path = f"{path}.{key}"
    for i, each in enumerate(get(object_at(value[key], path), "values", list, path, "a list") or ()):
        yield each, f"{path}.values[{i}]"


def _whole_number(value: object, path: str) -> int:
    if isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError):
            return int(value)
    raise ConversationError(f"is {shown(value)}; expected a whole number.", path=path)


def _calls(attributes: Mapping[str, Any], path: str) -> Iterator[ModelCall]:
    if any(_NUMBERED.fullmatch(name) for name in attributes) and _INPUT not in attributes:
        prompt, answers = _numbered(attributes, _PROMPT, path), _numbered(attributes, _COMPLETION, path)
    elif _INPUT in attributes or _OUTPUT in attributes:
        system = _system(attributes, f"{path}.{_SYSTEM}")
        prompt = [*system, *_messages(attributes.get(_INPUT), f"{path}.{_INPUT}")]
        answers = _messages(attributes.get(_OUTPUT), f"{path}.{_OUTPUT}")
    else:
        return
    usage = _usage(attributes, path) if len(answers) == 1 else None
    for answer in answers:
        yield ModelCall(prompt, [answer], usage)
    if not answers and prompt:
        yield ModelCall(prompt, [])


def _system(attributes: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    given = attributes.get(_SYSTEM)
    if given is None:
        return []
    parts = decoded(given, path, _PARTS) if str(given).lstrip()[:1] == "[" else given
    if isinstance(parts, str):
        return [{"role": "system", "content": parts}]
    return list(_message({"role": "system", "parts": parts}, path))


def _messages(value: object, path: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    given = decoded(value, path, "a list of messages as JSON text")
    if not isinstance(given, list):
        raise ConversationError(f"is {shown(given)}; expected a list of messages.", path=path)
    found = [each for i, one in enumerate(given) for each in _message(one, f"{path}[{i}]")]
    for message in found:
        check_message(message, path)
    return found


def _message(value: object, path: str) -> Iterator[dict[str, Any]]:
    """The message of some parts; results of tools are messages of their own."""
    given = object_at(value, path)
    role = need(given, "role", str, path, "a role")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, each in enumerate(need(given, "parts", list, path, _PARTS)):
        place = f"{path}.parts[{i}]"
        part = object_at(each, place)
        kind = part.get("type")
        if kind == "text":
            texts.append(need(part, "content", str, place, "text"))
        elif kind == "reasoning":
            thoughts.append(need(part, "content", str, place, "text"))
        elif kind == "tool_call":
            name = need(part, "name", str, place, "the name of a tool")
            calls.append(tool_call(name, part.get("arguments", {}), part.get("id")))
        elif kind == "tool_call_response":
            yield _result(part)
        else:
            raise ConversationError(
                f"is {shown(kind)}; expected text, reasoning, tool_call or tool_call_response: tokscore "
                "renders text only.",
                path=f"{place}.type",
            )
    if role == "assistant":
        yield answer_message("".join(texts) if texts else None, "\n".join(thoughts), calls)
    elif texts:
        yield {"role": role, "content": "".join(texts)}


def _result(part: Mapping[str, Any]) -> dict[str, Any]:
    """A result of a tool; one that is no text is written as Python's json does."""
    response = part.get("response", part.get("result"))
    content = response if isinstance(response, str) else json.dumps(response, ensure_ascii=False)
    found = {"role": "tool", "content": content}
    return found if part.get("id") is None else found | {"tool_call_id": part["id"]}


def _numbered(attributes: Mapping[str, Any], prefix: str, path: str) -> list[dict[str, Any]]:
    """Messages of which every field is an attribute: `gen_ai.prompt.0.role`."""
    found = []
    for i in range(len(attributes)):
        own = f"{prefix}.{i}"
        role = attributes.get(f"{own}.role")
        if role is None:
            break
        message: dict[str, Any] = {"role": role, "content": attributes.get(f"{own}.content")}
        calls = list(_numbered_calls(attributes, f"{own}.tool_calls"))
        if calls:
            message["tool_calls"] = calls
        if attributes.get(f"{own}.tool_call_id") is not None:
            message["tool_call_id"] = attributes[f"{own}.tool_call_id"]
        check_message(message, f"{path}.{own}")
        found.append(message)
    return found


def _numbered_calls(attributes: Mapping[str, Any], prefix: str) -> Iterator[dict[str, Any]]:
    for i in range(len(attributes)):
        name = attributes.get(f"{prefix}.{i}.name")
        if name is None:
            return
        yield tool_call(
            name, attributes.get(f"{prefix}.{i}.arguments", "{}"), attributes.get(f"{prefix}.{i}.id")
        )


def _usage(attributes: Mapping[str, Any], path: str) -> Usage | None:
    prompt, completion = _USAGE
    return usage_of(attributes, path, (prompt,), completion)


FORMAT = Format(
    name="otel",
    fields="a span, or resourceSpans[scopeSpans[spans[]]]: attributes gen_ai.input.messages, "
    "gen_ai.output.messages, gen_ai.system_instructions and gen_ai.tool.definitions (also as JSON text), "
    "gen_ai.usage; or OpenLLMetry's gen_ai.prompt.N and gen_ai.completion.N. The calls of a record are one "
    "tree in the order of their start",
    has_logprobs=False,
    has_branches=True,
    example='{"traceId": "t", "spanId": "a", "name": "chat m", "attributes": {"gen_ai.input.messages": '
    '[{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}], "gen_ai.output.messages": [{"role": '
    '"assistant", "parts": [{"type": "text", "content": "Hello!"}]}]}}',
    matches=_matches,
    parse=_parse,
    is_served=True,
    id_keys=("spanId", "span_id", "id"),
)
