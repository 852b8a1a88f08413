"""fastokens in place of tokenizers, where it is proven to give the same ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tokscore.rendering.tokenizers.memory import give_memory_back
from tokscore.rendering.tokenizers.probes import probe_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    # Ids of each text as it is, without added special tokens.
    TextEncoder = Callable[[Sequence[str]], list[NDArray[np.int32]]]

_SHOWN = 40
_BATCH_CHARACTERS = 2**15


class UnsuitableError(Exception):
    """fastokens cannot be used for a tokenizer."""


class FastIds:
    """Ids of texts, as fastokens makes them. What it remembers of texts is bounded by it."""

    def __init__(self, backend: Any) -> None:  # Any: `tokenizers.Tokenizer`, which has no types
        """Take over the tokenizer.

        Args:
            backend: `tokenizers.Tokenizer`.

        Raises:
            UnsuitableError: It has a part that fastokens does not know, or fastokens is not installed.
        """
        self._backend = backend
        self._tokenizer: Any = self._load()  # Any: fastokens has no types; None when released

    def _load(self) -> Any:  # Any: as above
        try:
            from fastokens import Tokenizer
        except ImportError as error:
            raise UnsuitableError(f"it cannot be imported ({error})") from error
        loaded = guarded(lambda: Tokenizer.from_json_str(self._backend.to_str()))
        give_memory_back()
        return loaded

    def release(self) -> None:
        """Give its memory back until it is called again."""
        self._tokenizer = None
        give_memory_back()

    def __reduce__(self) -> tuple[object, ...]:
        return FastIds, (self._backend,)

    @property
    def name(self) -> str:
        """With its version."""
        return f"fastokens {version('fastokens')}"

    def __call__(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Ids of each text.

        Raises:
            UnsuitableError: It fails.
        """
        if self._tokenizer is None:
            self._tokenizer = self._load()
        raw, raw_bounds = guarded(lambda: self._tokenizer.encode_batch_flat(list(texts), False))
        ids = np.frombuffer(raw, np.uint32).view(np.int32)
        bounds = np.frombuffer(raw_bounds, np.uint64).tolist()
        # Copies, so that one text does not hold the ids of all.
        return [ids[start:stop].copy() for start, stop in pairwise(bounds)]


def proven_fast_ids(backend: Any, encode: TextEncoder) -> FastIds:  # Any: `tokenizers.Tokenizer`
    """What makes the ids of a tokenizer on which fastokens agrees with tokenizers on all probes.

    Args:
        backend: `tokenizers.Tokenizer`.
        encode: The same, to compare with.

    Raises:
        UnsuitableError: With the reason.
    """
    if (reason := _unproven(backend)) is not None:
        raise UnsuitableError(reason)
    fast = FastIds(backend)
    added = [token.content for token in backend.get_added_tokens_decoder().values()]
    for texts in _batches(probe_texts(added)):
        expected = encode(texts)
        for _ in range(2):  # the second time from its caches
            for text, theirs, ours in zip(texts, expected, fast(texts), strict=True):
                if not np.array_equal(theirs, ours):
                    raise UnsuitableError(
                        f"its ids differ for {text[:_SHOWN]!r}{'…' if len(text) > _SHOWN else ''}"
                    )
    return fast


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts, some at a time."""
    batch: list[str] = []
    n_characters = 0
    for text in texts:
        batch.append(text)
        n_characters += len(text)
        if n_characters >= _BATCH_CHARACTERS:
            yield batch
            batch, n_characters = [], 0
    yield batch


def _unproven(backend: Any) -> str | None:  # Any: `tokenizers.Tokenizer`
    """Why probes would not prove that ids are equal, None where they do."""
    model = backend.model
    if type(model).__name__ != "BPE":
        return f"it knows BPE alone, and this is {type(model).__name__}"
    if model.dropout:
        return "the tokenizer drops merges by chance"
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return "the tokenizer marks the parts of words"
    if backend.pre_tokenizer is None:
        return "the tokenizer does not divide texts into words"
    return None


def guarded(call: Callable[[], Any]) -> Any:  # Any: whatever it returns
    """What a call into fastokens returns.

    Raises:
        UnsuitableError: It failed, or panicked, which is no `Exception`.
    """
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, UnicodeEncodeError):
        raise
    except BaseException as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnsuitableError(f"it fails: {reason}") from error
