"""`anthropic`: requests of Anthropic's Messages API, and the answers to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import check_messages
from tokscore.rendering.conversations.trace import NO_PARENT, Node, Trace, Usage, linear
from tokscore.rendering.conversations.values import kind_of, shown
from tokscore.rendering.reading.fields.answered import check_answered
from tokscore.rendering.reading.fields.messages import answer_message, joined_text, openai_tools, tool_call
from tokscore.rendering.reading.fields.usage import usage_of
from tokscore.rendering.reading.fields.values import get, metadata_text, need, object_at
from tokscore.rendering.reading.formats.format import OPEN_KEYS, Format, Place

REDACTED_STATUS = "redacted_reasoning"
_SYSTEM = "system"
_ROLES = ("user", "assistant", _SYSTEM)
_TEXT, _THINKING, _REDACTED = "text", "thinking", "redacted_thinking"
# Keys that say more of a conversation, in other formats.
_ELSEWHERE = ("functions", "chat_template_kwargs", "prompt", "completion", "chosen", "rejected", "response")
_CALL, _RESULT = "tool_use", "tool_result"
_BLOCKS = (_THINKING, _REDACTED, _CALL, _RESULT)  # no set, which values of records may have no hash for
_PROMPT_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_METADATA = ("model", "metadata", "reward", "score")


def _matches(record: Mapping[str, Any]) -> bool:
    if "custom_id" in record and any(isinstance(record.get(key), dict) for key in ("params", "result")):
        return True
    messages = record.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return False
    if any(message.get("role") not in _ROLES for message in messages):
        return False
    if any(message.get("role") == _SYSTEM for message in messages):  # which proxies and tracers put there
        return any(_has_blocks(message.get("content"), (_CALL, _RESULT)) for message in messages)
    tools = record.get("tools")
    return (
        bool(record.get("system"))
        or any(_has_blocks(message.get("content")) for message in messages)
        or (
            isinstance(tools, list)
            and any(isinstance(tool, dict) and "input_schema" in tool for tool in tools)
        )
    )


def _has_blocks(content: object, kinds: Sequence[str] = _BLOCKS) -> bool:
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") in kinds for block in content
    )


def _fits(record: Mapping[str, Any]) -> bool:
    """Whether it has messages of text alone, which a request of the Chat Completions form writes alike."""
    messages = record.get("messages")
    return (
        isinstance(messages, list)
        and record.keys().isdisjoint(_ELSEWHERE)
        and all(isinstance(each, dict) and each.keys() == {"role", "content"} for each in messages)
        and all(each["role"] in _ROLES and _is_text(each["content"]) for each in messages)
    )


def _is_text(content: object) -> bool:
    blocks = content if isinstance(content, list) else []
    return isinstance(content, str) or (
        bool(blocks) and all(isinstance(block, dict) and block.get("type") == _TEXT for block in blocks)
    )


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    request, path = record, "$"
    if "messages" not in record and "params" in record:
        request, path = need(record, "params", dict, "$", "a request as an object"), "$.params"
    elif "messages" not in record and "result" in record:
        raise ConversationError(
            "is an answer without the messages of its request.",
            hint="Put the params of the request beside the result of the same custom_id.",
        )
    given = need(request, "messages", list, path, "a list of messages")
    answer = _answer(record)
    nodes = []
    system = joined_text(request.get("system"), f"{path}.system")
    if system:
        nodes.append(Node(NO_PARENT, ({"role": "system", "content": system},)))
    for i, each in enumerate(given):
        for message in block_messages(each, f"{path}.messages[{i}]"):
            is_sampled = answer is None and message["role"] == "assistant"
            nodes.append(Node(NO_PARENT, (message,), is_sampled))
    if answer is not None:
        given_answer, place = answer
        usage = _usage(given_answer, place)
        nodes += [Node(NO_PARENT, (each,), True, usage=usage) for each in block_messages(given_answer, place)]
    if not nodes:
        raise ConversationError(
            "is empty; expected a list with at least one message.", path=f"{path}.messages"
        )
    for i, node in enumerate(nodes):
        check_messages(list(node.messages), f"{path}.messages[{i}]")
    check_answered(record, [node.messages[-1] for node in nodes])
    is_redacted = any(_is_redacted(each) for each in [*given, *([] if answer is None else [answer[0]])])
    return Trace(
        linear(nodes),
        openai_tools(request.get("tools"), f"{path}.tools"),
        metadata=metadata_text(request, _METADATA),
        status=REDACTED_STATUS if is_redacted else None,
    )


def _answer(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], str] | None:
    """The message that answers the request, and its JSON path."""
    if isinstance(record.get("response"), dict):
        return record["response"], "$.response"
    result = get(record, "result", dict, "$", "the result of the request")
    if result is None:
        return None
    kind = need(result, "type", str, "$.result", "succeeded")
    if kind != "succeeded":
        raise ConversationError(f"is {shown(kind)}; expected succeeded.", path="$.result.type")
    return need(result, "message", dict, "$.result", "a message"), "$.result.message"


def _usage(message: Mapping[str, Any], path: str) -> Usage | None:
    usage = get(message, "usage", dict, path, "an object")
    return None if usage is None else usage_of(usage, f"{path}.usage", _PROMPT_COUNTS, "output_tokens")


def _is_redacted(message: object) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") == _REDACTED for block in content
    )


def block_messages(message: object, path: str) -> list[dict[str, Any]]:
    """One message of blocks as messages of the OpenAI API: each result of a tool is a message of its own.

    Args:
        message: A JSON value, `{role, content}` with text or blocks.
        path: Its JSON path.

    Raises:
        ConversationError: It is no message, or holds blocks that are no text, reasoning, calls or results.
    """
    found = object_at(message, path)
    role = need(found, "role", str, path, "user or assistant")
    if role not in _ROLES:
        raise ConversationError(f"is {shown(role)}; expected user, assistant or system.", path=f"{path}.role")
    content = need(found, "content", (str, list), path, "text or a list of blocks")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if role == _SYSTEM:
        return [{"role": role, "content": joined_text(content, f"{path}.content")}]
    blocks = [object_at(block, f"{path}.content[{i}]") for i, block in enumerate(content)]
    if role == "assistant":
        return [_assistant(blocks, f"{path}.content")]
    return list(_user(blocks, f"{path}.content"))


def _assistant(blocks: Sequence[Mapping[str, Any]], path: str) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        place = f"{path}[{i}]"
        kind = block.get("type")
        if kind == _CALL:
            name = need(block, "name", str, place, "the name of a tool")
            calls.append(tool_call(name, block.get("input", {}), block.get("id")))
        elif kind in (_TEXT, _THINKING) and calls:
            raise ConversationError(
                f"is {kind} behind a tool call of the same message; expected calls at the end.", path=place
            )
        elif kind == _TEXT:
            texts.append(need(block, "text", str, place, "text"))
        elif kind == _THINKING:
            thoughts.append(need(block, "thinking", str, place, "text"))
        elif kind != _REDACTED:
            raise _unknown(kind, place)
    return answer_message("".join(texts) if texts else None, "".join(thoughts), calls)


def _user(blocks: Sequence[Mapping[str, Any]], path: str) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    for i, block in enumerate(blocks):
        place = f"{path}[{i}]"
        kind = block.get("type")
        if kind == _TEXT:
            texts.append(need(block, "text", str, place, "text"))
            continue
        if kind != _RESULT:
            raise _unknown(kind, place)
        if texts:
            yield _said(texts)
            texts = []
        content = joined_text(block.get("content"), f"{place}.content")
        yield {
            "role": "tool",
            "content": content or "",
            "tool_call_id": need(block, "tool_use_id", str, place, "the id of a tool call"),
        }
    if texts:
        yield _said(texts)


def _said(texts: Sequence[str]) -> dict[str, Any]:
    if len(texts) == 1:
        return {"role": "user", "content": texts[0]}
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def _unknown(kind: object, path: str) -> ConversationError:
    found = kind_of(kind) if not isinstance(kind, str) else shown(kind)
    return ConversationError(
        f"is {found}; expected {_TEXT}, {', '.join(sorted(_BLOCKS))}: tokscore renders text only.",
        path=f"{path}.type",
    )


FORMAT = Format(
    name="anthropic",
    fields="system, messages[role, content[text, thinking, tool_use, tool_result]], tools[name, description, "
    "input_schema], and the answer in response, or in result of a batch whose request is in params; with an "
    "answer, the messages before it are not sampled. Redacted thinking is left out, which the status says",
    has_logprobs=False,
    has_branches=False,
    example='{"system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", '
    '"content": [{"type": "text", "text": "Hello!"}]}]}',
    matches=_matches,
    parse=_parse,
    fits=_fits,
    is_served=True,
    id_keys=("custom_id", "id"),
    open_keys=OPEN_KEYS | {"input_schema"},
)
