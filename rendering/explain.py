"""One conversation laid open: the text of every token beside its owner, and where transformers differs."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokscore.dataset.errors import ConversationError, DifferenceError, InputError, agreeing
from tokscore.rendering.documents.windows import Window
from tokscore.rendering.reading.files import Line
from tokscore.rendering.reading.plan import read_lines
from tokscore.rendering.recorded_ids.attribute import Recorded, attribute_recorded
from tokscore.rendering.recorded_ids.branch import RecordedBranch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.dataset.manifest import Part
    from tokscore.dataset.tokens import RenderedTokens
    from tokscore.rendering.attribution.tokenizer import Encoding
    from tokscore.rendering.conversations.conversation import Conversation
    from tokscore.rendering.source import ConversationSource


class Explanation(NamedTuple):
    """One branch of a conversation as it was rendered.

    Attributes:
        conversation_id: As in a dataset.
        branch: Of the record.
        source_file: Base name of the input.
        source_line: 1-based line.
        status: "ok", or what was done to it.
        tokens: Ids with their owners.
        texts: The characters of each token; empty where the tokens before it cover them.
        is_control: bool, shape [tokens]: a control token that came from content.
        difference: How transformers' rendering differs, None where it does not or was not compared.
        different_token: First token that differs.
    """

    conversation_id: str
    branch: int
    source_file: str
    source_line: int
    status: str
    tokens: RenderedTokens
    texts: list[str]
    is_control: NDArray[np.bool_]
    difference: DifferenceError | None
    different_token: int | None


def explain(source: ConversationSource, conversation_id: str) -> list[Explanation]:
    """Render all branches of one conversation; a difference from transformers is reported beside the result.

    Raises:
        InputError: There is no such conversation.
        ConversationError: It cannot be rendered.
    """
    line, part = _find(source, conversation_id)
    name = source.inputs[part.file].name
    try:
        return [
            _explain(source, line, name, branch, item) for branch, item in enumerate(source.parse(line, part))
        ]
    except ConversationError as error:
        raise error.skipped().at(error.source or f"{name}:{line.number}") from error


def _explain(
    source: ConversationSource,
    line: Line,
    name: str,
    branch: int,
    item: Conversation | RecordedBranch | Window,
) -> Explanation:
    renderer, difference = source.renderer, None
    if isinstance(item, Window):
        return _explain_recorded(source, line, name, branch, Recorded(item.tokens, item.status))
    if isinstance(item, RecordedBranch):
        return _explain_recorded(source, line, name, branch, attribute_recorded(item, renderer))
    printed = renderer.print(item, 0)
    text = printed.rendered.text
    token_ids = renderer.tokenizer.token_ids([text])[0]
    try:
        tokens = renderer.finish(printed, token_ids)
    except DifferenceError as error:
        difference = error
        tokens = renderer.finish(printed, token_ids, check=False)
    encoding = renderer.tokenizer.align(text, token_ids)
    different = None if difference is None else _different_token(difference, encoding)
    is_control = np.isin(token_ids, list(renderer.tokenizer.special_ids)) & tokens.is_content
    kept = slice(None) if source.length_limit is None else source.length_limit.kept(len(tokens))
    tokens, status = source.finish(tokens)
    return Explanation(
        conversation_id=line.conversation_id,
        branch=branch,
        source_file=name,
        source_line=line.number,
        status=status,
        tokens=tokens,
        texts=_texts(text, encoding)[kept],
        is_control=is_control[kept],
        difference=difference,
        different_token=None if different is None else different - (kept.start or 0),
    )


def _explain_recorded(
    source: ConversationSource, line: Line, name: str, branch: int, recorded: Recorded
) -> Explanation:
    tokenizer = source.renderer.tokenizer
    tokens, status = source.finish(recorded)
    return Explanation(
        conversation_id=line.conversation_id,
        branch=branch,
        source_file=name,
        source_line=line.number,
        status=status,
        tokens=tokens,
        texts=[tokenizer.hf.decode([token_id]) for token_id in tokens.token_ids.tolist()],
        is_control=np.isin(tokens.token_ids, list(tokenizer.special_ids)) & tokens.is_content,
        difference=None,
        different_token=None,
    )


def _find(source: ConversationSource, conversation_id: str) -> tuple[Line, Part]:
    known: list[str] = []
    for part in source.parts:
        for line in read_lines(source.plan, part):
            if line.conversation_id == conversation_id:
                return line, part
            known.append(line.conversation_id)
    close = get_close_matches(conversation_id, known[:10_000], n=3, cutoff=0) or known[:3]
    n = len(known)
    raise InputError(
        f"no conversation has the id {conversation_id}; there {agreeing(n, 'is', 'are')} {n:,}, "
        f"such as {', '.join(close)}."
    )


def _texts(text: str, encoding: Encoding) -> list[str]:
    """Characters of each token; what a normaliser left out stands with the token behind it."""
    texts, reached = [], 0
    for stop in encoding.stops.tolist():
        texts.append(text[reached:stop] if stop > reached else "")
        reached = max(reached, stop)
    if texts:
        texts[-1] += text[reached:]
    return texts


def _different_token(difference: DifferenceError, encoding: Encoding) -> int:
    if difference.token is not None:
        return difference.token
    at = np.searchsorted(encoding.stops, difference.character or 0, side="right")
    return min(int(at), len(encoding.stops))
