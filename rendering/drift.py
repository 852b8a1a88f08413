"""Where rendering a recorded conversation again would give other ids than the model really saw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.dataset.errors import ConversationError, InputError
from tokscore.dataset.tokens import NO_MESSAGE, RenderedTokens
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.documents.windows import Window
from tokscore.rendering.reading.files import Line
from tokscore.rendering.reading.formats.text import NAME as TEXT
from tokscore.rendering.reading.plan import read_lines
from tokscore.rendering.reading.records import failure_at
from tokscore.rendering.recorded_ids.alignment import common_prefix, print_closest
from tokscore.rendering.recorded_ids.attribute import attribute_recorded, has_texts, joined_ids
from tokscore.rendering.recorded_ids.branch import RecordedBranch
from tokscore.rendering.templates.origins import REASONING_FIELDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.dataset.manifest import Part
    from tokscore.dataset.tokens import FailedConversation
    from tokscore.rendering.attribution.renderer import Renderer
    from tokscore.rendering.source import ConversationSource

_SHOWN_TOKENS = 6
_LONGEST_WORD = 200
_END_OF_REASONING = "</think>"


class DriftKind(StrEnum):
    """Why ids differ, judged at the first place where they do."""

    BOUNDARY_MERGE = "boundary_merge"  # the same text in other tokens
    DROPPED_REASONING = "dropped_reasoning"  # the template leaves out reasoning that the model saw
    TOOL_JSON = "tool_json"  # a tool call is written otherwise
    SPECIAL_TOKEN = "special_token"  # noqa: S105  a control token on one side alone
    WHITESPACE = "whitespace"  # only white space differs there
    TRUNCATED = "truncated"  # the record ends inside an answer, as at a limit on its length; no drift
    OTHER = "other"
    REFUSED = "refused"  # the template does not render the messages at all


class Drift(NamedTuple):
    """How the rendering of one branch differs from its recorded ids.

    Attributes:
        conversation_id: As in a dataset.
        branch: Of the record.
        source_file: Base name of the input.
        source_line: 1-based line.
        n_tokens: Recorded ids.
        n_rendered: Ids of the rendering; 0 where it was refused.
        position: First token that differs, None where none does.
        kind: Why; None where nothing differs.
        n_after: Recorded tokens from there on.
        message_index: Message of that token in the record, -1 for none.
        role: Its role.
        recorded: Text of the recorded tokens from there on, shortened.
        rendered: The same of the rendering, or why it was refused.
    """

    conversation_id: str
    branch: int
    source_file: str
    source_line: int
    n_tokens: int
    n_rendered: int
    position: int | None
    kind: DriftKind | None
    n_after: int
    message_index: int
    role: str | None
    recorded: str
    rendered: str


class NotRecorded(NamedTuple):
    """A branch without recorded ids, or beside others without their text; there is nothing to compare.

    Attributes:
        conversation_id: As in a dataset.
    """

    conversation_id: str


def drift(source: ConversationSource) -> Iterator[Drift | NotRecorded | FailedConversation]:
    """Render every branch that has recorded ids and compare, in the order of the input.

    Args:
        source: Planned conversations.

    Raises:
        InputError: They are plain texts.
    """
    if source.plan.format.name == TEXT:
        raise InputError(
            f"the input has the format {TEXT}, which no template prints and of which no ids were recorded; "
            "expected trajectories with token ids."
        )
    for part in source.parts:
        for line in read_lines(source.plan, part):
            yield from _drift_of_line(source, line, part)


def _drift_of_line(
    source: ConversationSource, line: Line, part: Part
) -> Iterator[Drift | NotRecorded | FailedConversation]:
    name = source.inputs[part.file].name
    try:
        items = [item for item in source.parse(line, part) if not isinstance(item, Window)]
        # Of several branches, a record may hold the text of some; where it holds none, that is an error.
        has_text = any(has_texts(_conversation(item).messages) for item in items)
        for branch, item in enumerate(items):
            if (
                not isinstance(item, RecordedBranch)
                or item.is_text  # which was tokenised here
                or (has_text and not has_texts(item.conversation.messages))
            ):
                yield NotRecorded(line.conversation_id)
                continue
            found = find_drift(item, source.renderer)
            yield found._replace(
                conversation_id=line.conversation_id, branch=branch, source_file=name, source_line=line.number
            )
    except ConversationError as error:
        yield failure_at(line, name, error)


def _conversation(item: Conversation | RecordedBranch) -> Conversation:
    return item if isinstance(item, Conversation) else item.conversation


def find_drift(branch: RecordedBranch, renderer: Renderer) -> Drift:
    """The first difference between the recorded ids of a branch and the template's rendering of its messages.

    A rendering may go on behind the recorded ids with template text, as behind the last stop.

    Args:
        branch: With recorded ids and messages.
        renderer: The template and its tokenizer.

    Raises:
        ConversationError: The record holds no messages, or ids that are none of the tokenizer's.
    """
    ids = joined_ids(branch.nodes)
    if not has_texts(branch.conversation.messages):
        raise ConversationError(
            "holds token ids but no text of its messages that could be rendered again; drift needs both."
        )
    recorded = attribute_recorded(branch, renderer).tokens
    text = renderer.tokenizer.text_of(ids)
    conversation, _ = print_closest(branch.conversation, renderer, text)
    same = Drift("", 0, "", 0, len(ids), len(ids), None, None, 0, NO_MESSAGE, None, "", "")
    refused = ""
    best: Drift | None = None
    for with_prompt in (False, True):  # a record may end with a generation prompt that never came
        try:
            rendered = renderer.with_generation_prompt(with_prompt).render(conversation)
        except ConversationError as error:
            refused = str(error)
            continue
        position = first_difference(ids, rendered)
        if position is None:
            return same._replace(n_rendered=len(rendered))
        if best is None or position > (best.position or 0):
            best = _judge(same, branch, recorded, rendered, position, renderer)
    if best is None:
        return same._replace(
            n_rendered=0, position=0, kind=DriftKind.REFUSED, n_after=len(ids), rendered=refused
        )
    return best


def first_difference(token_ids: NDArray[np.int32], rendered: RenderedTokens) -> int | None:
    """First position at which a rendering leaves recorded ids, None where it does not.

    Args:
        token_ids: As recorded, int32, shape [tokens].
        rendered: May go on behind them with tokens that are neither content nor sampled.
    """
    n = min(len(token_ids), len(rendered))
    differing = np.flatnonzero(token_ids[:n] != rendered.token_ids[:n])
    if len(differing):
        return int(differing[0])
    if len(token_ids) > n:
        return n
    rest = rendered[n:]
    return None if not (rest.is_content | (rest.sampled_mask == 1)).any() else n


def _judge(
    same: Drift,
    branch: RecordedBranch,
    recorded: RenderedTokens,
    rendered: RenderedTokens,
    position: int,
    renderer: Renderer,
) -> Drift:
    tokenizer = renderer.tokenizer
    n = len(recorded)
    message = int(recorded.message_indices[position]) if position < n else NO_MESSAGE
    end = position + _SHOWN_TOKENS
    return same._replace(
        n_rendered=len(rendered),
        position=position,
        kind=_kind(branch, recorded, rendered, position, renderer),
        n_after=n - position,
        message_index=message,
        role=None if message == NO_MESSAGE else recorded.messages[message].role,
        recorded=str(tokenizer.hf.decode(recorded.token_ids[position:end].tolist())),
        rendered=str(tokenizer.hf.decode(rendered.token_ids[position:end].tolist())),
    )


def _kind(
    branch: RecordedBranch,
    recorded: RenderedTokens,
    rendered: RenderedTokens,
    position: int,
    renderer: Renderer,
) -> DriftKind:
    ours, theirs = recorded.text, rendered.text
    n = len(recorded)
    if position == n and n and recorded.sampled_mask[-1] == 1:
        return DriftKind.TRUNCATED
    is_special = renderer.tokenizer.flags(renderer.tokenizer.special_ids)
    special = any(
        position < len(each) and bool(is_special[each.token_ids[position]]) for each in (recorded, rendered)
    )
    if ours is None or theirs is None or recorded.char_stops is None or rendered.char_stops is None:
        return DriftKind.SPECIAL_TOKEN if special else DriftKind.OTHER
    at = common_prefix(ours, theirs)
    if position < min(n, len(rendered)) and at >= max(
        recorded.char_stops[position], rendered.char_stops[position]
    ):
        return DriftKind.BOUNDARY_MERGE
    if _lost_reasoning(branch.conversation.messages, ours, theirs, at):
        return DriftKind.DROPPED_REASONING
    if "tool_calls" in (_source(recorded, position), _source(rendered, position)):
        return DriftKind.TOOL_JSON
    if _differs_in_space(ours, theirs, at):
        return DriftKind.TOOL_JSON if _is_in_call(theirs, rendered, at) else DriftKind.WHITESPACE
    return DriftKind.SPECIAL_TOKEN if special else DriftKind.OTHER


def _differs_in_space(ours: str, theirs: str, at: int) -> bool:
    """Whether white space stands on one side alone, and both texts go on with the same word behind it."""
    if not (ours[at : at + 1].isspace() or theirs[at : at + 1].isspace()):
        return False
    left, right = (text[at : at + _LONGEST_WORD].lstrip() for text in (ours, theirs))
    words = [text.split(maxsplit=1)[0] if text else "" for text in (left, right)]
    n = min(map(len, words))
    return n > 0 and words[0][:n] == words[1][:n]


def _is_in_call(theirs: str, rendered: RenderedTokens, at: int) -> bool:
    """Whether a character of the rendering is inside the JSON of tool calls, which templates may spell.

    The JSON goes from the brace before the first character of a call to the one behind its last.
    """
    if rendered.char_starts is None or rendered.char_stops is None or "tool_calls" not in rendered.sources:
        return False
    code = rendered.sources.index("tool_calls")
    calls = np.flatnonzero(rendered.source_codes == code)
    # Calls of one message are next to each other; the difference is near the first token at or behind it.
    for owner in np.unique(rendered.message_indices[calls]).tolist():
        own = calls[rendered.message_indices[calls] == owner]
        first, last = int(rendered.char_starts[own[0]]), int(rendered.char_stops[own[-1]])
        start = theirs.rfind("{", 0, first + 1)
        stop = last + len(theirs[last:]) - len(theirs[last:].lstrip('"} \t'))
        if start >= 0 and start < at < stop and "\n" not in theirs[start:first]:
            return True
    return False


def _source(tokens: RenderedTokens, position: int) -> str | None:
    return tokens.sources[tokens.source_codes[position]] if position < len(tokens) else None


def _lost_reasoning(
    messages: object,
    ours: str,
    theirs: str,
    at: int,
) -> bool:
    """Whether the recorded text goes on with reasoning that the rendering has fewer times."""
    for text in _reasonings(messages):
        found = ours.find(text, max(0, at - len(text)))
        # Between the difference and the reasoning lies at most its opening tag.
        if 0 <= found <= at + len("<think>") + 2 and ours.count(text) > theirs.count(text):
            return True
    return False


def _reasonings(messages: Any) -> Iterator[str]:  # Any: JSON values
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        for field in REASONING_FIELDS:
            if isinstance(value := message.get(field), str) and value.strip():
                yield value.strip()
        content = message.get("content")
        if isinstance(content, str) and _END_OF_REASONING in content:
            inside = content.split(_END_OF_REASONING)[0].split("<think>")[-1].strip()
            if inside:
                yield inside
