"""The bytes of each id of a vocabulary, and by them the characters of a text that each token covers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CHECKED_TOKENS = 2**16  # bounds the memory of the comparison

# Bytes of one vocabulary entry, None where its text does not tell.
TokenDecoder = Callable[[str], bytes | None]


def byte_level_alphabet() -> dict[str, int]:
    """The printable character that byte-level tokenizers write for each byte.

    Source:
        Radford et al. (2019), Language Models are Unsupervised Multitask Learners, released code.
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(256 + i): byte for i, byte in enumerate(others)}


_ALPHABET = byte_level_alphabet()
_CHARACTERS = frozenset(_ALPHABET)
_LATIN1 = str.maketrans({character: chr(byte) for character, byte in _ALPHABET.items()})


def _byte_level(token: str) -> bytes | None:
    return token.translate(_LATIN1).encode("latin-1") if _CHARACTERS.issuperset(token) else None


def sentence_piece(token: str) -> bytes | None:
    """Entries that write a space as "▁" and lone bytes as `<0x0A>`."""
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("▁", " ").encode()


def _character_bytes(token: str) -> bytes | None:
    """Entries whose characters are the bytes themselves, as in ByT5."""
    try:
        return token.encode("latin-1")
    except UnicodeEncodeError:
        return None


# What tokenizers without a declared decoder use; the probe text at load says which one fits.
KNOWN_DECODERS: tuple[TokenDecoder, ...] = (_byte_level, sentence_piece, _character_bytes)


def declared_decoder(config: Mapping[str, Any] | None) -> TokenDecoder | None:  # Any: JSON values
    """How to read the vocabulary entries of a tokenizer that declares the decoder `config`."""
    steps = [] if config is None else config.get("decoders", [config])
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"Metaspace", "ByteFallback"}:
        return sentence_piece
    return None


class CharacterSpans(NamedTuple):
    """Characters that each token covers, int64, shape [tokens], half-open."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


class TokenBytes:
    """Bytes of every id.

    Attributes:
        contents: By id; None where they are not known.
    """

    def __init__(self, contents: Sequence[bytes | None]) -> None:
        self.contents = tuple(contents)
        self._lengths = np.array([-1 if each is None else len(each) for each in contents], np.int64)
        known = np.maximum(self._lengths, 0)
        self._starts = np.cumsum(known) - known
        self._bytes = np.frombuffer(b"".join(content or b"" for content in contents), np.uint8)

    def spans(self, text: str, token_ids: NDArray[np.int32]) -> CharacterSpans | None:
        """Where each token lies in `text`; None unless the bytes of all tokens together are exactly the text.

        Tokens that hold parts of one character all cover it.
        """
        raw = text.encode()
        at = token_ids.astype(np.intp)
        try:
            lengths = self._lengths[at]  # -1 where the bytes are not known
        except IndexError:
            return None
        if lengths.min(initial=0) < 0:
            return None
        stops = lengths.cumsum()
        starts = stops - lengths
        if not self._spell(raw, at, starts, lengths):
            return None
        if len(raw) == len(text):
            return CharacterSpans(starts, stops)
        if not lengths.all():
            return None
        opens_character = (np.frombuffer(raw, np.uint8) & 0xC0) != 0x80
        character = np.cumsum(opens_character, dtype=np.int64)  # counted from 1
        return CharacterSpans(character[starts] - 1, character[stops - 1])

    def _spell(
        self,
        raw: bytes,
        token_ids: NDArray[np.intp],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> bool:
        """Whether the bytes of the tokens, put at these places, are all of `raw`."""
        if len(raw) != (int(starts[-1] + lengths[-1]) if len(starts) else 0):
            return False
        for i in range(0, len(token_ids), _CHECKED_TOKENS):
            chosen = slice(i, i + _CHECKED_TOKENS)
            first = int(starts[i])
            shifts = (self._starts[token_ids[chosen]] - starts[chosen] + first).repeat(lengths[chosen])
            shifts += np.arange(len(shifts))
            if self._bytes[shifts].tobytes() != raw[first : first + len(shifts)]:
                return False
        return True
