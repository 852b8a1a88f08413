"""`atropos`: groups of scored trajectories that Atropos environments send to a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tokscore.dataset.errors import ConversationError, counted
from tokscore.rendering.conversations.conversation import check_messages
from tokscore.rendering.conversations.trace import IdPlace, Node, NodeTokens, Trace
from tokscore.rendering.conversations.values import kind_of, shown
from tokscore.rendering.reading.fields.mask_nodes import mask_nodes, shifted
from tokscore.rendering.reading.fields.values import get, id_array, logprob_array, metadata_text, need
from tokscore.rendering.reading.formats.format import Format, Place

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOT_TRAINED = -100
_METADATA = (
    "scores",
    "advantages",
    "ref_logprobs",
    "group_overrides",
    "overrides",
    "generation_params",
    "env_id",
)


def _matches(record: Mapping[str, Any]) -> bool:
    return all(
        isinstance(lists := record.get(key), list) and all(isinstance(each, list) for each in lists)
        for key in ("tokens", "masks")
    )


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    groups = need(record, "tokens", list, "$", "a list of lists of token ids")
    if not groups:
        raise ConversationError("is empty; expected at least one trajectory.", path="$.tokens")
    masks = need(record, "masks", list, "$", "a list of lists of token ids and -100")
    if len(masks) != len(groups):
        raise ConversationError(
            f"has {counted(len(masks), 'value')} for {counted(len(groups), 'trajectory', 'trajectories')}.",
            path="$.masks",
        )
    logprobs = _per_branch(record, "inference_logprobs", len(groups), "a list of lists of numbers")
    messages = _per_branch(record, "messages", len(groups), "a list of lists of messages")
    nodes: list[Node] = []
    for i, given in enumerate(groups):
        branch = mask_nodes(
            _tokens(given, masks[i], logprobs[i], i),
            None
            if messages[i] is None
            else check_messages(messages[i], f"$.messages[{i}]", allow_media=True),
        )
        nodes += shifted(branch, len(nodes))
    return Trace(nodes, metadata=metadata_text(record, _METADATA))


def _per_branch(record: Mapping[str, Any], key: str, n_branches: int, words: str) -> Sequence[Any]:
    values = get(record, key, list, "$", words)
    if values is None:
        return [None] * n_branches
    if len(values) != n_branches:
        raise ConversationError(
            f"has {counted(len(values), 'value')} for {counted(n_branches, 'trajectory', 'trajectories')}.",
            path=f"$.{key}",
        )
    return values


def _tokens(given: object, mask: object, logprobs: object, branch: int) -> NodeTokens:
    ids = _list(given, f"$.tokens[{branch}]")
    if not ids:
        raise ConversationError("is empty; expected at least one token id.", path=f"$.tokens[{branch}]")
    token_ids = id_array(ids, f"$.tokens[{branch}]")
    path = f"$.masks[{branch}]"
    trained = _list(mask, path)
    if len(trained) != len(ids):
        raise ConversationError(
            f"has {counted(len(trained), 'value')} for {counted(len(ids), 'token id')}.", path=path
        )
    for i, (label, token_id) in enumerate(zip(trained, ids, strict=True)):
        if type(label) is not int or label not in (token_id, _NOT_TRAINED):
            raise ConversationError(
                f"is {shown(label)}; expected the token id {token_id} or {_NOT_TRAINED}.", path=f"{path}[{i}]"
            )
    sampled = np.array(trained) != _NOT_TRAINED
    path = f"$.inference_logprobs[{branch}]"
    return NodeTokens(
        token_ids,
        sampled.astype(np.int8),
        logprobs=None if logprobs is None else _logprobs(_list(logprobs, path), sampled, path),
        places=(IdPlace(f"$.tokens[{branch}]", 0, len(ids)),),
    )


def _logprobs(given: Sequence[Any], sampled: NDArray[np.bool_], path: str) -> NDArray[np.float32]:
    if len(given) != len(sampled):
        raise ConversationError(
            f"has {counted(len(given), 'value')} for {counted(len(sampled), 'token id')}.", path=path
        )
    # Atropos writes 1.0, no logprob, for the tokens of a prompt; some environments write 0.
    return logprob_array(
        [
            None if not own and isinstance(value, (int, float)) and value >= 0 else value
            for value, own in zip(given, sampled.tolist(), strict=True)
        ],
        path,
    )


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConversationError(f"is {kind_of(value)}; expected a list.", path=path)
    return value


FORMAT = Format(
    name="atropos",
    fields="tokens[][], masks[][], inference_logprobs[][], messages[][], scores, advantages, ref_logprobs, "
    "overrides, group_overrides",
    has_logprobs=True,
    has_branches=True,
    example='{"tokens": [[1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198, 19556, 17, 2]], "masks": '
    "[[-100, -100, -100, -100, -100, -100, -100, -100, -100, -100, 19556, 17, 2]], "
    '"inference_logprobs": [[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -0.5, -0.25, -0.125]], '
    '"messages": [[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]], '
    '"scores": [1.0]}',
    matches=_matches,
    parse=_parse,
    holds_ids=_matches,
    token_id_keys=frozenset({"tokens"}),
)
