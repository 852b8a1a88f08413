"""`trl`: prompts, completions and preferences, as TRL's trainers take and log them, and ms-swift's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import check_message, check_messages, check_template_kwargs
from tokscore.rendering.conversations.media import check_no_media
from tokscore.rendering.conversations.trace import NO_PARENT, Node, Trace
from tokscore.rendering.conversations.values import kind_of
from tokscore.rendering.reading.fields.messages import tools_or_text
from tokscore.rendering.reading.fields.rejected import as_choices, has_rejected
from tokscore.rendering.reading.fields.values import metadata_text
from tokscore.rendering.reading.formats.format import Format, Place

_ASSISTANT = "assistant"
_CHOICES = ("chosen", "rejected")
_GIVEN = ("prompt", "completion", *_CHOICES)
_READ = ("id", "prompt", "completion", *_CHOICES, "messages", "tools", "chat_template_kwargs")
# Where a prompt stands beside one of these, the record has an answer that is not read here.
_OTHER_ANSWERS = ("messages", "completions", "response", "responses", "output", "outputs", "answers")

_Messages = Sequence[Mapping[str, Any]]


def _matches(record: Mapping[str, Any]) -> bool:
    if all(_is_given(record, key) for key in _CHOICES) or _are_single(record) or has_rejected(record):
        return True
    if not _is_given(record, "prompt"):
        return False
    return _is_given(record, "completion") or all(record.get(key) is None for key in _OTHER_ANSWERS)


def _is_given(record: Mapping[str, Any], key: str) -> bool:
    return isinstance(record.get(key), (str, list))


def _are_single(record: Mapping[str, Any]) -> bool:
    """Whether the choices are a message each, behind those of the prompt."""
    return all(isinstance(record.get(key), dict) for key in _CHOICES)


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    check_no_media(record)
    if has_rejected(record):
        record = as_choices(record)
    prompt = _messages(record, "prompt", "user")
    if prompt is None and _are_single(record):
        prompt = _messages(record, "messages", "user")
    is_preference = any(record.get(key) is not None for key in _CHOICES)
    answers: list[_Messages] = []
    if is_preference:
        answers = [_needed(record, key) for key in _CHOICES]
        prompt, answers = _split(record, prompt, answers)
    else:
        if prompt is None:
            raise ConversationError("is missing; expected text or a list of messages.", path="$.prompt")
        completion = _messages(record, "completion", _ASSISTANT)
        answers = [] if completion is None else [completion]
    nodes = [Node(i - 1, (message,)) for i, message in enumerate(prompt or ())]
    n_prompt = len(nodes)
    for answer in answers:
        parent = n_prompt - 1 if n_prompt else NO_PARENT
        for message in answer:
            nodes.append(Node(parent, (message,), message["role"] == _ASSISTANT))
            parent = len(nodes) - 1
    # Reward functions, graders and converters name their fields as they like.
    keys = [key for key in record if key not in _READ and not isinstance(record[key], (list, dict))]
    return Trace(
        nodes,
        tools_or_text(record.get("tools"), "$.tools"),
        check_template_kwargs(record.get("chat_template_kwargs")),
        metadata_text(record, [*keys, "metadata"], branches=list(_CHOICES) if is_preference else None),
        is_text=all(isinstance(record.get(key), str) for key in _GIVEN if record.get(key) is not None),
    )


def _needed(record: Mapping[str, Any], key: str) -> _Messages:
    found = _messages(record, key, _ASSISTANT)
    if found is None:
        (other,) = set(_CHOICES) - {key}
        raise ConversationError(
            f"is missing; expected text or a list of messages, as there is {other}.", path=f"$.{key}"
        )
    return found


def _messages(record: Mapping[str, Any], key: str, role: str) -> _Messages | None:
    """The messages at `key`; text is one message of that role."""
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, dict) and key in _CHOICES:
        check_message(value, f"$.{key}")
        return [value]
    if not isinstance(value, list):
        raise ConversationError(f"is {kind_of(value)}; expected text or a list of messages.", path=f"$.{key}")
    return check_messages(value, f"$.{key}")


def _split(
    record: Mapping[str, Any], prompt: _Messages | None, answers: Sequence[_Messages]
) -> tuple[_Messages, list[_Messages]]:
    """The prompt and what each answer adds to it."""
    chosen, rejected = answers
    # Each branch keeps at least one message of its own.
    most = min(len(chosen), len(rejected)) - 1
    n_common = next((i for i in range(most) if chosen[i] != rejected[i]), most)
    common = chosen[:n_common]
    if prompt is None:
        for key in _CHOICES:
            if not isinstance(record[key], list):
                found = "text" if isinstance(record[key], str) else "one message"
                raise ConversationError(
                    f"is {found}, of which the prompt cannot be told; expected messages, or a prompt of its "
                    "own.",
                    path=f"$.{key}",
                )
    else:
        is_text_in_common = isinstance(record.get("prompt"), str) and prompt[0] in common
        if not is_text_in_common and list(common[: len(prompt)]) != list(prompt):
            return prompt, [chosen, rejected]
    return common, [chosen[n_common:], rejected[n_common:]]


FORMAT = Format(
    name="trl",
    fields="prompt, completion, or chosen and rejected as two branches, each text or messages (a record "
    "of texts alone is tokenised as it is, without a template, as TRL does, but for the EOS that TRL adds to "
    "a completion), tools, chat_template_kwargs; "
    "all numbers, flags and texts "
    "beside them, such as label, score and margin, are metadata. Without a prompt, chosen and rejected share "
    "their first equal messages; where each is one message, messages are the prompt. Of ms-swift "
    "messages, and rejected_response in the place of what follows their last user, or rejected_messages",
    has_logprobs=False,
    has_branches=True,
    example='{"prompt": [{"role": "user", "content": "Hi"}], "chosen": [{"role": "assistant", "content": '
    '"Hello!"}], "rejected": [{"role": "assistant", "content": "What?"}]}',
    matches=_matches,
    parse=_parse,
)
