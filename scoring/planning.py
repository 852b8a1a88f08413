"""The plan of a scoring run: everything is read once, before the engine starts."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import counted
from tokscore.dataset.tokens import TEXT_SOURCE, FailedConversation, RenderedConversation
from tokscore.rendering.recorded_ids.attribute import MEDIA_STATUS
from tokscore.rendering.workers import PARTS_PER_WORKER, on_processes
from tokscore.scoring.sharing.dedupe import WINDOW_TOKENS
from tokscore.scoring.sharing.segments import TokenCounts, token_counts
from tokscore.scoring.spool import blocks_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from tokscore.dataset.manifest import Part
    from tokscore.rendering.source import TokenSource
    from tokscore.scoring.engines.spec import EngineSpec
    from tokscore.scoring.listed_ids import ListedIds
    from tokscore.scoring.selection import Selection
    from tokscore.scoring.spool import Block, Item, Spool

    # Conversations and tokens so far.
    Reading = Callable[[int, int], None]


class RunPlan(NamedTuple):
    """Counts over the parts that are still to be scored.

    Attributes:
        n_sequences: Conversations that can be scored.
        n_for_engine: Those of them with a token to be scored.
        n_tokens: Tokens of the sequences for the engine.
        longest: Tokens of the longest of these.
        n_whole: Tokens of those of them that are neither equal to another near it nor its beginning.
        n_unique: Tokens of all segments of them, so many would have to be computed.
    """

    n_sequences: int
    n_for_engine: int
    n_tokens: int
    longest: int
    n_whole: int = 0
    n_unique: int = 0

    @property
    def counts(self) -> TokenCounts:
        """The tokens of the sequences for the engine."""
        return TokenCounts(self.n_tokens, self.n_whole, self.n_unique)

    def plus(self, other: RunPlan) -> RunPlan:
        """The counts of both together."""
        return RunPlan(
            self.n_sequences + other.n_sequences,
            self.n_for_engine + other.n_for_engine,
            self.n_tokens + other.n_tokens,
            max(self.longest, other.longest),
            self.n_whole + other.n_whole,
            self.n_unique + other.n_unique,
        )


class PartReading(NamedTuple):
    """One part, read.

    Attributes:
        plan: Counts of this part alone.
        n_records: Records read; one with several branches counts once.
        n_tokens: Tokens read, also of conversations that cannot be scored.
        blocks: Rows for the spool.
        doubt: Why fastokens was given up meanwhile, so that the ids it made cannot be trusted.
    """

    plan: RunPlan
    n_records: int
    n_tokens: int
    blocks: Sequence[Block]
    doubt: str | None


@dataclass(frozen=True)
class ReadJob:
    """Reads parts and decides which conversations can be scored.

    Attributes:
        source: Yields the conversations.
        spec: The model.
        selection: Which tokens get scores.
        max_length: Most tokens that the user wants in a sequence.
        on_error: Whether a conversation that cannot be scored ends the run.
        listed: Where the given ids of every conversation are; None where none are given.
    """

    source: TokenSource
    spec: EngineSpec
    selection: Selection
    max_length: int | None
    on_error: OnError
    listed: ListedIds | None = None

    def run(self, part: Part, seen: Callable[[int], None]) -> PartReading:
        """Read one part; `seen` is called after each conversation with the number of its tokens.

        Raises:
            ConversationError: A conversation cannot be scored and `on_error` is fail.
        """
        n_sequences = n_for_engine = n_tokens = longest = n_records = n_read = 0
        last: str | None = None
        counter = _Counter(self.spec.model.switch_length)
        doubts = None if self.source.text_ids is None else self.source.text_ids.doubts()

        def admitted() -> Iterator[Item]:
            nonlocal n_sequences, n_for_engine, n_tokens, longest, n_records, n_read, last
            for item in self.source.read(part):
                record, n, kept = self._admitted(item)
                n_records += record != last
                last = record
                n_read += n
                seen(n)
                if isinstance(kept, RenderedConversation):
                    n_sequences += 1
                    if self.selection.n_wanted(kept.tokens):
                        n_for_engine += 1
                        n_tokens += len(kept.tokens)
                        longest = max(longest, len(kept.tokens))
                        counter.add(kept.tokens.token_ids)
                elif self.on_error is OnError.FAIL and not kept.is_known:
                    raise kept.error()
                yield kept

        blocks = list(blocks_of(admitted()))
        doubt = None if doubts is None else doubts()
        counts = counter.finish()
        plan = RunPlan(n_sequences, n_for_engine, n_tokens, longest, counts.n_whole, counts.n_unique)
        return PartReading(plan, n_records, n_read, blocks, doubt)

    def _admitted(self, item: Item) -> tuple[str, int, Item]:
        """The id of its record, its tokens, and the conversation or why it is not scored."""
        if isinstance(item, FailedConversation):
            return item.conversation_id, 0, item
        kept = admit(item, self.spec, self.max_length)
        if self.listed is not None and isinstance(kept, RenderedConversation):
            reason = self.listed.reason_against(kept)
            if reason is not None:
                kept = failure(kept, reason, "Score both models on the same rendered dataset.")
        return item.row.conversation_id, len(item.tokens), kept


class _Counter:
    """Counts the tokens that sequences have in common, in the windows in which they can share."""

    def __init__(self, switch_length: int | None) -> None:
        self._switch_length = switch_length
        self._counts = TokenCounts(0, 0, 0)
        self._waiting: list[NDArray[np.int32]] = []
        self._n_waiting = 0

    def add(self, token_ids: NDArray[np.int32]) -> None:
        if self._waiting and self._n_waiting + len(token_ids) > WINDOW_TOKENS:
            self.finish()
        self._waiting.append(token_ids)
        self._n_waiting += len(token_ids)

    def finish(self) -> TokenCounts:
        """The counts of all so far."""
        limit = self._switch_length
        for is_long in (False, True):
            group = [ids for ids in self._waiting if (limit is not None and len(ids) > limit) == is_long]
            self._counts = self._counts.plus(token_counts(group))
        self._waiting, self._n_waiting = [], 0
        return self._counts


def plan_run(
    job: ReadJob,
    parts: Sequence[Part],
    spool: Spool,
    *,
    workers: int = 1,
    reading: Reading = lambda _done, _n_tokens: None,
) -> RunPlan:
    """Read parts into the spool, with what cannot be scored as failures.

    Args:
        job: The reading.
        parts: Parts of its source.
        spool: Where the conversations go.
        workers: Processes that read; few parts are read in this one.
        reading: Called with records and tokens so far, a record with branches counted once; after each
            conversation, or after each part where several processes read.

    Raises:
        ConversationError: A conversation cannot be scored and the job's `on_error` is fail.
    """
    plan = RunPlan(0, 0, 0, 0)
    n_records = n_tokens = 0
    doubt: str | None = None
    n_workers = min(workers, len(parts) // PARTS_PER_WORKER)
    readings = on_processes(job, n_workers, parts) if n_workers > 1 else _read_here(job, parts, reading)
    with closing(readings):
        for part, found in zip(parts, readings, strict=False):
            if (doubt := found.doubt) is not None:
                break
            spool.write(part.index, found.blocks)
            plan = plan.plus(found.plan)
            n_records, n_tokens = n_records + found.n_records, n_tokens + found.n_tokens
            reading(n_records, n_tokens)
    ids = job.source.text_ids
    if doubt is not None and ids is not None:
        ids.switch_back(doubt)
        spool.clear()
        return plan_run(job, parts, spool, workers=workers, reading=reading)
    return plan


def _read_here(job: ReadJob, parts: Sequence[Part], reading: Reading) -> Generator[PartReading]:
    n_items = n_tokens = 0
    n_records_before = 0

    def seen(n: int) -> None:
        nonlocal n_items, n_tokens
        n_items, n_tokens = n_items + 1, n_tokens + n
        reading(n_records_before + n_items, n_tokens)

    for part in parts:
        found = job.run(part, seen)
        n_records_before += found.n_records
        n_items = 0
        yield found


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
        is_text = TEXT_SOURCE in conversation.tokens.sources
        return failure(
            conversation,
            f"has {counted(n_tokens, 'token')}; the model's maximum is {limit:,}.",
            ("Cut the text into windows: `chunk=N`. " if is_text else "")
            + "If the model takes more, say so: `engine_arg` max_model_len=N.",
        )
    if max_length is not None and n_tokens > max_length:
        return failure(conversation, f"has {counted(n_tokens, 'token')}; `max_length` is {max_length:,}.")
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
