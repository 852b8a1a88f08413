"""The scoring run: tokens to a score dataset."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tokscore.rendering.dataset import Dataset, prepare_output
from tokscore.rendering.errors import ConversationError, EngineError
from tokscore.rendering.manifest import Manifest, Setting
from tokscore.rendering.parts import PartWriter
from tokscore.rendering.recorded import MEDIA_STATUS
from tokscore.rendering.rendered import FailedConversation, RenderedConversation
from tokscore.rendering.run import OnError
from tokscore.rendering.tables import DatasetKind
from tokscore.scoring.columns import score_columns
from tokscore.scoring.engine import SequenceScores, TokenSequence, check_scores

if TYPE_CHECKING:
    from tokscore.rendering.manifest import Part
    from tokscore.rendering.source import TokenSource
    from tokscore.scoring.engine import Engine
    from tokscore.scoring.load import EngineSpec

T = TypeVar("T")

# Called with (tokens done, tokens in all): once before the engine starts, then as conversations come back.
Progress = Callable[[int, int], None]


class ScoreSummary(NamedTuple):
    """What a run did.

    Attributes:
        n_conversations: Scored now.
        n_tokens: Written now.
        n_failed: Listed in errors/ now.
        n_parts_skipped: Parts that an earlier run had finished.
        n_parts: All parts.
        load_s: Seconds that the engine took to start.
        engine_s: Seconds inside the engine after that.
        other_s: Seconds outside: reading or rendering, and writing.
    """

    n_conversations: int
    n_tokens: int
    n_failed: int
    n_parts_skipped: int
    n_parts: int
    load_s: float
    engine_s: float
    other_s: float


def score(
    source: TokenSource,
    out: Path | str,
    engine: EngineSpec,
    *,
    on_error: OnError = OnError.FAIL,
    progress: Progress = lambda _done, _total: None,
) -> ScoreSummary:
    """Write the score dataset of `source` to `out`; parts that are there already are kept.

    The engine starts after the input was read once, so that what cannot be scored is known before,
    and does not start where nothing is left to score.

    Args:
        source: Planned conversations, or a token dataset.
        out: Directory, new or of the same plan.
        engine: What `plan_engine` returned.
        on_error: What one bad conversation does.
        progress: Called as tokens are done.

    Raises:
        UsageError: `out` holds another run.
        ConversationError: A conversation cannot be scored and `on_error` is fail.
        InputError: Every conversation failed.
        EngineError: The engine cannot start, failed, or broke its contract.
    """
    started = perf_counter()
    out, on_error = Path(out), OnError(on_error)
    manifest = score_manifest(source, engine)
    done = prepare_output(out, manifest, source.vocabulary)
    parts = [part for part in manifest.parts if part.index not in done]
    run = _Run(source, engine, on_error)
    run.plan(parts)
    progress(0, run.n_planned_tokens)
    try:
        for part in parts:
            with PartWriter(out, manifest, part.index) as writer:
                for _ in run.score_part(part, writer):
                    progress(run.n_engine_tokens, run.n_planned_tokens)
                writer.finish()
    finally:
        run.close()
    Dataset(out).check_some_succeeded("scored")
    elapsed_s = perf_counter() - started
    engine_s = run.engine_clock.elapsed_s - run.reading_clock.elapsed_s - run.load_s
    return ScoreSummary(
        n_conversations=run.n_conversations,
        n_tokens=run.n_tokens,
        n_failed=run.n_failed,
        n_parts_skipped=len(done),
        n_parts=len(manifest.parts),
        load_s=run.load_s,
        engine_s=engine_s,
        other_s=elapsed_s - engine_s - run.load_s,
    )


def score_manifest(source: TokenSource, engine: EngineSpec) -> Manifest:
    """The sealed manifest of a score dataset; it does not depend on what is done already."""
    settings: dict[str, Setting] = {
        "top_k": engine.top_k,
        "temperature": engine.temperature,
        "logprob_mode": "raw",
        "dtype": engine.identity.dtype,
        "score": "all",
    }
    return Manifest(
        kind=DatasetKind.SCORES,
        tokscore_version=version("tokscore"),
        settings=source.settings | settings,
        tokenizer=source.tokenizer,
        model=engine.identity,
        inputs=list(source.inputs),
        parts=list(source.parts),
    ).sealed()


class _Clock:
    """Adds up the seconds that an iterator takes to make its items."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def timed(self, items: Iterable[T]) -> Iterator[T]:
        iterator = iter(items)
        while True:
            started = perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.elapsed_s += perf_counter() - started
            yield item


class _Run:
    """One pass over the open parts with an engine that starts at the first sequence."""

    def __init__(self, source: TokenSource, spec: EngineSpec, on_error: OnError) -> None:
        self._source = source
        self._spec = spec
        self._on_error = on_error
        self._engine: Engine | None = None
        self._longest = 0
        self.n_planned_tokens = self.n_engine_tokens = 0
        self.n_conversations = self.n_tokens = self.n_failed = 0
        self.reading_clock, self.engine_clock = _Clock(), _Clock()
        self.load_s = 0.0

    def plan(self, parts: Iterable[Part]) -> None:
        """Read everything once for its length, and stop here for what cannot be scored."""
        for part in parts:
            for item in self._items(part):
                if isinstance(item, RenderedConversation):
                    self.n_planned_tokens += len(item.tokens)
                    self._longest = max(self._longest, len(item.tokens))
                elif self._on_error is OnError.FAIL and not item.is_known:
                    raise item.error()

    def score_part(self, part: Part, writer: PartWriter) -> Iterator[None]:
        """Write one part in input order; yields whenever the engine is done with a conversation."""
        # What was read and is not written yet: as long as the engine's window.
        waiting: deque[tuple[int, RenderedConversation | FailedConversation]] = deque()
        scored: dict[int, SequenceScores] = {}

        def sequences() -> Iterator[TokenSequence]:
            for key, item in enumerate(self.reading_clock.timed(self._items(part))):
                waiting.append((key, item))
                if isinstance(item, RenderedConversation) and len(item.tokens):
                    yield TokenSequence(key, item.tokens.token_ids)

        for key, scores in self.engine_clock.timed(self._score(sequences())):
            scored[key] = scores
            self.n_engine_tokens += len(scores) + 1
            while waiting and _is_ready(waiting[0], scored):
                first, item = waiting.popleft()
                self._write(item, scored.pop(first, None), writer)
            yield
        for key, item in waiting:
            if not _is_ready((key, item), scored):
                raise EngineError(
                    f"the engine returned nothing for conversation {_id(item)}. "
                    "Nothing was written for this part."
                )
            self._write(item, scored.pop(key, None), writer)

    def _items(self, part: Part) -> Iterator[RenderedConversation | FailedConversation]:
        for item in self._source.read(part):
            yield item if isinstance(item, FailedConversation) else _admit(item, self._spec)

    def _score(self, sequences: Iterator[TokenSequence]) -> Iterator[tuple[int, SequenceScores]]:
        first = next(sequences, None)
        if first is None:
            return
        if self._engine is None:
            started = perf_counter()
            self._engine = self._spec.start(self._longest)
            self.load_s = perf_counter() - started
        yield from self._engine.score(chain([first], sequences))

    def _write(
        self,
        item: RenderedConversation | FailedConversation,
        scores: SequenceScores | None,
        writer: PartWriter,
    ) -> None:
        if isinstance(item, RenderedConversation) and scores is not None:
            try:
                n_rows = len(item.tokens) - 1
                check_scores(scores, n_rows, self._spec.top_k, item.row.conversation_id)
            except ConversationError as error:
                item = _failure(item, error.reason, error.hint)
                if self._on_error is OnError.FAIL:
                    raise item.error() from error
        if isinstance(item, FailedConversation):
            writer.fail(item)
            self.n_failed += 1
            return
        writer.add(item, score_columns(scores, len(item.tokens)))
        self.n_conversations += 1
        self.n_tokens += len(item.tokens)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def _is_ready(
    entry: tuple[int, RenderedConversation | FailedConversation], scored: dict[int, SequenceScores]
) -> bool:
    key, item = entry
    return key in scored or isinstance(item, FailedConversation) or not len(item.tokens)


def _admit(conversation: RenderedConversation, spec: EngineSpec) -> RenderedConversation | FailedConversation:
    """The conversation, or why the model cannot take it."""
    if MEDIA_STATUS in conversation.row.status.split(","):
        return _failure(
            conversation,
            "holds images, audio or files, which no engine here takes; its ids alone would get logprobs of "
            "another input.",
        )
    token_ids = conversation.tokens.token_ids
    n_tokens, limit, vocab_size = len(token_ids), spec.model.max_length, spec.model.vocab_size
    if n_tokens > limit:
        return _failure(conversation, f"has {n_tokens:,} tokens; the model's maximum is {limit:,}.")
    largest = int(token_ids.max(initial=-1))
    if largest >= vocab_size:
        return _failure(
            conversation,
            f"has token id {largest}, but the vocabulary of {spec.model.name} has {vocab_size} ids.",
            "The tokenizer that made the ids does not belong to this model.",
        )
    return conversation


def _failure(conversation: RenderedConversation, reason: str, hint: str = "") -> FailedConversation:
    row = conversation.row
    return FailedConversation(row.conversation_id, row.source_file, row.source_line, "$", reason, hint)


def _id(item: RenderedConversation | FailedConversation) -> str:
    return item.conversation_id if isinstance(item, FailedConversation) else item.row.conversation_id
