"""Conversation records: one JSON object a line, checked where it is read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tokscore.dataset.errors import ConversationError, or_skip
from tokscore.rendering.conversations.depth import MAX_DEPTH, check_depth
from tokscore.rendering.conversations.media import check_no_media
from tokscore.rendering.conversations.record_line import record_line
from tokscore.rendering.conversations.values import kind_of, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Arguments of transformers' apply_chat_template and of our rendering: no names for template variables.
RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "self",
        "strftime_now",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
_ROLES = "system, user, assistant or tool"
_HALF_A_PAIR = re.compile(
    rb"\\u[dD][89abAB][\da-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][\da-fA-F]{2})\\u[dD][c-fC-F][\da-fA-F]{2}"
)
# Ids, roles and names are repeated in the tables, token by token.
_LONGEST_NAME = 1_000
# The line that stands for the end which the JSON array of a file lacks.
CUT_ARRAY = b"["
# Begins the line that says why no more can be read of a compressed file; no JSON has that byte.
CUT_FILE = b"\x18"
_NO_FINITE = re.compile(rb"NaN|Infinity")
_DROP_HINT = or_skip("Mend the line", "drop such lines")
# Parts whose type holds one of these words need a processor: image, image_url, input_audio, …
_MEDIA = ("image", "audio", "video", "file")


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation as a chat template takes it.

    Attributes:
        messages: OpenAI-style message objects.
        tools: Tool definitions, None without.
        template_kwargs: The record's own `chat_template_kwargs`.
        metadata: The record's metadata as JSON text, None without.
        given: Messages of the assistant that no model generated for this record, such as those of a prompt.
        status: What a reader should know of how it was read, None if nothing.
        logprobs: Of answers whose tokens a server gave as text, by message; None without any.
        is_served: The record is a server's, which changed the messages before a template saw them.
    """

    messages: Sequence[Mapping[str, Any]]  # Any: JSON values
    tools: Sequence[Mapping[str, Any]] | None = None  # Any: JSON values
    template_kwargs: Mapping[str, Any] | None = None  # Any: JSON values
    metadata: str | None = None
    given: frozenset[int] = frozenset()
    status: str | None = None
    logprobs: Mapping[int, AnswerLogprobs] | None = None
    is_served: bool = False


def parse_conversation(
    record: bytes | str | Mapping[str, Any],  # Any: JSON values
) -> Conversation:
    """The conversation in one record of the format `openai`.

    Args:
        record: A line of JSON, or what is in it.

    Raises:
        ConversationError: With the JSON path, what was found and what was expected.
        UsageError: It is of another type, or holds what JSON does not have.
    """
    if not isinstance(record, str | bytes):
        record = record_line(record)
    if isinstance(record, str):
        record = record.encode("utf-8", "surrogatepass")
    return read_conversation(decode_record(record))


def as_conversation(
    given: Conversation | bytes | str | Mapping[str, Any],  # Any: JSON values
) -> Conversation:
    """The conversation itself, or the one in a record; errors as of `parse_conversation`."""
    return given if isinstance(given, Conversation) else parse_conversation(given)


def decode_record(line: bytes) -> dict[str, Any]:  # Any: JSON values
    """The JSON object in one line.

    Raises:
        ConversationError: There is none, or its `id` is no name.
    """
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise ConversationError(f"is not UTF-8: byte {error.start + 1} of the line is damaged.") from error
    try:
        record = msgspec.json.decode(line)
        check_depth(line, record)
    except RecursionError:
        raise ConversationError(
            f"is nested too deeply; expected at most {MAX_DEPTH} lists and objects in each other."
        ) from None
    except msgspec.DecodeError as error:
        if _NO_FINITE.search(line) and (found := _with_infinities(line)) is not None:
            return _checked(found)
        if line.strip() == CUT_ARRAY:
            raise ConversationError(
                "is missing: the JSON array of the file ends without its ]; expected a whole file.",
                hint=or_skip("Get the file again", "keep the records before its end"),
            ) from error
        if line.startswith(CUT_FILE):
            raise ConversationError(
                f"is missing, and all behind it: the file is damaged here ({line[1:].decode().strip()}); "
                "expected a whole file.",
                hint=or_skip("Get the file again", "keep the records before the damage"),
            ) from error
        if half := _HALF_A_PAIR.search(line):
            raise ConversationError(
                f"holds {half[0].decode()}, half of a character pair, which is no text; "
                "expected valid Unicode."
            ) from error
        raise ConversationError(
            f"is not JSON: {error}; expected one JSON object a line.", hint=_DROP_HINT
        ) from error
    return _checked(record)


def _with_infinities(line: bytes) -> object:
    """The value in a line where Python's json wrote NaN or infinities as logprobs; None where elsewhere."""
    if _HALF_A_PAIR.search(line):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    open_values: list[tuple[object, bool]] = [(record, False)]
    while open_values:
        value, is_logprob = open_values.pop()
        if isinstance(value, dict):
            open_values += [(each, is_logprob or "logprob" in key) for key, each in value.items()]
        elif isinstance(value, list):
            open_values += [(each, is_logprob) for each in value]
        elif isinstance(value, float) and not is_logprob and not math.isfinite(value):
            return None
    return record


def _checked(record: object) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise ConversationError(f"is {kind_of(record)}; expected one JSON object a record.", hint=_DROP_HINT)
    identifier = record.get("id")
    if identifier is not None and (isinstance(identifier, bool) or not isinstance(identifier, (str, int))):
        raise ConversationError(f"is {shown(identifier)}; expected a string or a whole number.", path="$.id")
    _check_name(identifier, "$.id")
    return record


def read_conversation(record: Mapping[str, Any]) -> Conversation:  # Any: JSON values
    """The conversation in a record of the format `openai`.

    Raises:
        ConversationError: With the JSON path, what was found and what was expected.
    """
    check_no_media(record)
    metadata = record.get("metadata")
    return Conversation(
        messages=_messages(record),
        tools=check_objects(record.get("tools"), "$.tools"),
        template_kwargs=check_template_kwargs(record.get("chat_template_kwargs")),
        metadata=None if metadata is None else msgspec.json.encode(metadata).decode(),
    )


def _messages(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "messages" not in record:
        found = ", ".join(sorted(record)[:8]) or "nothing"
        raise ConversationError(
            f"is missing; expected a list of messages, found the keys {found}.",
            path="$.messages",
            hint="This is no format that tokscore knows; tokscore formats lists those it reads, such as "
            '{"messages": [{"role": "user", "content": "…"}]}.',
        )
    return check_messages(record["messages"], "$.messages")


def check_messages(messages: object, path: str, *, allow_media: bool = False) -> list[dict[str, Any]]:
    """The messages as they are, checked.

    Args:
        messages: A JSON value.
        path: Its JSON path.
        allow_media: Take image and audio parts, of which the ids are recorded.

    Raises:
        ConversationError: It is no list of messages.
    """
    if not isinstance(messages, list) or not messages:
        found = "empty" if messages == [] else kind_of(messages)
        raise ConversationError(f"is {found}; expected a list with at least one message.", path=path)
    for i, message in enumerate(messages):
        check_message(message, f"{path}[{i}]", allow_media=allow_media)
    return messages


def check_message(message: object, path: str, *, allow_media: bool = False) -> None:
    """Refuse what is no message.

    Raises:
        ConversationError: With what was found.
    """
    if not isinstance(message, dict):
        raise ConversationError(
            f"is {kind_of(message)}; expected an object with role and content.", path=path
        )
    if "role" not in message:
        raise ConversationError(f"is missing; expected {_ROLES}.", path=f"{path}.role")
    if not isinstance(message["role"], str):
        raise ConversationError(
            f"is {shown(message['role'])}; expected a string: {_ROLES}.", path=f"{path}.role"
        )
    _check_name(message["role"], f"{path}.role")
    _check_name(message.get("name"), f"{path}.name")
    content = message.get("content")
    if content is not None and not isinstance(content, (str, list)):
        raise ConversationError(
            f"is {kind_of(content)}; expected a string, a list of parts or null.", path=f"{path}.content"
        )
    for i, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if not allow_media and _is_medium(kind):
            raise ConversationError(
                f"is {shown(kind)}; tokscore renders text only and would score a placeholder.",
                path=f"{path}.content[{i}].type",
            )
    calls = check_objects(message.get("tool_calls"), f"{path}.tool_calls")
    for i, call in enumerate(calls or ()):
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ConversationError(
                'has no name; expected {"function": {"name": "…", "arguments": …}}.',
                path=f"{path}.tool_calls[{i}]",
            )
        _check_name(function["name"], f"{path}.tool_calls[{i}].function.name")


def has_media(messages: Sequence[Mapping[str, Any]]) -> bool:  # Any: JSON values
    """Whether some content part is an image, audio, video or file."""
    return any(
        isinstance(part, dict) and _is_medium(part.get("type"))
        for message in messages
        if isinstance(content := message.get("content"), list)
        for part in content
    )


def _is_medium(kind: object) -> bool:
    return isinstance(kind, str) and any(medium in kind for medium in _MEDIA)


def _check_name(value: object, path: str) -> None:
    if isinstance(value, str) and len(value) > _LONGEST_NAME:
        raise ConversationError(
            f"has {len(value):,} characters; expected at most {_LONGEST_NAME:,}.", path=path
        )


def check_template_kwargs(value: object) -> dict[str, Any] | None:
    """A record's own variables for the template.

    Raises:
        ConversationError: They are no object, or hold what transformers takes itself.
    """
    kwargs = _object(value, "$.chat_template_kwargs")
    for name in sorted(RESERVED_KWARGS & set(kwargs or ())):
        raise ConversationError(
            "is not for templates: transformers takes it itself.", path=f"$.chat_template_kwargs.{name}"
        )
    return kwargs


def _object(value: object, path: str) -> dict[str, Any] | None:
    if value is None or isinstance(value, dict):
        return value
    raise ConversationError(f"is {kind_of(value)}; expected an object.", path=path)


def check_objects(value: object, path: str) -> list[dict[str, Any]] | None:
    """A list of objects, or None.

    Raises:
        ConversationError: It is something else.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        raise ConversationError(f"is {kind_of(value)}; expected a list of objects.", path=path)
    for i, item in enumerate(value):
        if not isinstance(item, dict):
            raise ConversationError(f"is {kind_of(item)}; expected an object.", path=f"{path}[{i}]")
    return value


def tool_names(messages: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Name of the tool each tool result came from, None for other messages."""
    called: dict[str, str] = {}
    names: list[str | None] = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            identifier = call.get("id")
            if isinstance(identifier, str):
                called[identifier] = str(call.get("function", call)["name"])
        name = None
        if message["role"] == "tool":
            given = message.get("name")
            name = given if isinstance(given, str) else called.get(str(message.get("tool_call_id")))
        names.append(name)
    return names


LOGPROBS_UNUSED_STATUS = "recorded_logprobs_unused"


class AnswerLogprobs(NamedTuple):
    """Texts and logprobs of the tokens of one answer, in order, as a server gave them.

    Attributes:
        texts: The bytes of each; servers write U+FFFD for those that are no whole character.
        logprobs: float32 in nats, NaN where it gave none; shape [tokens].
        token_ids: Where the texts are ids, as vLLM writes them when asked; None otherwise.
    """

    texts: Sequence[bytes]
    logprobs: NDArray[np.float32]
    token_ids: Sequence[int] | None = None
