"""Ids of texts, by tokenizers or by fastokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tokscore.dataset.choices import TokenizerLibrary
from tokscore.dataset.errors import InputError
from tokscore.rendering.tokenizers.fast_ids import FastIds, UnsuitableError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokscore.dataset.manifest import Setting
    from tokscore.rendering.tokenizers.fast_ids import TextEncoder

# Loading fastokens and proving it takes about as long as tokenizers need for so many characters.
FAST_FROM_CHARACTERS = 2**24


class TextIds:
    """Makes the ids of texts, and says with what.

    Attributes:
        library: As chosen.
        made_by: The library that makes them, with its version.
        reason: Why it is not fastokens, where that was to be used.
        has_differed: fastokens made ids, and was given up.
    """

    def __init__(
        self,
        encode: TextEncoder,
        name: str,
        library: TokenizerLibrary,
        load: Callable[[], FastIds],
    ) -> None:
        """Prepare it; fastokens is loaded at once only if it was chosen.

        Args:
            encode: The tokenizer that is right by definition.
            name: Its library, with the version.
            library: What to use.
            load: Loads fastokens and proves it equal, or raises `UnsuitableError`.

        Raises:
            InputError: fastokens was chosen, and cannot be used.
        """
        self.by_tokenizers = encode
        self.library = library
        self.made_by = self._name = name
        self.reason: str | None = None
        self.has_differed = False
        self._load = load
        self._fast: FastIds | None = None
        self._is_decided = library is TokenizerLibrary.TOKENIZERS
        self._n_characters = 0
        if library is TokenizerLibrary.FASTOKENS:
            self._use_fast()

    @property
    def is_fast(self) -> bool:
        """Whether fastokens makes them."""
        return self._fast is not None

    @property
    def details(self) -> dict[str, Setting]:
        """What was chosen, what makes the ids, and why, for a manifest."""
        return {"tokenizer": self.library.value, "made_by": self.made_by, "reason": self.reason}

    def __call__(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Ids of each text as it is, without added special tokens, int32."""
        if not self._is_decided:
            self._n_characters += sum(map(len, texts))
            if self._n_characters >= FAST_FROM_CHARACTERS:
                self._use_fast()
        if self._fast is None:
            return self.by_tokenizers(texts)
        try:
            return self._fast(texts)
        except UnsuitableError as error:
            self.switch_back(str(error))
            return self.by_tokenizers(texts)

    def decide(self, n_characters: int) -> None:
        """Choose once and for all, for texts of so many characters."""
        if not self._is_decided:
            self._is_decided = True
            if n_characters >= FAST_FROM_CHARACTERS:
                self._use_fast()

    def switch_back(self, reason: str) -> None:
        """Give fastokens up for the rest of the run."""
        self._fast, self._is_decided, self.has_differed = None, True, True
        self.made_by, self.reason = self._name, f"fastokens was given up: {reason}"

    def release(self) -> None:
        """Give the memory of fastokens back, where other processes make the ids."""
        if self._fast is not None:
            self._fast.release()

    def doubts(self) -> Callable[[], str | None]:
        """Tells later whether fastokens was given up since, and why: ids made meanwhile may be wrong."""
        was_fast = self.is_fast
        return lambda: self.reason if was_fast and not self.is_fast else None

    def _use_fast(self) -> None:
        self._is_decided = True
        try:
            self._fast = self._load()
        except UnsuitableError as error:
            if self.library is TokenizerLibrary.FASTOKENS:
                raise InputError(
                    f"fastokens cannot be used: {error}.\nLeave out `tokenizer`, and tokenizers is used."
                ) from error
            self.reason = f"fastokens cannot be used: {error}"
        else:
            self.made_by, self.reason = self._fast.name, None
