"""`tokens`: tokscore's own format, token ids with the owner and the mask of every one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tokscore.dataset.errors import ConversationError, counted
from tokscore.dataset.tokens import NO_MESSAGE
from tokscore.rendering.conversations.conversation import check_messages, check_objects
from tokscore.rendering.conversations.trace import IdPlace, Node, NodeTokens, Trace
from tokscore.rendering.conversations.values import shown
from tokscore.rendering.reading.fields.mask_nodes import mask_nodes, shifted
from tokscore.rendering.reading.fields.values import flag_array, get, id_array, logprob_array, need, object_at
from tokscore.rendering.reading.formats.format import Format, Place

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.dataset.tokens import RenderedTokens

_ASSISTANT = "assistant"
_IDS = "a list of token ids"
_FLAGS = "a list of true and false, one a token id"
_NUMBERS = "a list of numbers or null"
_RUN = "[role, n_tokens] or [role, n_tokens, message_index]"


class _Run(NamedTuple):
    """Contiguous ids of one message, `NO_MESSAGE` for none."""

    stop: int
    message: int


def tokens_record(
    conversation_id: str, branches: Sequence[RenderedTokens], *, metadata: str | None = None
) -> dict[str, Any]:  # Any: JSON values
    """A record of the format `tokens`; reading it gives the same ids, owners, masks and logprobs.

    Args:
        conversation_id: Becomes `id`.
        branches: At least one.
        metadata: JSON text, None without.

    Returns:
        A JSON object, ready to be encoded. Its messages have roles and names of tools, but no text.
    """
    record: dict[str, Any] = {"id": conversation_id}
    if metadata is not None:
        record["metadata"] = msgspec.json.decode(metadata)
    objects = [_branch_object(tokens) for tokens in branches]
    return record | (objects[0] if len(objects) == 1 else {"branches": objects})


def _branch_object(tokens: RenderedTokens) -> dict[str, Any]:
    ids = tokens.token_ids.tolist()
    n_prompt = int(np.append(np.flatnonzero(tokens.sampled_mask == 1), len(ids))[0])
    found: dict[str, Any] = {
        "prompt_token_ids": ids[:n_prompt],
        "completion_token_ids": ids[n_prompt:],
        "mask": [None if each < 0 else bool(each) for each in tokens.sampled_mask.tolist()],
        "roles": [
            [span.role, span.stop - span.start]
            if span.message_index == NO_MESSAGE
            else [span.role, span.stop - span.start, span.message_index]
            for span in tokens.role_token_spans()
        ],
        "is_content": tokens.is_content.tolist(),
    }
    if tokens.messages:  # those of which no token was rendered have no run
        found["messages"] = [
            {"role": message.role} | ({} if message.tool_name is None else {"name": message.tool_name})
            for message in tokens.messages
        ]
    for key, column in (
        ("logprobs", tokens.recorded_logprobs),
        ("trainer_logprobs", tokens.trainer_logprobs),
    ):
        if column is not None:
            found[key] = [None if np.isnan(value) else value for value in column.tolist()]
    return found


def _matches(record: Mapping[str, Any]) -> bool:
    branches = record.get("branches")
    first = branches[0] if isinstance(branches, list) and branches else record
    return isinstance(first, dict) and all(
        isinstance(first.get(key), list) for key in ("prompt_token_ids", "completion_token_ids")
    )


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    given = get(record, "branches", list, "$", "a list of branches")
    if given is None:
        metadata = record.get("metadata")
        return Trace(
            _branch(record, "$"),
            check_objects(record.get("tools"), "$.tools"),
            metadata=None if metadata is None else msgspec.json.encode(metadata).decode(),
        )
    if not given:
        raise ConversationError("is empty; expected a list with at least one branch.", path="$.branches")
    nodes: list[Node] = []
    for i, each in enumerate(given):
        branch = _branch(object_at(each, f"$.branches[{i}]"), f"$.branches[{i}]")
        nodes += shifted(branch, len(nodes))
    return Trace(nodes, _tools(record, given), metadata=_metadata(record, given))


def _tools(record: Mapping[str, Any], branches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    own = check_objects(record.get("tools"), "$.tools")
    for i, branch in enumerate(branches):
        tools = check_objects(branch.get("tools"), f"$.branches[{i}].tools")
        if tools is not None and own is not None and tools != own:
            raise ConversationError(
                "differs from the tools before it; expected the same for all branches.",
                path=f"$.branches[{i}].tools",
            )
        own = own or tools
    return own


def _metadata(record: Mapping[str, Any], branches: Sequence[Mapping[str, Any]]) -> str | None:
    found = record.get("metadata")
    inner = [branch.get("metadata") for branch in branches]
    if any(each is not None for each in inner):
        found = {"branches": inner} | ({} if found is None else {"record": found})
    return None if found is None else msgspec.json.encode(found).decode()


def _branch(record: Mapping[str, Any], path: str) -> list[Node]:
    prompt = need(record, "prompt_token_ids", list, path, _IDS)
    completion = need(record, "completion_token_ids", list, path, _IDS)
    token_ids = np.concatenate(
        [id_array(prompt, f"{path}.prompt_token_ids"), id_array(completion, f"{path}.completion_token_ids")]
    )
    n = len(token_ids)
    if not n:
        raise ConversationError("holds no token ids; expected at least one.", path=path)
    is_content = get(record, "is_content", list, path, _FLAGS)
    tokens = NodeTokens(
        token_ids,
        _mask(record, len(prompt), n, path),
        None if is_content is None else flag_array(is_content, n, f"{path}.is_content"),
        _logprobs(record, "logprobs", len(completion), n, path),
        places=(
            IdPlace(f"{path}.prompt_token_ids", 0, len(prompt)),
            IdPlace(f"{path}.completion_token_ids", 0, len(completion)),
        ),
        trainer_logprobs=_logprobs(record, "trainer_logprobs", len(completion), n, path),
    )
    given = record.get("messages")
    messages = None if given is None else check_messages(given, f"{path}.messages", allow_media=True)
    runs = get(record, "roles", list, path, f"a list of runs {_RUN}")
    return mask_nodes(tokens, messages) if runs is None else _run_nodes(tokens, runs, messages, path)


def _mask(record: Mapping[str, Any], n_prompt: int, n: int, path: str) -> NDArray[np.int8]:
    flags = get(record, "mask", list, path, "a list of true, false or null, one a token id")
    if flags is None:
        return (np.arange(n) >= n_prompt).astype(np.int8)
    mask = flag_array([each is not None and each for each in flags], n, f"{path}.mask").astype(np.int8)
    mask[[each is None for each in flags]] = -1
    return mask


def _logprobs(
    record: Mapping[str, Any], key: str, n_completion: int, n: int, path: str
) -> NDArray[np.float32] | None:
    values = get(record, key, list, path, _NUMBERS)
    if values is None:
        return None
    if len(values) not in (n, n_completion):
        raise ConversationError(
            f"has {counted(len(values), 'value')}; expected {n:,}, one a token id, or {n_completion:,}, one "
            "a completion id.",
            path=f"{path}.{key}",
        )
    found = np.full(n, np.nan, np.float32)
    found[n - len(values) :] = logprob_array(values, f"{path}.{key}")
    return found


def _run_nodes(
    tokens: NodeTokens, given: Sequence[Any], messages: Sequence[Mapping[str, Any]] | None, path: str
) -> list[Node]:
    runs, roles = _runs(given, len(tokens.token_ids), path)
    said = _said(roles, messages, path)
    owners = np.concatenate(
        [np.full(stop - start, each.message, np.int32) for start, stop, each in _bounds(runs)]
    )
    tokens = tokens._replace(message_indices=owners)
    # A stop that opens the next message (GLM's <|user|>) makes no turn of that message.
    turns = {i for i in owners[tokens.sampled_mask == 1].tolist() if i >= 0 and said[i]["role"] == _ASSISTANT}
    nodes: list[Node] = []
    n_added = 0
    for start, stop, run in _bounds(runs):
        # A message of which nothing was printed, or only later, is a node without ids.
        while n_added < run.message:
            nodes.append(_node(nodes, said[n_added], n_added in turns, tokens.cut(start, start)))
            n_added += 1
        own = said[run.message] if n_added == run.message else None
        n_added += own is not None
        nodes.append(_node(nodes, own, own is not None and run.message in turns, tokens.cut(start, stop)))
    for i in range(n_added, len(said)):
        nodes.append(_node(nodes, said[i], False, tokens.cut(stop, stop)))
    return nodes


def _node(
    before: Sequence[Node], message: Mapping[str, Any] | None, is_sampled: bool, tokens: NodeTokens
) -> Node:
    return Node(len(before) - 1, () if message is None else (message,), is_sampled, tokens)


def _bounds(runs: Sequence[_Run]) -> list[tuple[int, int, _Run]]:
    starts = pairwise([0, *(run.stop for run in runs)])
    return [(start, stop, run) for (start, stop), run in zip(starts, runs, strict=True)]


def _runs(given: Sequence[Any], n_ids: int, path: str) -> tuple[list[_Run], dict[int, str]]:
    runs: list[_Run] = []
    roles: dict[int, str] = {}
    stop = 0
    for i, each in enumerate(given):
        place = f"{path}.roles[{i}]"
        if not isinstance(each, list) or len(each) not in (2, 3):
            raise ConversationError(f"is {shown(each)}; expected {_RUN}.", path=place)
        role, n_tokens, *index = each
        if role is not None and not isinstance(role, str):
            raise ConversationError(f"is {shown(role)}; expected a role or null.", path=f"{place}[0]")
        for j, number in enumerate(each[1:], 1):
            if type(number) is not int or number < 0:
                raise ConversationError(f"is {shown(number)}; expected a whole number.", path=f"{place}[{j}]")
        if role is None and index:
            raise ConversationError(
                f"is {index[0]}, and the role is null; expected no message.", path=f"{place}[2]"
            )
        stop += n_tokens
        message = NO_MESSAGE
        if role is not None:
            message = index[0] if index else max(roles, default=NO_MESSAGE) + 1
            if roles.setdefault(message, role) != role:
                raise ConversationError(
                    f"is {shown(role)}; expected {shown(roles[message])}, as before for message {message}.",
                    path=f"{place}[0]",
                )
        runs.append(_Run(stop, message))
    if stop != n_ids:
        raise ConversationError(f"covers {stop:,} of {counted(n_ids, 'token id')}.", path=f"{path}.roles")
    return runs, roles


def _said(
    roles: Mapping[int, str], messages: Sequence[Mapping[str, Any]] | None, path: str
) -> list[Mapping[str, Any]]:
    """Every message of the branch, by its role alone where its text is not recorded."""
    last = max(roles, default=NO_MESSAGE)
    if messages is None:
        # Not a range up to the last index, which could be any number.
        lacking = next((i for i in range(len(roles)) if i not in roles), None)
        if lacking is not None:
            raise ConversationError(
                f"has message {last} and none for message {lacking}; expected a run of every message, or "
                "messages.",
                path=f"{path}.roles",
            )
        return [{"role": roles[i]} for i in range(len(roles))]
    if last >= len(messages):
        raise ConversationError(
            f"has message {last}; expected one of {counted(len(messages), 'message')}.", path=f"{path}.roles"
        )
    for i, role in sorted(roles.items()):
        if messages[i]["role"] != role:
            raise ConversationError(
                f"is {shown(messages[i]['role'])}; expected {shown(role)}, as in roles.",
                path=f"{path}.messages[{i}].role",
            )
    return list(messages)


FORMAT = Format(
    name="tokens",
    fields="prompt_token_ids, completion_token_ids, mask, roles[[role, n_tokens, message_index]], "
    "is_content, logprobs, trainer_logprobs, messages, tools, metadata, or branches[] of these",
    has_logprobs=True,
    has_branches=True,
    example='{"id": "a", "prompt_token_ids": [1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198], '
    '"completion_token_ids": [19556, 17, 2], "roles": [["user", 6], ["assistant", 7]], '
    '"logprobs": [-0.5, -0.25, -0.125]}',
    matches=_matches,
    parse=_parse,
    holds_ids=_matches,
    token_id_keys=frozenset({"branches", "prompt_token_ids"}),
)
