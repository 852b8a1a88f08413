"""Many conversations in batches: while one batch is tokenised on all cores, the next one is printed.

In a worker process one follows the other, on its one core.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.attribution.renderer import Printed, Renderer
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.documents.windows import Window
from tokscore.rendering.recorded_ids.answer_logprobs import with_logprobs
from tokscore.rendering.recorded_ids.attribute import Recorded, attribute_recorded
from tokscore.rendering.recorded_ids.branch import RecordedBranch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokscore.dataset.tokens import RenderedTokens
    from tokscore.rendering.attribution.tokenizer import Encoding

    _Item = Conversation | RecordedBranch | Window | ConversationError
    _Batch = list[Printed | Recorded | ConversationError]
    # Ids of each, whether fastokens made them, and transformers' ids of those to be verified.
    _Tokenised = tuple[list[NDArray[np.int32]], bool, dict[int, list[int]]]
    _Result = RenderedTokens | Recorded | ConversationError

# A batch ends with the conversation that reaches one of these.
BATCH_CHARACTERS = 2**18
BATCH_CONVERSATIONS = 64
_COLLECTION_THRESHOLDS = (50_000, 20, 100)


def render_many(
    renderer: Renderer, conversations: Iterable[_Item], *, first_number: int = 0
) -> Iterator[_Result]:
    """The result of `Renderer.render` for each conversation, in order; errors are returned, not raised.

    Args:
        renderer: What renders them.
        conversations: Checked records, or branches with recorded ids, which are attributed; windows of texts
            and errors are passed through in their place.
        first_number: Number of the first one in the input; decides which ids are verified.
    """
    tokenizer = renderer.tokenizer

    def tokenise(batch: _Batch) -> _Tokenised:
        printed = [item for item in batch if isinstance(item, Printed)]
        is_fast = tokenizer.ids.is_fast
        token_ids = tokenizer.token_ids([item.rendered.text for item in printed])
        return token_ids, is_fast, renderer.reference_ids(printed)

    def encode(
        printed: Printed, token_ids: NDArray[np.int32], tokenised: _Tokenised
    ) -> Encoding | ConversationError:
        _, is_fast, references = tokenised
        if is_fast and not tokenizer.ids.is_fast:  # it was given up meanwhile
            token_ids = tokenizer.token_ids([printed.rendered.text])[0]
        try:
            return renderer.encoding(printed, token_ids, reference=references.get(printed.number))
        except ConversationError as error:
            return error

    def finish(batch: _Batch, tokenised: _Tokenised) -> Iterator[_Result]:
        printed_ones = [item for item in batch if isinstance(item, Printed)]
        # All of a batch, before any is attributed: each step takes less time one behind the other.
        encodings = iter(
            [encode(each, ids, tokenised) for each, ids in zip(printed_ones, tokenised[0], strict=True)]
        )
        for printed in batch:
            if not isinstance(printed, Printed):
                yield printed
                continue
            encoding = next(encodings)
            if isinstance(encoding, ConversationError):
                yield encoding
                continue
            try:
                tokens = renderer.attribute(printed, encoding)
                status, logprobs = printed.conversation.status, printed.conversation.logprobs
                if logprobs is not None:
                    tokens, unused = with_logprobs(tokens, logprobs, tokenizer)
                    status = ",".join(filter(None, (status, unused))) or None
                yield tokens if status is None else Recorded(tokens, status)
            except ConversationError as error:
                yield error

    batches = _printed_batches(renderer, conversations, first_number)
    with _rare_collections():
        if multiprocessing.parent_process() is not None:  # the other cores have work of their own
            for batch in batches:
                yield from finish(batch, tokenise(batch))
            return
        with ThreadPoolExecutor(1) as pool:
            previous: tuple[_Batch, Future[_Tokenised]] | None = None
            for batch in batches:
                tokenised = pool.submit(tokenise, batch)
                if previous is not None:
                    yield from finish(previous[0], previous[1].result())
                previous = batch, tokenised
            if previous is not None:
                yield from finish(previous[0], previous[1].result())


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for reference cycles less often: a batch holds many small objects and next to no cycles."""
    before = gc.get_threshold()
    if before[0]:  # else the caller wants none
        gc.set_threshold(*map(max, before, _COLLECTION_THRESHOLDS))
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _printed_batches(
    renderer: Renderer, conversations: Iterable[_Item], first_number: int
) -> Iterator[_Batch]:
    batch: _Batch = []
    n_characters = 0
    for number, conversation in enumerate(conversations, first_number):
        try:
            if isinstance(conversation, ConversationError):
                batch.append(conversation)
            elif isinstance(conversation, Window):
                n_characters += len(conversation.tokens)
                batch.append(Recorded(conversation.tokens, conversation.status))
            elif isinstance(conversation, RecordedBranch):
                recorded = attribute_recorded(conversation, renderer)
                n_characters += len(recorded.tokens)
                batch.append(recorded)
            else:
                printed = renderer.print(conversation, number)
                n_characters += len(printed.rendered.text)
                batch.append(printed)
        except ConversationError as error:
            batch.append(error)
        if n_characters >= BATCH_CHARACTERS or len(batch) >= BATCH_CONVERSATIONS:
            yield batch
            batch, n_characters = [], 0
    if batch:
        yield batch
