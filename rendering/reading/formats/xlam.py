"""`xlam`: function calls that answer a query, as xLAM and APIGen publish them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import Conversation, check_message, check_objects
from tokscore.rendering.reading.fields.messages import answer_message, decoded, openai_tools, tool_call
from tokscore.rendering.reading.fields.values import metadata_text, need
from tokscore.rendering.reading.formats.format import OPEN_KEYS, Format, Place

_CALLS = '[{"name", "arguments"}, …], also as JSON text'
_READ = ("id", "query", "answers", "tools")


def _matches(record: Mapping[str, Any]) -> bool:
    return (
        isinstance(record.get("query"), str)
        and isinstance(record.get("answers"), (str, list))
        and "tools" in record
        and "messages" not in record
    )


def _parse(record: Mapping[str, Any], _place: Place) -> Conversation:
    query = need(record, "query", str, "$", "text")
    given = need(record, "answers", (str, list), "$", _CALLS)
    calls = check_objects(decoded(given, "$.answers", _CALLS), "$.answers")
    if not calls:
        raise ConversationError(f"is empty; expected {_CALLS}.", path="$.answers")
    answer = answer_message(
        None,
        None,
        [
            tool_call(need(call, "name", str, f"$.answers[{i}]", "a name"), call.get("arguments", {}))
            for i, call in enumerate(calls)
        ],
    )
    check_message(answer, "$.answers")
    tools = [_tool(tool) for tool in openai_tools(record.get("tools"), "$.tools") or ()]
    keys = [key for key in record if key not in _READ]
    return Conversation(
        [{"role": "user", "content": query}, answer], tools or None, metadata=metadata_text(record, keys)
    )


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool whose parameters are a JSON Schema: xLAM gives the properties alone."""
    function = tool.get("function")
    properties = function.get("parameters") if isinstance(function, dict) else None
    if not isinstance(properties, dict) or "properties" in properties:
        return dict(tool)
    parameters = {"type": "object", "properties": properties}
    return {**tool, "function": {**(function or {}), "parameters": parameters}}


FORMAT = Format(
    name="xlam",
    fields="query, answers[name, arguments] and tools[name, description, parameters], both also as JSON "
    "text; parameters without a schema become its properties; other fields are metadata",
    has_logprobs=False,
    has_branches=False,
    example='{"id": 0, "query": "Add 1 and 2.", "answers": "[{\\"name\\": \\"add\\", \\"arguments\\": '
    '{\\"a\\": 1, \\"b\\": 2}}]", "tools": "[{\\"name\\": \\"add\\", \\"description\\": \\"Add.\\", '
    '\\"parameters\\": {\\"a\\": {\\"type\\": \\"int\\"}}}]"}',
    matches=_matches,
    parse=_parse,
    open_keys=OPEN_KEYS | {"answers"},
)
