"""`inspect`: samples of Inspect's evaluation logs, as `.eval` archives or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import AnswerLogprobs, check_message
from tokscore.rendering.conversations.trace import NO_PARENT, Node, Trace, Usage, linear
from tokscore.rendering.conversations.values import shown
from tokscore.rendering.reading.fields.answer_tokens import answer_logprobs
from tokscore.rendering.reading.fields.attachments import all_attached, attached
from tokscore.rendering.reading.fields.message_tree import ModelCall, Tools, first_tools, message_tree
from tokscore.rendering.reading.fields.messages import answer_message, openai_tools, tool_call
from tokscore.rendering.reading.fields.usage import usage_of
from tokscore.rendering.reading.fields.values import get, metadata_text, need, object_at
from tokscore.rendering.reading.formats.anthropic import REDACTED_STATUS
from tokscore.rendering.reading.formats.format import Format, Place

_ROLES = ("system", "user", "assistant", "tool")
_METADATA = ("epoch", "target", "scores", "metadata", "error", "limit")
# Calls of a model from here on grade the sample.
_SCORER = ("scorer", "scorers")
_PROMPT_COUNTS = ("input_tokens", "input_tokens_cache_write", "input_tokens_cache_read")


def _matches(record: Mapping[str, Any]) -> bool:
    return (
        isinstance(record.get("messages"), list)
        and "epoch" in record
        and "input" in record
        and any(key in record for key in ("target", "scores", "output"))
    )


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    attachments = get(record, "attachments", dict, "$", "an object") or {}
    calls = list(_calls(record, attachments))
    nodes = message_tree(calls) if calls else _message_nodes(record, attachments)
    if not nodes:
        raise ConversationError("is empty; expected a list with at least one message.", path="$.messages")
    output = get(record, "output", dict, "$", "an object") or {}
    tools, tools_status = first_tools(_tools(record, attachments))
    statuses = (tools_status, REDACTED_STATUS if _is_redacted(record) else None)
    return Trace(
        nodes,
        tools,
        metadata=metadata_text(record, _METADATA, model=output.get("model") or None),
        status=",".join(filter(None, statuses)) or None,
    )


def _is_redacted(record: Mapping[str, Any]) -> bool:
    """Whether some reasoning is encrypted, so that its text is not there."""
    messages = (each for each in record.get("messages") or () if isinstance(each, dict))
    contents = (content for each in messages if isinstance(content := each.get("content"), list))
    parts = (part for content in contents for part in content if isinstance(part, dict))
    return any(part.get("type") == "reasoning" and part.get("redacted") is True for part in parts)


def _model_events(record: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Calls of the model that is evaluated, with their JSON paths."""
    for i, event in enumerate(get(record, "events", list, "$", "a list of events") or ()):
        path = f"$.events[{i}]"
        found = object_at(event, path)
        kind = found.get("event")
        if kind in ("span_begin", "step") and found.get("type") in _SCORER:
            return
        has_input = any(found.get(key) for key in ("input", "input_refs"))
        is_call = kind == "model" and has_input and not found.get("error")
        if is_call and found.get("role") in (None, "assistant"):
            yield found, path


def _calls(record: Mapping[str, Any], attachments: Mapping[str, Any]) -> Iterator[ModelCall]:
    for event, path in _model_events(record):
        output = get(event, "output", dict, path, "an object") or {}
        prompt = [_message(each, place, attachments) for each, place in _input(record, event, path)]
        usage = _usage(output, f"{path}.output")
        choices = get(output, "choices", list, f"{path}.output", "a list of choices") or ()
        for i, each in enumerate(choices):
            place = f"{path}.output.choices[{i}]"
            choice = object_at(each, place)
            message = need(choice, "message", dict, place, "a message")
            answer = _message(message, f"{place}.message", attachments)
            own_usage = usage if len(choices) == 1 else None
            yield ModelCall(prompt, [answer], own_usage, _logprobs(choice, place))


def _input(record: Mapping[str, Any], event: Mapping[str, Any], path: str) -> Iterator[tuple[object, str]]:
    """The messages of a prompt with their JSON paths: its own, or runs of those that all events share."""
    given = get(event, "input", list, path, "a list of messages")
    if given:
        yield from ((each, f"{path}.input[{i}]") for i, each in enumerate(given))
        return
    pool = need(record, "events_data", dict, "$", "the messages of the events")
    messages = need(pool, "messages", list, "$.events_data", "a list of messages")
    for i, run in enumerate(
        need(event, "input_refs", list, path, "a list of runs, [first, one past the last]")
    ):
        place = f"{path}.input_refs[{i}]"
        is_run = isinstance(run, list) and len(run) == 2 and all(type(each) is int for each in run)
        if not is_run or not 0 <= run[0] <= run[1] <= len(messages):
            raise ConversationError(
                f"is {shown(run)}; expected [first, one past the last] of {len(messages)} messages.",
                path=place,
            )
        yield from ((messages[k], f"$.events_data.messages[{k}]") for k in range(*run))


def _logprobs(choice: Mapping[str, Any], path: str) -> AnswerLogprobs | None:
    logprobs = get(choice, "logprobs", dict, path, "an object with content")
    content = None if logprobs is None else get(logprobs, "content", list, f"{path}.logprobs", "a list")
    return answer_logprobs(content, f"{path}.logprobs.content") if content else None


def _message_nodes(record: Mapping[str, Any], attachments: Mapping[str, Any]) -> list[Node]:
    nodes = []
    for i, each in enumerate(need(record, "messages", list, "$", "a list of messages")):
        message = _message(each, f"$.messages[{i}]", attachments)
        is_sampled = message["role"] == "assistant" and each.get("source") != "input"
        nodes.append(Node(NO_PARENT, (message,), is_sampled))
    return linear(nodes)


def _tools(record: Mapping[str, Any], attachments: Mapping[str, Any]) -> Iterator[Tools]:
    """Those of each call."""
    for event, path in _model_events(record):
        place = f"{path}.tools"
        yield openai_tools(all_attached(event.get("tools"), place, attachments), place)


def _usage(output: Mapping[str, Any], path: str) -> Usage | None:
    usage = get(output, "usage", dict, path, "an object")
    return None if usage is None else usage_of(usage, f"{path}.usage", _PROMPT_COUNTS, "output_tokens")


def _message(given: object, path: str, attachments: Mapping[str, Any]) -> dict[str, Any]:
    found = object_at(given, path)
    role = need(found, "role", str, path, "system, user, assistant or tool")
    if role not in _ROLES:
        raise ConversationError(
            f"is {shown(role)}; expected one of {', '.join(_ROLES)}.", path=f"{path}.role"
        )
    text, reasoning = _content(found, path, attachments)
    if role == "assistant":
        message = answer_message(text, reasoning, _tool_calls(found, path, attachments))
    elif role == "tool":
        error = get(found, "error", dict, path, "an object")
        message = {"role": role, "content": text if error is None else str(error.get("message", text))}
        message |= {
            key: found[own]
            for key, own in (("tool_call_id", "tool_call_id"), ("name", "function"))
            if found.get(own) is not None
        }
    else:
        message = {"role": role, "content": text}
    check_message(message, path)
    return message


def _content(message: Mapping[str, Any], path: str, attachments: Mapping[str, Any]) -> tuple[str, str | None]:
    """The text and the reasoning of a message."""
    content = get(message, "content", (str, list), path, "text or a list of parts")
    path = f"{path}.content"
    if content is None or isinstance(content, str):
        return attached(content or "", path, attachments), None
    texts: list[str] = []
    thoughts: list[str] = []
    for i, each in enumerate(content):
        place = f"{path}[{i}]"
        part = object_at(each, place)
        kind = part.get("type")
        if kind == "text":
            texts.append(attached(need(part, "text", str, place, "text"), place, attachments))
        elif kind == "reasoning":
            thought = "" if part.get("redacted") else need(part, "reasoning", str, place, "text")
            thoughts.append(attached(thought, place, attachments))
        else:
            raise ConversationError(
                f"is {shown(kind)}; expected text or reasoning: tokscore renders text only.",
                path=f"{place}.type",
            )
    return "".join(texts), "\n".join(thought for thought in thoughts if thought) or None


def _tool_calls(
    message: Mapping[str, Any], path: str, attachments: Mapping[str, Any]
) -> Sequence[dict[str, Any]]:
    calls = []
    for i, each in enumerate(get(message, "tool_calls", list, path, "a list of tool calls") or ()):
        place = f"{path}.tool_calls[{i}]"
        call = object_at(each, place)
        name = need(call, "function", str, place, "the name of a tool")
        arguments = all_attached(call.get("arguments", {}), f"{place}.arguments", attachments)
        calls.append(tool_call(name, arguments, call.get("id")))
    return calls


FORMAT = Format(
    name="inspect",
    fields="samples of a log, an .eval archive or JSON: events[event=model, input or input_refs into "
    "events_data, output[choices[message, "
    "logprobs], usage], tools] as one tree, without those of scorers and graders; messages where there "
    "are none; attachments, id, epoch, target, scores, metadata",
    has_logprobs=True,
    has_branches=True,
    example='{"id": 1, "epoch": 1, "input": "Hi", "target": "Hello!", "messages": [{"role": "user", '
    '"content": "Hi", "source": "input"}, {"role": "assistant", "content": "Hello!", "source": "generate"}]}',
    matches=_matches,
    parse=_parse,
    is_served=True,
    id_keys=(("id", "epoch"), "id"),
    records_key="samples",
    archive_members="samples/*.json",
)
