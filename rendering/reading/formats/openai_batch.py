"""`openai-batch`: requests of the Batch API, joined with the answers of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.dataset.errors import ConversationError, counted, or_skip
from tokscore.rendering.conversations.conversation import (
    LOGPROBS_UNUSED_STATUS,
    AnswerLogprobs,
    check_message,
    check_messages,
    check_objects,
    check_template_kwargs,
)
from tokscore.rendering.conversations.trace import NO_PARENT, IdPlace, Node, NodeTokens, Trace, Usage
from tokscore.rendering.conversations.values import shown
from tokscore.rendering.reading.fields.answer_tokens import answer_logprobs, listed_ids, logprob_of
from tokscore.rendering.reading.fields.usage import usage_of
from tokscore.rendering.reading.fields.values import (
    get,
    id_array,
    logprob_array,
    metadata_text,
    need,
    object_at,
)
from tokscore.rendering.reading.formats.format import Format, Place

if TYPE_CHECKING:
    from numpy.typing import NDArray

IDS_UNUSED_STATUS = "recorded_ids_unused"
_OK = 200
_LONGEST_ERROR = 200
_IDS = "a list of token ids"


class _Answers(NamedTuple):
    """The server's answer to one request.

    Attributes:
        body: Of the response.
        choices: Its choices, at least one.
        path: JSON path of the body.
        source: `file:line` of the answer, empty where it is that of the record.
    """

    body: Mapping[str, Any]
    choices: Sequence[Mapping[str, Any]]
    path: str
    source: str


def _matches(record: Mapping[str, Any]) -> bool:
    return "custom_id" in record and any(
        isinstance(record.get(key), dict) for key in ("body", "request", "response", "error")
    )


def _holds_ids(record: Mapping[str, Any]) -> bool:
    response = record.get("response")
    body = response.get("body") if isinstance(response, dict) else None
    choices = body.get("choices") if isinstance(body, dict) else None
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and _given_ids(choice) is not None for choice in choices
    )


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    try:
        return _trace(record)
    except ConversationError as error:
        output = record.get("output")
        if isinstance(output, str) and error.path.startswith(("$.response", "$.error")):
            raise error.at(output) from error
        raise


def _trace(record: Mapping[str, Any]) -> Trace:
    if "unusable" in record and "custom_id" not in record:
        raise ConversationError(
            str(record["unusable"]),
            hint=or_skip("Mend the file of outputs", "leave such lines out"),
            source=str(record.get("output", "")),
        )
    request, path = record, "$"
    if "request" in record:
        request, path = need(record, "request", dict, "$", "the line of the request"), "$.request"
    elif "body" not in record:
        raise ConversationError(
            "is an answer without the messages of its request.",
            hint="Give the file of the requests too: tokscore joins both on custom_id.",
        )
    body, path = need(request, "body", dict, path, "the request as an object"), f"{path}.body"
    answers = _answers(record) if "request" in record else None
    messages = check_messages(
        need(body, "messages", list, path, "a list of messages"),
        f"{path}.messages",
        allow_media=answers is not None and _has_ids(answers),
    )
    prompt = _prompt_nodes(messages, answers)
    nodes = prompt if answers is None else [*prompt, *_answer_nodes(answers, prompt)]
    return Trace(
        nodes,
        check_objects(body.get("tools"), f"{path}.tools") or None,
        _template_kwargs(body, path),
        _metadata(body, answers),
        status=None if answers is None else _status(answers),
    )


def _status(answers: _Answers) -> str | None:
    """Says where answers have ids, and the prompt has none, so that both are rendered; and of what it has."""
    if _has_ids(answers):
        return None
    unused = []
    if any(choice.get("token_ids") is not None for choice in answers.choices):
        for i in range(len(answers.choices)):
            _tokens(answers, i)  # what is left out is checked all the same
        unused.append(IDS_UNUSED_STATUS)
    if answers.body.get("prompt_logprobs") is not None:
        unused.append(LOGPROBS_UNUSED_STATUS)
    return ",".join(unused) or None


def _template_kwargs(body: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    try:
        return check_template_kwargs(body.get("chat_template_kwargs"))
    except ConversationError as error:
        raise ConversationError(error.reason, path=path + error.path.removeprefix("$")) from error


def _metadata(request: Mapping[str, Any], answers: _Answers | None) -> str | None:
    if answers is None:
        return metadata_text(request, ("model",))
    return metadata_text(
        answers.body,
        ("usage",),
        model=answers.body.get("model") or request.get("model"),
        finish_reasons=[choice.get("finish_reason") for choice in answers.choices],
    )


def _answers(record: Mapping[str, Any]) -> _Answers:
    error = record.get("error")
    if error is not None:
        raise ConversationError(f"is {_said(error)}; expected an answer.", path="$.error")
    response = need(record, "response", dict, "$", "the answer of the server")
    status = need(response, "status_code", int, "$.response", f"{_OK}")
    path = "$.response.body"
    if status != _OK:
        raise ConversationError(
            f"is {status}: {_said(response.get('body'))}; expected {_OK}.", path="$.response.status_code"
        )
    body = need(response, "body", dict, "$.response", "an object with choices")
    choices = need(body, "choices", list, path, "a list of choices")
    if not choices:
        raise ConversationError("is empty; expected at least one choice.", path=f"{path}.choices")
    found = [object_at(choice, f"{path}.choices[{i}]") for i, choice in enumerate(choices)]
    output = record.get("output")
    return _Answers(body, found, path, output if isinstance(output, str) else "")


def _said(error: object) -> str:
    """The message in an error of the server, wherever it keeps it."""
    inner = error.get("error") if isinstance(error, dict) else None
    for holder in (inner, error):
        text = holder.get("message") if isinstance(holder, dict) else None
        if isinstance(text, str):
            return f'"{text[:_LONGEST_ERROR]}"'
    return shown(error)


def _prompt_nodes(messages: Sequence[Mapping[str, Any]], answers: _Answers | None) -> list[Node]:
    if answers is None or not _has_ids(answers):
        return [Node(i - 1, (message,)) for i, message in enumerate(messages)]
    body, path = answers.body, answers.path
    ids = id_array(need(body, "prompt_token_ids", list, path, _IDS), f"{path}.prompt_token_ids")
    places = (IdPlace(f"{path}.prompt_token_ids", 0, len(ids), answers.source),)
    tokens = NodeTokens(ids, np.zeros(len(ids), np.int8), places=places)
    given = get(body, "prompt_logprobs", list, path, "a list of objects or null, one a token id")
    if given is not None:
        tokens = tokens._replace(logprobs=_prompt_logprobs(given, ids.tolist(), f"{path}.prompt_logprobs"))
    return [Node(NO_PARENT, tuple(messages), tokens=tokens)]


def _given_ids(choice: Mapping[str, Any]) -> Any:
    """The ids of a choice; without any, those that stand in the texts of its tokens, None without either."""
    if choice.get("token_ids") is not None:
        return choice["token_ids"]
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return listed_ids(content) if isinstance(content, list) else None


def _has_ids(answers: _Answers) -> bool:
    """Whether prompt and choices have token ids; one without the other gives no sequence."""
    n_choices = sum(choice.get("token_ids") is not None for choice in answers.choices)
    lacking = next((i for i, choice in enumerate(answers.choices) if _given_ids(choice) is None), None)
    if n_choices and lacking is not None:
        raise ConversationError(
            f"is missing; expected {_IDS}, as on {counted(n_choices, 'other choice')}.",
            path=f"{answers.path}.choices[{lacking}].token_ids",
        )
    return lacking is None and answers.body.get("prompt_token_ids") is not None


def _prompt_logprobs(given: Sequence[Any], token_ids: Sequence[int], path: str) -> NDArray[np.float32]:
    if len(given) != len(token_ids):
        raise ConversationError(
            f"has {counted(len(given), 'value')} for {counted(len(token_ids), 'token id')}.", path=path
        )
    values: list[object] = []
    for i, (candidates, token_id) in enumerate(zip(given, token_ids, strict=True)):
        if candidates is None:
            values.append(None)
            continue
        # JSON has the ids as texts.
        own = object_at(candidates, f"{path}[{i}]").get(str(token_id))
        if own is None:
            raise ConversationError(f"has no logprob of its token id {token_id}.", path=f"{path}[{i}]")
        values.append(logprob_of(own, f"{path}[{i}].{token_id}"))
    return logprob_array(values, path)


def _answer_nodes(answers: _Answers, prompt: Sequence[Node]) -> list[Node]:
    has_ids = prompt[0].tokens is not None
    usage = _usage(answers)
    return [
        Node(
            len(prompt) - 1,
            (_message(choice, f"{answers.path}.choices[{i}]"),),
            is_sampled=True,
            tokens=_tokens(answers, i) if has_ids else None,
            usage=usage,
            logprobs=None if has_ids else _answer_logprobs(choice, f"{answers.path}.choices[{i}]"),
        )
        for i, choice in enumerate(answers.choices)
    ]


def _message(choice: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    given = need(choice, "message", dict, path, "the message of the assistant")
    message = {"role": "assistant"} | {
        key: value for key, value in given.items() if value is not None and value != []
    }
    message.setdefault("content", None)
    check_message(message, f"{path}.message")
    if message["role"] != "assistant":
        raise ConversationError(
            f"is {shown(message['role'])}; expected assistant.", path=f"{path}.message.role"
        )
    return message


def _tokens(answers: _Answers, i: int) -> NodeTokens:
    choice, path = answers.choices[i], f"{answers.path}.choices[{i}]"
    key = "logprobs.content" if choice.get("token_ids") is None else "token_ids"
    ids = id_array(need({key: _given_ids(choice)}, key, list, path, _IDS), f"{path}.{key}")
    places = (IdPlace(f"{path}.{key}", 0, len(ids), answers.source),)
    tokens = NodeTokens(ids, np.ones(len(ids), np.int8), places=places)
    content, path = _logprobs_content(choice, path)
    if content is None:
        return tokens
    if len(content) != len(ids):
        raise ConversationError(
            f"has {counted(len(content), 'value')} for {counted(len(ids), 'token id')}.", path=path
        )
    values = [logprob_of(each, f"{path}[{i}]") for i, each in enumerate(content)]
    return tokens._replace(logprobs=logprob_array(values, path))


def _logprobs_content(choice: Mapping[str, Any], path: str) -> tuple[Sequence[Any] | None, str]:
    """The server's entry for each token, and their JSON path."""
    logprobs = get(choice, "logprobs", dict, path, "an object with content")
    path = f"{path}.logprobs"
    content = None if logprobs is None else get(logprobs, "content", list, path, "a list of logprobs")
    return content, f"{path}.content"


def _answer_logprobs(choice: Mapping[str, Any], path: str) -> AnswerLogprobs | None:
    content, path = _logprobs_content(choice, path)
    if content is None:
        return None
    return answer_logprobs(content, path)


def _usage(answers: _Answers) -> Usage | None:
    """The server's counts, None where their sum over several choices says nothing of each."""
    path = f"{answers.path}.usage"
    usage = get(answers.body, "usage", dict, answers.path, "an object")
    if usage is None or len(answers.choices) > 1:
        return None
    return usage_of(usage, path)


FORMAT = Format(
    name="openai-batch",
    fields="custom_id, body[messages, tools, chat_template_kwargs] of the requests; of their outputs "
    "response[status_code, body[choices[message, finish_reason, logprobs.content, token_ids], usage, "
    "prompt_token_ids, prompt_logprobs]], error. A choice is a branch; ids are read where both prompt and "
    "choices have them, as vLLM writes them with return_token_ids; otherwise logprobs.content[token, bytes, "
    "logprob] where its tokens are those that are rendered. Tokens of the text token_id:N are ids",
    has_logprobs=True,
    has_branches=True,
    example='{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", '
    '"messages": [{"role": "user", "content": "Hi"}]}}',
    matches=_matches,
    parse=_parse,
    holds_ids=_holds_ids,
    token_id_keys=frozenset({"response"}),
    id_keys=("custom_id", "id"),
    is_served=True,
)
