"""A format that the user describes: where in a record its messages, its name and its ids are."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tokscore.dataset.errors import ConversationError, UsageError
from tokscore.dataset.files import location
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.conversations.values import kind_of, shown
from tokscore.rendering.documents.document import Document
from tokscore.rendering.reading.fields.json_path import NO_VALUE, joined, parse_path, root_key, value_at
from tokscore.rendering.reading.fields.messages import decoded, openai_message, openai_tools
from tokscore.rendering.reading.fields.values import object_at
from tokscore.rendering.reading.formats.format import ID_KEYS, Format, Place
from tokscore.rendering.reading.formats.tokens import FORMAT as TOKENS

# The map itself, as JSON text, or a file that holds it.
GivenMap = Mapping[str, Any] | str | os.PathLike[str]  # Any: JSON values

NAME = "mapped"
_SHOWN = 300
_EXAMPLE = '{"messages": "$.data.turns", "role": "from", "content": "text", "roles": {"bot": "assistant"}}'
_IDS = ("prompt_token_ids", "completion_token_ids", "mask", "logprobs")


class MappedMessage(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A message whose text is a field of the record.

    Attributes:
        role: Of the message.
        content: Path of its text.
    """

    role: str
    content: str


class RecordMap(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where the parts of a record are; paths such as `$.data.turns`, of messages relative to each of them.

    Attributes:
        messages: Path of their list, which may be JSON text; or each message with the path of its text.
        role: Path of a message's role.
        content: Path of its content.
        reasoning: Path of its reasoning.
        tool_calls: Path of its tool calls.
        tool_call_id: Path of the id of the call that it answers.
        name: Path of its name.
        roles: Roles of the record, with those that they stand for.
        id: Path of the record's name.
        tools: Path of the tools, which may be JSON text.
        metadata: Paths of what is kept as metadata.
        prompt_token_ids: Path of the ids of the prompt.
        completion_token_ids: Path of the ids of the completion.
        mask: Path of the flags that say which ids were sampled.
        logprobs: Path of the logprobs.
    """

    messages: str | list[MappedMessage] = ""
    role: str = "role"
    content: str = "content"
    reasoning: str = "reasoning_content"
    tool_calls: str = "tool_calls"
    tool_call_id: str = "tool_call_id"
    name: str = "name"
    roles: dict[str, str] = {}
    id: str = ""
    tools: str = ""
    metadata: list[str] = []
    prompt_token_ids: str = ""
    completion_token_ids: str = ""
    mask: str = ""
    logprobs: str = ""


def given_format(name: str | None, given: GivenMap | None) -> str | Format | None:
    """The format that a user asked for, None for that of the first record.

    Args:
        name: Of a format, None without.
        given: A map, None without.

    Raises:
        UsageError: There are both, or the map cannot be used.
    """
    if given is None:
        return name
    if name is not None:
        raise UsageError("`map` and `input_format` both say how records are read; give one of them.")
    return mapped_format(given)


def mapped_format(given: GivenMap) -> Format:
    """The format of a map.

    Args:
        given: The map, as JSON text, or a file that holds it.

    Raises:
        UsageError: The file cannot be read, or it is no map.
    """
    found = _read(given)
    has_ids = bool(found.prompt_token_ids or found.completion_token_ids)
    if not found.messages and not has_ids:
        raise UsageError(f"the map names no messages; expected for example {_EXAMPLE}.")
    if has_ids and not (found.prompt_token_ids and found.completion_token_ids):
        raise UsageError(
            "the map has token ids of one side; expected prompt_token_ids and completion_token_ids."
        )
    matches = partial(_matches, found)
    return Format(
        name=NAME,
        fields=msgspec.json.encode(found, order="deterministic").decode(),
        has_logprobs=bool(found.logprobs),
        has_branches=False,
        example=_EXAMPLE,
        matches=matches,
        parse=partial(_parse, found),
        holds_ids=matches if has_ids else _never,
        token_id_keys=frozenset({root_key(joined("$", found.prompt_token_ids))} if has_ids else ()),
        id_keys=(joined("$", found.id), *ID_KEYS) if found.id else ID_KEYS,
    )


def _never(_record: Mapping[str, Any]) -> bool:
    return False


def _read(given: GivenMap) -> RecordMap:
    name, text = "the map", os.fspath(given) if isinstance(given, os.PathLike) else given
    if isinstance(text, str) and not text.lstrip().startswith("{"):
        place = location(text)
        name = str(place)
        try:
            text = place.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the map {name}: {error}.") from error
    try:
        if isinstance(text, str):
            found = msgspec.json.decode(text, type=RecordMap)
        else:
            found = msgspec.convert(dict(text), RecordMap)
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{name} is no map of a record: {error}; expected for example {_EXAMPLE}."
        ) from error
    texts = [value for value in msgspec.structs.astuple(found) if isinstance(value, str) and value]
    messages = found.messages if isinstance(found.messages, list) else []
    for path in (*texts, *found.metadata, *(each.content for each in messages)):
        parse_path(path)
    return found


def check_map(chosen: Format, record: Mapping[str, Any], place: str) -> None:
    """Refuse a map that does not fit the first record.

    Args:
        chosen: As `mapped_format` gives it.
        record: The first that is a JSON object.
        place: `file:line` of it.

    Raises:
        UsageError: It shows the record.
    """
    try:
        chosen.parse(record, Place(Path(place), 1))
    except ConversationError as error:
        text = msgspec.json.encode(record).decode()
        text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise UsageError(
            f"the map does not fit the first record: {error.path} {error.reason}\n{place} is {text}"
        ) from error


def _matches(given: RecordMap, record: Mapping[str, Any]) -> bool:
    if isinstance(given.messages, str) and given.messages:
        return value_at(record, given.messages) is not NO_VALUE
    if given.messages:
        return all(value_at(record, each.content) is not NO_VALUE for each in given.messages)
    return value_at(record, given.prompt_token_ids) is not NO_VALUE


def _parse(given: RecordMap, record: Mapping[str, Any], place: Place) -> Trace | Conversation | Document:
    messages = _messages(given, record) if given.messages else None
    tools = _value(record, given.tools)
    checked_tools = openai_tools(tools, joined("$", given.tools)) if tools is not None else None
    values = {path.removeprefix("$."): _value(record, path) for path in given.metadata}
    metadata = {key: value for key, value in values.items() if value is not None} or None
    if given.prompt_token_ids:
        return _tokens(
            given, record, place, {"messages": messages, "tools": checked_tools, "metadata": metadata}
        )
    return Conversation(
        messages or [],
        checked_tools,
        metadata=None if metadata is None else msgspec.json.encode(metadata).decode(),
    )


def _tokens(
    given: RecordMap, record: Mapping[str, Any], place: Place, more: Mapping[str, Any]
) -> Trace | Conversation | Document:
    paths = {key: getattr(given, key) for key in _IDS if getattr(given, key)}
    found = {key: _value(record, path) for key, path in paths.items()}
    try:
        return TOKENS.parse({**found, **more}, place)
    except ConversationError as error:
        for key, path in paths.items():
            if re.match(rf"\$\.{key}\b", error.path):
                moved = joined("$", path) + error.path.removeprefix(f"$.{key}")
                raise ConversationError(error.reason, path=moved, hint=error.hint) from error
        raise


def _value(record: Mapping[str, Any], path: str) -> Any:
    found = value_at(record, path) if path else None
    return None if found is NO_VALUE else found


def _messages(given: RecordMap, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not isinstance(given.messages, str):
        return [_field_message(each, record) for each in given.messages]
    path = joined("$", given.messages)
    value = value_at(record, given.messages)
    if value is NO_VALUE or value is None:
        keys = ", ".join(sorted(map(str, record))[:8])
        raise ConversationError(f"is missing; expected a list of messages, found the keys {keys}.", path=path)
    items = decoded(value, path, "a list of messages as JSON text")
    if not isinstance(items, list) or not items:
        found = "empty" if items == [] else kind_of(items)
        raise ConversationError(f"is {found}; expected a list with at least one message.", path=path)
    return [_message(given, object_at(each, f"{path}[{i}]"), f"{path}[{i}]") for i, each in enumerate(items)]


def _field_message(given: MappedMessage, record: Mapping[str, Any]) -> dict[str, Any]:
    path = joined("$", given.content)
    text = value_at(record, given.content)
    if not isinstance(text, str):
        found = "missing" if text is NO_VALUE else kind_of(text)
        raise ConversationError(f"is {found}; expected text.", path=path)
    return {"role": given.role, "content": text}


def _message(given: RecordMap, item: Mapping[str, Any], path: str) -> dict[str, Any]:
    role = value_at(item, given.role)
    if not isinstance(role, str):
        found = "missing" if role is NO_VALUE else shown(role)
        raise ConversationError(f"is {found}; expected a role.", path=joined(path, given.role))
    content = _value(item, given.content)
    if content is not None and not isinstance(content, (str, list)):
        raise ConversationError(
            f"is {kind_of(content)}; expected a string, a list of parts or null.",
            path=joined(path, given.content),
        )
    message: dict[str, Any] = {"role": given.roles.get(role, role), "content": content}
    more: Sequence[tuple[str, str]] = (
        ("reasoning_content", given.reasoning),
        ("tool_calls", given.tool_calls),
        ("tool_call_id", given.tool_call_id),
        ("name", given.name),
    )
    message |= {key: value for key, own in more if (value := _value(item, own)) is not None}
    return openai_message(message, path)
