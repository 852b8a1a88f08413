"""Tools of the branches of verifiers' traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.reading.fields.message_tree import Tools
from tokscore.rendering.reading.fields.messages import openai_tools


def shared_tools(
    traces: Sequence[tuple[Mapping[str, Any], str]], *, is_rendered: bool
) -> tuple[Tools, list[Tools] | None]:
    """The tools that all branches share, or else those of each.

    Args:
        traces: JSON objects with checked nodes, and their JSON paths.
        is_rendered: Some nodes have no token ids.

    Raises:
        ConversationError: They are no tools, or differ though they are rendered.
    """
    found = [each for trace, path in traces for each in _of_roots(trace, path)]
    first, first_path = found[0]
    other = next((path for tools, path in found if tools != first), None)
    if other is None:
        return first, None
    if not is_rendered:
        return None, [tools for tools, _ in found]
    first_owner = first_path.removeprefix("$.").removesuffix(".tools")
    raise ConversationError(
        f"differs from the tools of {first_owner}, and some nodes have no token ids; expected the same tools "
        "for all that is rendered of a record.",
        path=other,
    )


def _of_roots(trace: Mapping[str, Any], path: str) -> Iterator[tuple[Tools, str]]:
    """Those that each root node has, of which the trace's own are the union; without any, the trace's own."""
    roots = [(node, i) for i, node in enumerate(trace["nodes"]) if node.get("parent") is None]
    if not any("tools" in node for node, _ in roots):
        yield openai_tools(trace.get("tools"), f"{path}.tools"), f"{path}.tools"
        return
    for node, i in roots:
        place = f"{path}.nodes[{i}].tools"
        yield openai_tools(node.get("tools"), place), place
