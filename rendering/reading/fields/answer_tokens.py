"""Tokens of an answer as Chat Completions servers list them: text, bytes or id of each, with its logprob."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import AnswerLogprobs
from tokscore.rendering.conversations.values import kind_of, shown
from tokscore.rendering.reading.fields.values import get, logprob_array, need, object_at

_LARGEST_BYTE = 255
# vLLM's text of a token where the request asks for ids.
_TOKEN_ID = re.compile(r"token_id:(\d{1,10})")


def answer_logprobs(content: Sequence[object], path: str) -> AnswerLogprobs:
    """Texts, ids and logprobs of the tokens of an answer.

    Args:
        content: `{token, bytes, logprob}` each.
        path: JSON path of their list.

    Raises:
        ConversationError: One of them is something else.
    """
    tokens = [object_at(each, f"{path}[{i}]") for i, each in enumerate(content)]
    texts = [_token_text(each, f"{path}[{i}]") for i, each in enumerate(tokens)]
    values = [logprob_of(each, f"{path}[{i}]") for i, each in enumerate(tokens)]
    return AnswerLogprobs(texts, logprob_array(values, path), listed_ids(content))


def listed_ids(content: Sequence[object]) -> list[int] | None:
    """The ids of tokens whose texts are all `token_id:N`, None where they are others, or there are none."""
    texts = [each.get("token") if isinstance(each, dict) else None for each in content]
    found = [_TOKEN_ID.fullmatch(text) if isinstance(text, str) else None for text in texts]
    ids = [int(match[1]) for match in found if match is not None]
    return ids if ids and len(ids) == len(found) else None


def logprob_of(value: object, path: str) -> object:
    """The logprob in an object, None without.

    Raises:
        ConversationError: It is no object, or its logprob no number.
    """
    found = object_at(value, path).get("logprob")
    if found is not None and type(found) not in (int, float):
        raise ConversationError(f"is {kind_of(found)}; expected a number.", path=f"{path}.logprob")
    return found


def _token_text(given: Mapping[str, Any], path: str) -> bytes:
    """The bytes of a token; without them, those of its text."""
    values = get(given, "bytes", list, path, "a list of bytes")
    if values is None:
        return need(given, "token", str, path, "the text of a token").encode()
    for i, value in enumerate(values):
        if type(value) is not int or not 0 <= value <= _LARGEST_BYTE:
            raise ConversationError(
                f"is {shown(value)}; expected a byte, 0 to 255.", path=f"{path}.bytes[{i}]"
            )
    return bytes(values)
