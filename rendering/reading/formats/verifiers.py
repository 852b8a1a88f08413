"""`verifiers`: traces.jsonl of verifiers environments, also as prime-rl writes them for its rollouts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokscore.dataset.errors import ConversationError, counted
from tokscore.rendering.conversations.conversation import check_objects
from tokscore.rendering.conversations.trace import (
    NO_PARENT,
    IdPlace,
    Node,
    NodeTokens,
    Trace,
    Usage,
    check_parents,
)
from tokscore.rendering.reading.fields.mask_nodes import shifted
from tokscore.rendering.reading.fields.messages import openai_message
from tokscore.rendering.reading.fields.root_tools import shared_tools
from tokscore.rendering.reading.fields.usage import check_counts
from tokscore.rendering.reading.fields.values import (
    flag_array,
    get,
    id_array,
    logprob_array,
    metadata_text,
    need,
    object_at,
    spread,
)
from tokscore.rendering.reading.formats.format import Format, Place

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP = re.compile(r"step_(\d+)")
_METADATA = ("env", "task", "group", "run", "ok", "errors")
_PER_NODE = ("advantages", "reference_logprobs", "entropies")
_NUMBERS = "a list of numbers"


def step_of(path: Path) -> int | None:
    """The training step in the name of the innermost folder `step_N`, None without one."""
    found = [match for part in path.parent.parts if (match := _STEP.fullmatch(part))]
    return int(found[-1][1]) if found else None


def _matches(record: Mapping[str, Any]) -> bool:
    traces = record.get("traces")
    if isinstance(traces, list):
        return all(isinstance(each, dict) and "nodes" in each for each in traces) and (
            bool(traces) or "task" in record
        )
    nodes = record.get("nodes")
    first = nodes[0] if isinstance(nodes, list) and nodes else None
    return isinstance(first, dict) and "message" in first


def _holds_ids(record: Mapping[str, Any]) -> bool:
    traces = record.get("traces") if "nodes" not in record else [record]
    return isinstance(traces, list) and any(
        isinstance(node, dict) and bool(node.get("token_ids"))
        for trace in traces
        if isinstance(trace, dict) and isinstance(trace.get("nodes"), list)
        for node in trace["nodes"]
    )


def _parse(record: Mapping[str, Any], place: Place) -> Trace:
    traces: Sequence[tuple[Mapping[str, Any], str]] = [(record, "$")]
    if "nodes" not in record:
        given = need(record, "traces", list, "$", "a list of traces")
        if not given:
            raise ConversationError("is empty; expected a list with at least one trace.", path="$.traces")
        traces = [(object_at(each, f"$.traces[{i}]"), f"$.traces[{i}]") for i, each in enumerate(given)]
    nodes: list[Node] = []
    per_node: dict[str, list[object]] = {key: [] for key in _PER_NODE}
    for each, path in traces:
        objects = _node_objects(each, path)
        nodes += shifted(_nodes(each, objects, path), len(nodes))
        for key, values in per_node.items():
            values += (get(node, key, list, f"{path}.nodes[{i}]", _NUMBERS) for i, node in enumerate(objects))
    is_rendered = any(node.tokens is None for node in nodes)
    tools, differing = shared_tools(traces, is_rendered=is_rendered)
    rewards = [each.get("rewards") for each, _ in traces]
    more: dict[str, object] = {
        "rewards": rewards[0] if len(rewards) == 1 else None if not any(rewards) else rewards,
        "tools": differing,
        "step": step_of(place.path),
    }
    more |= {key: values for key, values in per_node.items() if any(value is not None for value in values)}
    return Trace(nodes, tools, metadata=metadata_text(record, _METADATA, **more))


def _node_objects(trace: Mapping[str, Any], path: str) -> list[Mapping[str, Any]]:
    given = need(trace, "nodes", list, path, "a list of nodes")
    if not given:
        raise ConversationError("is empty; expected a list with at least one node.", path=f"{path}.nodes")
    return [object_at(node, f"{path}.nodes[{i}]") for i, node in enumerate(given)]


def _nodes(trace: Mapping[str, Any], objects: Sequence[Mapping[str, Any]], path: str) -> list[Node]:
    parents = [_parent(node, f"{path}.nodes[{i}]") for i, node in enumerate(objects)]
    check_parents(parents, f"{path}.nodes")
    usages = _usages(trace, len(objects), path)
    nodes = []
    for i, (parent, each) in enumerate(zip(parents, objects, strict=True)):
        place = f"{path}.nodes[{i}]"
        is_sampled = bool(get(each, "sampled", bool, place, "true or false"))
        tokens = _tokens(each, is_sampled, place)
        message = need(each, "message", dict, place, "a message")
        message = openai_message(message, f"{place}.message", allow_media=tokens is not None)
        usage = _usage(each, place) or usages.get(i)
        nodes.append(Node(parent, (message,), is_sampled, tokens, usage))
    with_ids = [i for i, node in enumerate(nodes) if node.tokens is not None]
    if with_ids:
        # Where a renderer cannot tell the ids of an input message apart, they lie in the answer behind it.
        nodes = [
            node._replace(tokens=_NO_TOKENS)
            if node.tokens is None and not node.is_sampled and each.get("token_ids") == []
            else node
            for node, each in zip(nodes, objects, strict=True)
        ]
    lacking = next((i for i, node in enumerate(nodes) if node.tokens is None), None)
    if with_ids and lacking is not None:
        raise ConversationError(
            f"missing ids on some nodes: this one has none, and nodes[{with_ids[0]}] has "
            f"{len(objects[with_ids[0]]['token_ids']):,}; expected ids on every node of a trace, or on none.",
            path=f"{path}.nodes[{lacking}].token_ids",
        )
    return nodes


_NO_TOKENS = NodeTokens(np.zeros(0, np.int32), np.zeros(0, np.int8))


def _parent(node: Mapping[str, Any], path: str) -> int:
    parent = get(node, "parent", int, path, "an earlier node's index or null")
    if parent == NO_PARENT:
        raise ConversationError("is -1, no node; expected an earlier node or null.", path=f"{path}.parent")
    return NO_PARENT if parent is None else parent


def _tokens(node: Mapping[str, Any], is_sampled: bool, path: str) -> NodeTokens | None:
    ids = get(node, "token_ids", list, path, "a list of token ids") or []
    n = len(ids)
    token_ids = id_array(ids, f"{path}.token_ids")
    flags = get(node, "mask", list, path, "a list of true and false, one a token id")
    if flags and not ids:
        raise ConversationError(
            f"is missing or empty beside a mask of {counted(len(flags), 'value')}; expected as many ids.",
            path=f"{path}.token_ids",
        )
    mask = None if flags is None else flag_array(flags, n, f"{path}.mask")
    content = get(node, "is_content", list, path, "a list of true and false, one a token id")
    logprobs = _logprobs(node, "logprobs", n, mask, path)
    trainer_logprobs = _logprobs(node, "trainer_logprobs", n, mask, path)
    if not ids:
        return None
    return NodeTokens(
        token_ids,
        np.full(n, -1 if is_sampled else 0, np.int8) if mask is None else mask.astype(np.int8),
        flag_array(content, n, f"{path}.is_content") if content else None,
        logprobs,
        places=(IdPlace(f"{path}.token_ids", 0, n),),
        trainer_logprobs=trainer_logprobs,
    )


def _logprobs(
    node: Mapping[str, Any], key: str, n_ids: int, mask: NDArray[np.bool_] | None, path: str
) -> NDArray[np.float32] | None:
    # verifiers writes an empty list where there are none.
    given = get(node, key, list, path, _NUMBERS) or None
    if given is None:
        return None
    path = f"{path}.{key}"
    values = logprob_array(given, path)
    if mask is None and len(values) != n_ids:
        raise ConversationError(
            f"has {counted(len(values), 'value')} for {counted(n_ids, 'token id')}, and there is no mask; "
            "expected one for each, or a mask that holds true for those that have one.",
            path=path,
        )
    return spread(values, np.ones(n_ids, bool) if mask is None else mask, path)


def _usages(trace: Mapping[str, Any], n_nodes: int, path: str) -> dict[int, Usage]:
    """The usage that the calls of a trace report, by the node of their answer."""
    found: dict[int, Usage] = {}
    for i, call in enumerate(check_objects(trace.get("calls"), f"{path}.calls") or ()):
        place = f"{path}.calls[{i}]"
        node = get(call, "node", int, place, "a node's index or null")
        if node is None:
            continue
        if not 0 <= node < n_nodes:
            raise ConversationError(
                f"is {node}, no node; expected 0 to {n_nodes - 1} or null.", path=f"{place}.node"
            )
        usage = _usage(call, place)
        if usage is None:
            continue
        if found.setdefault(node, usage) != usage:
            raise ConversationError(
                f"is {node}, of which a call before reports another usage; expected one call a node.",
                path=f"{place}.node",
            )
    return found


def _usage(record: Mapping[str, Any], path: str) -> Usage | None:
    usage = get(record, "usage", dict, path, "an object")
    if usage is None:
        return None
    path = f"{path}.usage"
    # prompt_tokens is without what the server took from its prefix cache.
    cached = get(usage, "cached_input_tokens", int, path, "a number of tokens") or 0
    n_prompt = need(usage, "prompt_tokens", int, path, "a number of tokens")
    n_completion = need(usage, "completion_tokens", int, path, "a number of tokens")
    check_counts((n_prompt, n_completion), path)
    if cached < 0:
        raise ConversationError(
            f"is {cached}; expected a number of tokens, 0 or more.", path=f"{path}.cached_input_tokens"
        )
    return Usage(n_prompt + cached, n_completion)


FORMAT = Format(
    name="verifiers",
    fields="traces[nodes[parent, message, sampled, token_ids, mask, is_content, logprobs, "
    "trainer_logprobs, advantages, reference_logprobs, entropies, usage, tools], calls[node, usage], tools, "
    "rewards], env, task, group, run, ok, errors",
    has_logprobs=True,
    has_branches=True,
    example='{"traces": [{"nodes": [{"parent": null, "message": {"role": "user", "content": "Hi"}, '
    '"token_ids": [1, 4093, 198, 26843, 2, 198], "mask": [false, false, false, false, false, false]}, '
    '{"parent": 0, "sampled": true, "message": {"role": "assistant", "content": "Hello!"}, "token_ids": '
    '[1, 520, 9531, 198, 19556, 17, 2], "mask": [false, false, false, false, true, true, true], '
    '"logprobs": [-0.5, -0.25, -0.125]}]}]}',
    matches=_matches,
    parse=_parse,
    holds_ids=_holds_ids,
    token_id_keys=frozenset({"nodes", "traces"}),
    is_served=True,
)
