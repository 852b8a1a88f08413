"""The vocabulary table: text and bytes of every id."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tokscore.rendering.tables import VOCABULARY
from tokscore.rendering.tokenizer import ChatTokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


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


def vocabulary_table(tokenizer: ChatTokenizer) -> pa.Table:
    """All ids in order, schema `tables.VOCABULARY`."""
    to_bytes = _decoder(tokenizer.backend_config().get("decoder"))
    added = {index: token.content for index, token in tokenizer.hf.added_tokens_decoder.items()}
    rows = sorted({**{i: token for token, i in tokenizer.hf.get_vocab().items()}, **added}.items())
    content = [added[i].encode() if i in added else to_bytes(token) for i, token in rows]
    text = [
        token if raw is None else raw.decode("utf-8", "replace")
        for (_, token), raw in zip(rows, content, strict=True)
    ]
    return pa.table(
        [
            pa.array([i for i, _ in rows], pa.int32()),
            pa.array(text, pa.string()),
            pa.array(content, pa.binary()),
        ],
        schema=VOCABULARY,
    )


def _decoder(config: dict[str, Any] | None) -> Callable[[str], bytes | None]:  # Any: JSON values
    """Bytes of a vocabulary entry, by the kind of decoder the tokenizer declares."""
    steps = [] if config is None else config.get("decoders", [config])
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        alphabet = byte_level_alphabet()

        def byte_level(token: str) -> bytes | None:
            if any(character not in alphabet for character in token):
                return None
            return bytes(alphabet[character] for character in token)

        return byte_level
    if kinds & {"Metaspace", "ByteFallback"}:

        def sentence_piece(token: str) -> bytes | None:
            if match := _BYTE_TOKEN.fullmatch(token):
                return bytes([int(match[1], 16)])
            return token.replace("▁", " ").encode()

        return sentence_piece
    return lambda _token: None
