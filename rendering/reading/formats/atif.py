"""`atif`: trajectories of Harbor's Agent Trajectory Interchange Format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokscore.dataset.errors import ConversationError, counted
from tokscore.rendering.conversations.conversation import check_message
from tokscore.rendering.conversations.trace import NO_PARENT, IdPlace, Node, NodeTokens, Trace, linear
from tokscore.rendering.conversations.values import shown
from tokscore.rendering.reading.fields.id_tree import IdTree
from tokscore.rendering.reading.fields.messages import answer_message, joined_text, openai_tools, tool_call
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
from tokscore.rendering.reading.formats.openai_batch import IDS_UNUSED_STATUS

SUBAGENTS_STATUS = "subagents_left_out"
_ROLES: Mapping[str, str] = {"system": "system", "user": "user", "agent": "assistant"}
_IDS = "a list of token ids"
_ID_KEYS = ("prompt_token_ids", "completion_token_ids")
_NO_IDS = NodeTokens(np.zeros(0, np.int32), np.zeros(0, np.int8))
_METADATA = ("schema_version", "session_id", "final_metrics", "notes")


class _Step(NamedTuple):
    """One step of the agent or of its surroundings.

    Attributes:
        messages: Its own, then the results that came back.
        metrics: Of the request that made it, None where no model did.
        path: JSON path of the metrics.
    """

    messages: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, Any] | None
    path: str


def _matches(record: Mapping[str, Any]) -> bool:
    if not isinstance(record.get("steps"), list):
        return False
    if str(record.get("schema_version")).startswith("ATIF"):
        return True
    sources = [*_ROLES]  # a list, since what a record has there may have no hash
    return isinstance(record.get("agent"), dict) and all(
        isinstance(step, dict) and step.get("source") in sources for step in record["steps"][:1]
    )


def _holds_ids(record: Mapping[str, Any]) -> bool:
    steps = record.get("steps")
    return isinstance(steps, list) and any(
        isinstance(step, dict)
        and isinstance(metrics := step.get("metrics"), dict)
        and all(isinstance(metrics.get(key), list) for key in _ID_KEYS)
        for step in steps
    )


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    given = need(record, "steps", list, "$", "a list of steps")
    steps = [_step(object_at(each, f"$.steps[{i}]"), f"$.steps[{i}]") for i, each in enumerate(given)]
    if not any(step.messages for step in steps):
        raise ConversationError("is empty; expected at least one step with a message.", path="$.steps")
    agent = get(record, "agent", dict, "$", "an object") or {}
    sampled = [step.metrics for step in steps if step.metrics is not None]
    with_ids = [metrics for metrics in sampled if all(metrics.get(key) for key in _ID_KEYS)]
    has_ids = bool(with_ids) and len(with_ids) == len(sampled)
    has_unused = not has_ids and any(metrics.get(key) for metrics in sampled for key in _ID_KEYS)
    statuses = [IDS_UNUSED_STATUS] if has_unused else []
    if get(record, "subagent_trajectories", list, "$", "a list of trajectories"):
        statuses.append(SUBAGENTS_STATUS)
    return Trace(
        _id_nodes(steps) if has_ids else _nodes(steps),
        openai_tools(agent.get("tool_definitions"), "$.agent.tool_definitions"),
        metadata=metadata_text(
            record, _METADATA, agent={k: v for k, v in agent.items() if k != "tool_definitions"}
        ),
        status=",".join(statuses) or None,
    )


def _step(step: Mapping[str, Any], path: str) -> _Step:
    source = need(step, "source", str, path, "system, user or agent")
    if source not in _ROLES:
        raise ConversationError(f"is {shown(source)}; expected system, user or agent.", path=f"{path}.source")
    text = joined_text(step.get("message"), f"{path}.message")
    if source != "agent":
        messages = [{"role": _ROLES[source], "content": text or ""}]
        return _Step([*(messages if text else ()), *_results(step, path)], None, path)
    calls = [
        _call(object_at(call, f"{path}.tool_calls[{i}]"), f"{path}.tool_calls[{i}]")
        for i, call in enumerate(get(step, "tool_calls", list, path, "a list of tool calls") or ())
    ]
    message = answer_message(text, get(step, "reasoning_content", str, path, "text"), calls)
    check_message(message, path)
    metrics = get(step, "metrics", dict, path, "an object") or {}
    no_model = (
        step.get("is_copied_context") is True or get(step, "llm_call_count", int, path, "a number") == 0
    )
    return _Step([message, *_results(step, path)], None if no_model else metrics, f"{path}.metrics")


def _call(call: Mapping[str, Any], path: str) -> dict[str, Any]:
    name = need(call, "function_name", str, path, "the name of a tool")
    return tool_call(name, call.get("arguments", {}), call.get("tool_call_id"))


def _results(step: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """What came back: results of calls as tools, others as the user, who shows them to the agent."""
    observation = get(step, "observation", dict, path, "an object")
    if observation is None:
        return []
    path = f"{path}.observation"
    messages: list[dict[str, Any]] = []
    for i, each in enumerate(get(observation, "results", list, path, "a list of results") or ()):
        place = f"{path}.results[{i}]"
        result = object_at(each, place)
        content = joined_text(result.get("content"), f"{place}.content")
        call_id = get(result, "source_call_id", str, place, "the id of a call")
        if call_id is not None:
            messages.append({"role": "tool", "content": content or "", "tool_call_id": call_id})
        elif content is not None:
            messages.append({"role": "user", "content": content})
    return messages


def _nodes(steps: Sequence[_Step]) -> list[Node]:
    nodes: list[Node] = []
    for step in steps:
        for i, message in enumerate(step.messages):
            is_sampled = i == 0 and step.metrics is not None
            usage = usage_of(step.metrics, step.path) if is_sampled and step.metrics is not None else None
            nodes.append(Node(NO_PARENT, (message,), is_sampled, usage=usage))
    return linear(nodes)


def _id_nodes(steps: Sequence[_Step]) -> list[Node]:
    tree = IdTree()
    before: list[Mapping[str, Any]] = []
    last = NO_PARENT
    for step in steps:
        if step.metrics is None:
            before += step.messages
            continue
        answer, *results = step.messages
        prompt = _prompt_tokens(step.metrics, step.path)
        parent, n_shared = tree.longest_prefix(prompt.token_ids)
        own = tuple(before[tree.n_messages(parent) :])
        if own or n_shared < len(prompt.token_ids):
            rest = prompt.cut(n_shared, len(prompt.token_ids))
            parent = tree.add(Node(parent, own, tokens=rest))
        last = tree.add(Node(parent, (answer,), True, _answer_tokens(step.metrics, step.path)))
        before += [answer, *results]
    behind = tuple(before[tree.n_messages(last) :])
    if behind:
        tree.add(Node(last, behind, tokens=_NO_IDS))
    return tree.nodes


def _prompt_tokens(metrics: Mapping[str, Any], path: str) -> NodeTokens:
    path, given = f"{path}.prompt_token_ids", need(metrics, "prompt_token_ids", list, path, _IDS)
    ids = id_array(given, path)
    return NodeTokens(ids, np.zeros(len(ids), np.int8), places=(IdPlace(path, 0, len(ids)),))


def _answer_tokens(metrics: Mapping[str, Any], path: str) -> NodeTokens:
    given = need(metrics, "completion_token_ids", list, path, _IDS)
    ids = id_array(given, f"{path}.completion_token_ids")
    logprobs = get(metrics, "logprobs", list, path, "a list of numbers, one a completion id")
    if logprobs is not None and len(logprobs) != len(ids):
        raise ConversationError(
            f"has {counted(len(logprobs), 'value')} for {counted(len(ids), 'token id')}.",
            path=f"{path}.logprobs",
        )
    return NodeTokens(
        ids,
        np.ones(len(ids), np.int8),
        logprobs=None if logprobs is None else logprob_array(logprobs, f"{path}.logprobs"),
        places=(IdPlace(f"{path}.completion_token_ids", 0, len(ids)),),
    )


FORMAT = Format(
    name="atif",
    fields="steps[source, message, reasoning_content, tool_calls[tool_call_id, function_name, arguments], "
    "observation.results[source_call_id, content], metrics[prompt_token_ids, completion_token_ids, logprobs, "
    "prompt_tokens, completion_tokens], is_copied_context, llm_call_count], agent.tool_definitions, "
    "session_id, final_metrics. Ids are read where every step of the agent has those of its prompt and "
    "its completion",
    has_logprobs=True,
    has_branches=True,
    example='{"schema_version": "ATIF-v1.4", "session_id": "a", "agent": {"name": "m", "version": "1"}, '
    '"steps": [{"step_id": 1, "source": "user", "message": "Hi"}, {"step_id": 2, "source": "agent", '
    '"message": "Hello!", "metrics": {"prompt_token_ids": [1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198], '
    '"completion_token_ids": [19556, 17, 2], "logprobs": [-0.5, -0.25, -0.125]}}]}',
    matches=_matches,
    parse=_parse,
    is_served=True,
    holds_ids=_holds_ids,
    token_id_keys=frozenset({"steps"}),
    id_keys=("trajectory_id", "session_id", "id"),
)
