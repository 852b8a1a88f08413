"""What a run will score: everything is read once, before the engine starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tokscore.rendering.recorded import MEDIA_STATUS
from tokscore.rendering.rendered import FailedConversation, RenderedConversation
from tokscore.rendering.run import OnError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tokscore.rendering.manifest import Part
    from tokscore.rendering.source import TokenSource
    from tokscore.scoring.load import EngineSpec
    from tokscore.scoring.selection import Selection
    from tokscore.scoring.spool import Item, Spool

    # Conversations and tokens so far.
    Reading = Callable[[int, int], None]


class RunPlan(NamedTuple):
    """What the open parts hold.

    Attributes:
        n_sequences: Conversations that can be scored.
        n_for_engine: Of these, with a token to be scored.
        n_tokens: Of the sequences for the engine.
        longest: Of the same, tokens.
    """

    n_sequences: int
    n_for_engine: int
    n_tokens: int
    longest: int


def plan_run(
    source: TokenSource,
    parts: Iterable[Part],
    spool: Spool,
    spec: EngineSpec,
    selection: Selection,
    *,
    max_length: int | None,
    on_error: OnError,
    reading: Reading = lambda _done, _n_tokens: None,
) -> RunPlan:
    """Read parts into the spool, with what cannot be scored as failures.

    `reading` is called as records are read, the branches of one counted once.

    Raises:
        ConversationError: A conversation cannot be scored and `on_error` is fail.
    """
    n_sequences = n_for_engine = n_tokens = longest = n_read = n_tokens_read = 0
    last: str | None = None

    def admitted(part: Part) -> Iterator[Item]:
        nonlocal n_sequences, n_for_engine, n_tokens, longest, n_read, n_tokens_read, last
        for item in source.read(part):
            record = (
                item.row.conversation_id if isinstance(item, RenderedConversation) else item.conversation_id
            )
            n_read += record != last
            last = record
            n_tokens_read += len(item.tokens) if isinstance(item, RenderedConversation) else 0
            reading(n_read, n_tokens_read)
            kept = admit(item, spec, max_length) if isinstance(item, RenderedConversation) else item
            if isinstance(kept, RenderedConversation):
                n_sequences += 1
                if selection.n_wanted(kept.tokens):
                    n_for_engine += 1
                    n_tokens += len(kept.tokens)
                    longest = max(longest, len(kept.tokens))
            elif on_error is OnError.FAIL and not kept.is_known:
                raise kept.error()
            yield kept

    for part in parts:
        spool.write(part.index, admitted(part))
    return RunPlan(n_sequences, n_for_engine, n_tokens, longest)


def admit(conversation: RenderedConversation, spec: EngineSpec, max_length: int | None = None) -> Item:
    """The conversation, or why it is not scored.

    Args:
        conversation: As rendered.
        spec: The model.
        max_length: Most tokens that the user wants in a sequence.
    """
    if MEDIA_STATUS in conversation.row.status.split(","):
        return failure(
            conversation,
            "holds images, audio or files, which no engine here takes; its ids alone would get logprobs of "
            "another input.",
        )
    token_ids = conversation.tokens.token_ids
    n_tokens, limit, vocab_size = len(token_ids), spec.model.max_length, spec.model.vocab_size
    if n_tokens > limit:
        return failure(
            conversation,
            f"has {n_tokens:,} tokens; the model's maximum is {limit:,}.",
            "If the model takes more, say so: --engine-arg max_model_len=N.",
        )
    if max_length is not None and n_tokens > max_length:
        return failure(conversation, f"has {n_tokens:,} tokens; --max-length is {max_length:,}.")
    largest = int(token_ids.max(initial=-1))
    if largest >= vocab_size:
        return failure(
            conversation,
            f"has token id {largest}, but the vocabulary of {spec.model.name} has {vocab_size} ids.",
            "The tokenizer that made the ids does not belong to this model.",
        )
    return conversation


def failure(conversation: RenderedConversation, reason: str, hint: str = "") -> FailedConversation:
    """The conversation as an error row."""
    row = conversation.row
    return FailedConversation(row.conversation_id, row.source_file, row.source_line, "$", reason, hint)
