"""`verifiers-results`: results.jsonl of verifiers evaluations, with or without the ids of every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tokscore.dataset.errors import ConversationError, counted
from tokscore.rendering.conversations.conversation import check_objects
from tokscore.rendering.conversations.trace import NO_PARENT, IdPlace, Node, NodeTokens, Trace, linear
from tokscore.rendering.conversations.values import kind_of
from tokscore.rendering.reading.fields.id_tree import IdTree
from tokscore.rendering.reading.fields.mask_nodes import Share, share_messages, shifted, unshared
from tokscore.rendering.reading.fields.message_tree import ModelCall, message_tree
from tokscore.rendering.reading.fields.messages import openai_message, openai_tools
from tokscore.rendering.reading.fields.values import (
    flag_array,
    get,
    id_array,
    logprob_array,
    metadata_text,
    need,
)
from tokscore.rendering.reading.formats.format import OPEN_KEYS, Format, Place

if TYPE_CHECKING:
    pass

_METADATA = (
    "example_id",
    "task",
    "env_id",
    "answer",
    "info",
    "reward",
    "metrics",
    "advantage",
    "error",
    "stop_condition",
    "is_completed",
    "is_truncated",
)
_IDS = "a list of token ids"
_FLAGS = "a list of true and false, one a token id"
_NO_IDS = NodeTokens(np.zeros(0, np.int32), np.zeros(0, np.int8))


def _matches(record: Mapping[str, Any]) -> bool:
    # TRL's logs of completions have a prompt, a completion and an advantage too.
    is_result = "reward" in record and "advantage" not in record
    return (
        "prompt" in record
        and "completion" in record
        and (is_result or "example_id" in record or isinstance(record.get("trajectory"), list))
    )


def _holds_ids(record: Mapping[str, Any]) -> bool:
    steps = record.get("trajectory")
    return isinstance(steps, list) and any(
        isinstance(step, dict) and isinstance(tokens := step.get("tokens"), dict) and "prompt_ids" in tokens
        for step in steps
    )


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    steps = check_objects(record.get("trajectory"), "$.trajectory") or []
    tokens = [
        get(step, "tokens", dict, f"$.trajectory[{i}]", "an object or null") for i, step in enumerate(steps)
    ]
    has_ids = any(each is not None for each in tokens)
    prompt = _messages(record, "prompt", "user", "$", allow_media=has_ids) or []
    completion = _messages(record, "completion", "assistant", "$", allow_media=has_ids) or []
    key = "tool_defs" if record.get("tool_defs") is not None else "tools"
    tools = openai_tools(record.get(key), f"$.{key}")
    metadata = metadata_text(record, _METADATA, advantages=_per_step(steps, "advantage"))
    if has_ids:
        return Trace(_step_nodes(steps, prompt, completion), tools, metadata=metadata)
    if not prompt and not completion:
        raise ConversationError("and completion are empty; expected messages.", path="$.prompt")
    branching = _branching_nodes(steps)
    if branching is not None:
        return Trace(branching, tools, metadata=metadata)
    nodes = [Node(NO_PARENT, (message,)) for message in prompt]
    nodes += [Node(NO_PARENT, (message,), message["role"] == "assistant") for message in completion]
    is_text = all(isinstance(record.get(each), str) for each in ("prompt", "completion"))
    return Trace(linear(nodes), tools, metadata=metadata, is_text=is_text)  # asked for as text, not as a chat


def _branching_nodes(steps: Sequence[Mapping[str, Any]]) -> list[Node] | None:
    """The messages of steps that do not follow each other, beginnings that they share once; otherwise None.

    Steps that do are the messages of the record, which may end with more.
    """
    calls: list[ModelCall] = []
    for i, step in enumerate(steps):
        path = f"$.trajectory[{i}]"
        said = _messages(step, "prompt", "user", path, allow_media=False)
        spoken = _messages(step, "completion", "assistant", path, allow_media=False)
        if not said or not spoken:
            return None
        calls.append(ModelCall(said, spoken))
    nodes = message_tree(calls)
    return None if all(node.parent == i - 1 for i, node in enumerate(nodes)) else nodes


def _per_step(steps: Sequence[Mapping[str, Any]], key: str) -> list[object] | None:
    values = [step.get(key) for step in steps]
    return values if any(value is not None for value in values) else None


def _messages(
    record: Mapping[str, Any], key: str, role: str, path: str, *, allow_media: bool
) -> list[dict[str, Any]] | None:
    """The messages at `key`; text becomes one message of that role."""
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise ConversationError(
            f"is {kind_of(value)}; expected a list of messages or text.", path=f"{path}.{key}"
        )
    return [
        openai_message(message, f"{path}.{key}[{i}]", allow_media=allow_media)
        for i, message in enumerate(value)
    ]


def _step_nodes(
    steps: Sequence[Mapping[str, Any]], prompt: list[dict[str, Any]], completion: list[dict[str, Any]]
) -> list[Node]:
    has_messages = _have_messages(steps)
    tree = IdTree()
    answers: list[int] = []
    for i, step in enumerate(steps):
        path = f"$.trajectory[{i}]"
        tokens = get(step, "tokens", dict, path, "an object or null")
        if tokens is None:
            raise ConversationError(
                "missing ids on some steps: this one has none; expected them on every step, or on none.",
                path=f"{path}.tokens",
            )
        before, answer = _prompt_tokens(tokens, path), _answer_tokens(tokens, path)
        said = _messages(step, "prompt", "user", path, allow_media=True)
        spoken = _messages(step, "completion", "assistant", path, allow_media=True)
        if i == 0:
            said = prompt if said is None else said
        if len(steps) == 1:
            spoken = completion if spoken is None else spoken
        parent, n_shared = tree.longest_prefix(before.token_ids)
        own = tuple((said or [])[tree.n_messages(parent) :])
        if own or n_shared < len(before.token_ids):
            rest = before.cut(n_shared, len(before.token_ids))
            parent = tree.add(Node(parent, own, tokens=rest))
        answers.append(tree.add(Node(parent, tuple(spoken or [{"role": "assistant"}]), True, answer)))
    if len(steps) == 1 or has_messages:
        return tree.nodes
    nodes = _with_answers(tree.nodes, answers, completion)
    if [message["role"] for message in completion] == ["assistant"] * len(steps):
        return nodes  # some environments list the answers of all steps
    return _with_messages(nodes, prompt, completion)


def _have_messages(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the steps carry their messages; those of the record stand in on the first and a single one."""
    having = [i for i, step in enumerate(steps) if step.get("prompt") or step.get("completion")]
    if not having or len(steps) == 1:
        return bool(having)
    for i, step in enumerate(steps):
        for key in ("prompt", "completion") if i else ("completion",):
            if step.get(key) is None:
                raise ConversationError(
                    f"is missing; expected messages on all steps, as on trajectory[{having[0]}], or on none.",
                    path=f"$.trajectory[{i}].{key}",
                )
    return True


def _with_answers(
    nodes: Sequence[Node], answers: Sequence[int], completion: Sequence[Mapping[str, Any]]
) -> list[Node]:
    """The nodes with the text of every step's answer, where the completion has one of each."""
    found = list(nodes)
    spoken = [message for message in completion if message["role"] == "assistant"]
    if len(spoken) == len(answers):
        for i, message in zip(answers, spoken, strict=True):
            found[i] = found[i]._replace(messages=(message,))
    return found


def _with_messages(
    nodes: list[Node], prompt: Sequence[Mapping[str, Any]], completion: Sequence[Mapping[str, Any]]
) -> list[Node]:
    """The nodes with the messages behind the prompt, which are those of the branch of the last step.

    Where it cannot be told which of its nodes they belong to, that branch shares no nodes with others and the
    first of them has all messages.

    Source:
        verifiers, `MultiTurnEnv.render_completion`: prompt and completion of the last step, without as many
        messages as the record's prompt has.
    """
    path = [len(nodes) - 1]
    while (parent := nodes[path[0]].parent) != NO_PARENT:
        path.insert(0, parent)
    root = nodes[path[0]]
    n_before = 0 if root.is_sampled else 1
    shares = share_messages(completion, [nodes[i].is_sampled for i in path[n_before:]])
    if shares is None or (path[0] != 0 and root.is_sampled):
        return _with_own_branch(nodes, path, unshared([*prompt, *completion], len(path)))
    own, before = {path[0]: tuple(prompt) if n_before else ()}, dict[int, tuple[Mapping[str, Any], ...]]()
    behind: tuple[Mapping[str, Any], ...] = ()
    for share in shares:
        if share.step is None:
            behind = share.messages
        else:
            own[path[n_before + share.step]] = share.messages
            before[path[n_before + share.step]], behind = behind, ()
    found: list[Node] = []
    places = {NO_PARENT: NO_PARENT}
    for i, node in enumerate(nodes):
        parent = places[node.parent]
        if before.get(i):
            found.append(Node(parent, before[i], tokens=_NO_IDS))
            parent = len(found) - 1
        tokens = node.tokens
        if i in own and tokens is not None:
            tokens = tokens._replace(is_by_mask=True)
        found.append(node._replace(parent=parent, messages=own.get(i, node.messages), tokens=tokens))
        places[i] = len(found) - 1
    if behind:
        found.append(Node(len(found) - 1, behind, tokens=_NO_IDS))
    return found


def _with_own_branch(nodes: Sequence[Node], path: Sequence[int], shares: Sequence[Share]) -> list[Node]:
    """The nodes with those of the last branch apart, which have other messages."""
    n_children = Counter(node.parent for node in nodes)
    n_shared = next((i for i in range(len(path), 0, -1) if n_children[path[i - 1]] > 1), 0)
    alone = set(path[n_shared:])
    found: list[Node] = []
    places = {NO_PARENT: NO_PARENT}
    for i, node in enumerate(nodes):
        if i not in alone:
            found.append(node._replace(parent=places[node.parent]))
            places[i] = len(found) - 1
    own = [nodes[i]._replace(messages=share.messages) for i, share in zip(path, shares, strict=True)]
    return [*found, *shifted(linear(own), len(found))]


def _prompt_tokens(tokens: Mapping[str, Any], step: str) -> NodeTokens:
    path = f"{step}.tokens"
    ids = id_array(need(tokens, "prompt_ids", list, path, _IDS), f"{path}.prompt_ids")
    flags = get(tokens, "prompt_mask", list, path, _FLAGS)
    mask = np.zeros(len(ids), bool) if flags is None else flag_array(flags, len(ids), f"{path}.prompt_mask")
    return NodeTokens(ids, mask.astype(np.int8), places=(IdPlace(f"{path}.prompt_ids", 0, len(ids)),))


def _answer_tokens(tokens: Mapping[str, Any], step: str) -> NodeTokens:
    path = f"{step}.tokens"
    ids = id_array(need(tokens, "completion_ids", list, path, _IDS), f"{path}.completion_ids")
    n = len(ids)
    flags = get(tokens, "completion_mask", list, path, _FLAGS)
    mask = np.ones(n, bool) if flags is None else flag_array(flags, n, f"{path}.completion_mask")
    # verifiers writes an empty list where there are none.
    given = get(tokens, "completion_logprobs", list, path, "a list of numbers, one a completion id") or None
    if given is not None and len(given) != n:
        raise ConversationError(
            f"has {counted(len(given), 'value')} for {counted(n, 'token id')}.",
            path=f"{path}.completion_logprobs",
        )
    logprobs = None if given is None else logprob_array(given, f"{path}.completion_logprobs")
    places = (IdPlace(f"{path}.completion_ids", 0, n),)
    return NodeTokens(ids, mask.astype(np.int8), logprobs=logprobs, places=places)


FORMAT = Format(
    name="verifiers-results",
    fields="prompt, completion, reward, tool_defs|tools, trajectory[prompt, completion, tokens[prompt_ids, "
    "prompt_mask, completion_ids, completion_mask, completion_logprobs]]",
    has_logprobs=True,
    has_branches=True,
    example='{"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": '
    '"Hello!"}], "reward": 1.0, "trajectory": [{"tokens": {"prompt_ids": '
    '[1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198], "prompt_mask": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0], '
    '"completion_ids": [19556, 17, 2], "completion_mask": [1, 1, 1], "completion_logprobs": '
    "[-0.5, -0.25, -0.125]}}]}",
    matches=_matches,
    parse=_parse,
    holds_ids=_holds_ids,
    token_id_keys=frozenset({"trajectory"}),
    open_keys=OPEN_KEYS | {"tool_defs"},
    is_served=True,
)
