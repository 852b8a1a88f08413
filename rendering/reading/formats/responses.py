"""`openai-responses`: requests and answers of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import AnswerLogprobs, check_message
from tokscore.rendering.conversations.trace import NO_PARENT, Node, Trace, Usage, linear
from tokscore.rendering.conversations.values import shown
from tokscore.rendering.reading.fields.answer_tokens import answer_logprobs
from tokscore.rendering.reading.fields.messages import answer_message, joined_text, openai_tools, tool_call
from tokscore.rendering.reading.fields.usage import usage_of
from tokscore.rendering.reading.fields.values import get, metadata_text, need, object_at
from tokscore.rendering.reading.formats.anthropic import REDACTED_STATUS
from tokscore.rendering.reading.formats.format import Format, Place

_ASSISTANT = "assistant"
_MESSAGE, _CALL, _OUTPUT, _REASONING = "message", "function_call", "function_call_output", "reasoning"
_TYPES = (_MESSAGE, _CALL, _OUTPUT, _REASONING)  # no set, which values of records may have no hash for
_TEXT_PARTS = ("output_text", "input_text", "text", "refusal")
# Rollouts of NeMo Gym keep the request there, and the answer in `response`.
_GYM = "responses_create_params"
_KEPT = ("previous_response_id", "conversation")
_METADATA = ("model", "metadata", "status", "reward", "score")


def _matches(record: Mapping[str, Any]) -> bool:
    if isinstance(record.get(_GYM), dict):
        return "input" in record[_GYM]
    if "messages" in record:
        return False
    items, output = record.get("input"), record.get("output")
    return _are_items(output) or (
        _are_items(items) and (output is None or output == [] or isinstance(output, str))
    )


def _are_items(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and ("type" in item or "role" in item) for item in value)
        and any(item.get("type", _MESSAGE) in _TYPES for item in value)
        and not any("parts" in item for item in value)
    )


class _Side(NamedTuple):
    """A request or an answer, with its JSON path."""

    fields: Mapping[str, Any]
    path: str


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    request = answer = _Side(record, "$")
    if _GYM in record:
        request = _Side(need(record, _GYM, dict, "$", "a request"), f"$.{_GYM}")
        answer = _Side(get(record, "response", dict, "$", "an answer") or {}, "$.response")
    _check_whole(request)
    prompt, said = _prompt(request), _answer(answer)
    if not prompt and not said:
        raise ConversationError("and output are empty; expected text or items.", path=f"{request.path}.input")
    if request.fields.get("input") is None:
        reason = "is missing; expected the input of the request beside its output."
        raise ConversationError(reason, path=f"{request.path}.input")
    n_answers = sum(message["role"] == _ASSISTANT for message in said)
    usage = _usage(answer) if n_answers == 1 else None
    logprobs = _logprobs(answer) if n_answers == 1 else None
    nodes = [Node(NO_PARENT, (each,), not said and each["role"] == _ASSISTANT) for each in prompt]
    for each in said:
        is_sampled = each["role"] == _ASSISTANT
        own = (usage, logprobs) if is_sampled else (None, None)
        nodes.append(Node(NO_PARENT, (each,), is_sampled, usage=own[0], logprobs=own[1]))
    return Trace(
        linear(nodes),
        openai_tools(_function_tools(request), f"{request.path}.tools"),
        metadata=metadata_text(record, _METADATA),
        status=REDACTED_STATUS if _is_redacted(request) or _is_redacted(answer) else None,
    )


def _check_whole(request: _Side) -> None:
    """Refuse a request of which the server kept a part."""
    for key in _KEPT:
        if request.fields.get(key) is not None:
            reason = "stands for messages that the record lacks; expected all that the model saw in input."
            raise ConversationError(reason, path=f"{request.path}.{key}")


def _is_redacted(side: _Side) -> bool:
    """Whether some reasoning has no text, such as where it is encrypted."""
    lists = (side.fields.get(key) for key in ("input", "output"))
    items = (item for each in lists if isinstance(each, list) for item in each)
    return any(item.get("type") == _REASONING and not _thought(item, side.path) for item in items)


def _prompt(request: _Side) -> list[dict[str, Any]]:
    fields, path = request
    given = get(fields, "input", (str, list), path, "text or a list of items")
    instructions = joined_text(fields.get("instructions"), f"{path}.instructions", _TEXT_PARTS)
    messages = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    return messages + (item_messages(given, f"{path}.input") if given is not None else [])


def _answer(answer: _Side) -> list[dict[str, Any]]:
    fields, path = answer
    output = get(fields, "output", (str, list), path, "text or a list of items")
    if isinstance(output, str):
        return [{"role": _ASSISTANT, "content": output}]
    return item_messages(output, f"{path}.output") if output else []


def _logprobs(answer: _Side) -> AnswerLogprobs | None:
    """Those of the one part of text in an answer that is nothing else."""
    output = answer.fields.get("output")
    if not isinstance(output, list) or len(output) != 1:
        return None
    content = output[0].get("content")
    if not isinstance(content, list) or len(content) != 1:
        return None
    path = f"{answer.path}.output[0].content[0]"
    logprobs = get(content[0], "logprobs", list, path, "a list of tokens with their logprobs")
    return answer_logprobs(logprobs, f"{path}.logprobs") if logprobs else None


def _function_tools(request: _Side) -> list[object] | None:
    """The tools that a template prints: those that the server runs itself have no parameters."""
    tools = get(request.fields, "tools", list, request.path, "a list of tools")
    return None if tools is None else [tool for tool in tools if not _is_hosted(tool)]


def _is_hosted(tool: object) -> bool:
    return isinstance(tool, dict) and "name" not in tool and "function" not in tool and "type" in tool


def _usage(answer: _Side) -> Usage | None:
    usage = get(answer.fields, "usage", dict, answer.path, "an object")
    path = f"{answer.path}.usage"
    return None if usage is None else usage_of(usage, path, ("input_tokens",), "output_tokens")


class _Answer(NamedTuple):
    """Items of one message of the assistant."""

    texts: list[str]
    thoughts: list[str]
    calls: list[dict[str, Any]]

    def messages(self) -> list[dict[str, Any]]:
        """The message, if there is any item."""
        if not any(self):
            return []
        text = "".join(self.texts) if self.texts else None
        return [answer_message(text, "\n".join(self.thoughts), self.calls)]


def item_messages(items: Sequence[object], path: str) -> list[dict[str, Any]]:
    """Items as messages of the OpenAI API.

    Reasoning, text and calls that follow each other in this order are one message of the assistant.

    Args:
        items: JSON values.
        path: JSON path of their list.

    Raises:
        ConversationError: An item is of another type, or lacks what its type needs.
    """
    messages: list[dict[str, Any]] = []
    answer = _Answer([], [], [])
    for i, each in enumerate(items):
        place = f"{path}[{i}]"
        item = object_at(each, place)
        kind = item.get("type", _MESSAGE)
        if kind == _REASONING:
            if answer.texts or answer.calls:
                messages += answer.messages()
                answer = _Answer([], [], [])
            answer.thoughts.append(_thought(item, place))
        elif kind == _CALL:
            name = need(item, "name", str, place, "the name of a tool")
            identifier = item.get("call_id", item.get("id"))
            answer.calls.append(tool_call(name, item.get("arguments", "{}"), identifier))
        elif kind == _OUTPUT:
            messages += answer.messages()
            answer = _Answer([], [], [])
            result = joined_text(item.get("output"), f"{place}.output", _TEXT_PARTS)
            call_id = need(item, "call_id", str, place, "the id of a call")
            messages.append({"role": "tool", "content": result or "", "tool_call_id": call_id})
        elif kind == _MESSAGE:
            role = need(item, "role", str, place, "user, assistant, system or developer")
            content = _content(item, place)
            if role != _ASSISTANT:
                messages += answer.messages()
                answer = _Answer([], [], [])
                messages.append({"role": role, "content": content})
            else:
                if answer.texts or answer.calls:
                    messages += answer.messages()
                    answer = _Answer([], [], [])
                answer.texts.append(content)
        else:
            raise ConversationError(
                f"is {shown(kind)}; expected one of {', '.join(sorted(_TYPES))}.", path=f"{place}.type"
            )
    messages += answer.messages()
    for i, message in enumerate(messages):
        check_message(message, f"{path}[{i}]")
    return messages


def _content(item: Mapping[str, Any], path: str) -> str:
    content = need(item, "content", (str, list), path, "text or a list of parts")
    if isinstance(content, str):
        return content
    texts = [{"type": "text", "text": part.get("refusal")} if _is_refusal(part) else part for part in content]
    return joined_text(texts, f"{path}.content", _TEXT_PARTS) or ""


def _is_refusal(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "refusal"


def _thought(item: Mapping[str, Any], path: str) -> str:
    """The reasoning itself where it is given, its summary otherwise."""
    for key, kinds in (("content", ("reasoning_text", "text")), ("summary", ("summary_text", "text"))):
        parts = get(item, key, list, path, "a list of parts")
        if parts:
            return joined_text(parts, f"{path}.{key}", kinds) or ""
    return ""


FORMAT = Format(
    name="openai-responses",
    fields="instructions, input (text, or items of the types message, reasoning[content, summary], "
    "function_call[call_id, name, arguments] and function_call_output[call_id, output]), output (likewise), "
    "tools, usage, model, logprobs of an answer that is text alone; or responses_create_params and response "
    "of these, as in NeMo Gym's rollouts. With an output, the answers of the input are not sampled",
    has_logprobs=True,
    has_branches=False,
    example='{"input": [{"role": "user", "content": "Hi"}], "output": [{"type": "message", "role": '
    '"assistant", "content": [{"type": "output_text", "text": "Hello!"}]}]}',
    matches=_matches,
    parse=_parse,
    is_served=True,
)
