"""Texts on which two implementations of one tokenizer are likely to differ, if they do."""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain

_WHITE_SPACE = " \t\n\r\v\f\x1c\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u200b\ufeff"
_CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'\u017f", "\u2019s", "'x", "'")
_TEXTS = (
    "",
    "def add(a: int, b: int = 2) -> int:\n\treturn a+b  # x_1, CamelCaseWord, HTTPServer2\r\n\r\n",
    '{"name": "read_file", "arguments": {"path": "src/\\u00e9.py", "line": 10, "ok": true}}\n',
    "The café's naïve coöperation — “quoted”, e.g. §3.1: 1,234.50 €; 3·10⁻⁴ m/s².",
    "https://example.org/a?b=c&d=%20e#f user@example.org C:\\dir\\file.txt $HOME/.x ~/y",
    "Привет, мир! Γειά σου. שלום עולם مرحبا بالعالم नमस्ते दुनिया ภาษาไทย",
    "ไม่เว้นวรรค 你好，世界。こんにちは 안녕하세요",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇫🇷 ☀️ 1️⃣ ℹ️ 🤷🏿‍♂️ ©️",
    "A\u030a \u00c5 \u212b e\u0301\u0323 e\u0323\u0301 \u0958 \u0344 \u1e9b\u0323 \ufb01 \u2126",
    "\u1100\u1161\u11a8",
    "q" + "\u0323\u0307\u0301" * 40 + " o" + "\u0300\u0316" * 20,
    "İstanbul ISTANBUL ıi ǅ ŉ ß ẞ ſ K",
    "\u202ertl\u202c a\u00adb \u2060 \ufffc \ufffd \U000e0041 \U0010fffd \x7f\x80\x9f\x00",
)
_RUNS = ("a", "ab", " ", "\n", "\t ", "0", "=", "中", "\u0301", "é", "-_", "\r\n", "\x00", "ก็", "😀", "A ")
# Lengths of cache keys and of words are stored in 8 or 16 bits.
_RUN_LENGTHS = (2, 3, 7, 31, 300, 4_000)
_LONGEST_RUN = 70_000
_LONGEST_RUNS = ("a", " ", "0", "中")
_MIXTURES = 200
_MIXED_PIECES = 300
_UNASSIGNED_STEP = 16


def probe_texts(added: Sequence[str]) -> Iterator[str]:
    """All probes, the same in every call.

    Args:
        added: Text of each added token.
    """
    yield from _TEXTS
    yield from _around_added(added)
    yield from _overlaps(added)
    yield from _white_space()
    yield from (
        f"it{part}{end} I{part.upper()}{end}{part}" for part in _CONTRACTIONS for end in ("", " ", "x")
    )
    yield from (f"{'9' * n} x{'1' * n}y {'7' * n}.{'3' * n}" for n in range(1, 20))
    yield from _characters()
    yield from (text * n for text in _RUNS for n in _RUN_LENGTHS)
    yield from (text * _LONGEST_RUN for text in _LONGEST_RUNS)
    yield from _mixtures(added)


def _around_added(added: Sequence[str]) -> Iterator[str]:
    """Each added token alone, between texts, white space and itself, in other letters, and not quite."""
    for token in added:
        yield token
        yield f"a{token}b {token} \n{token}\n  {token}{token}1"
        yield f"{token[1:]}x{token[:-1]} {token.upper()}{token.lower()}{token.swapcase()}"


def _overlaps(added: Sequence[str]) -> Iterator[str]:
    """Texts in which two added tokens share characters."""
    by_first: dict[str, list[str]] = {}
    for token in sorted(set(added)):
        by_first.setdefault(token[:1], []).append(token)
    for token in sorted(set(added)):
        for at in range(1, len(token)):
            ending = token[at:]
            for other in by_first.get(ending[0], ()):
                if other.startswith(ending):
                    yield f"x{token}{other[len(ending) :]}y"
                elif ending.startswith(other):
                    yield f"x{token}y"


def _white_space() -> Iterator[str]:
    for character in _WHITE_SPACE:
        yield "".join(f"a{character * n}b{character * n}\n{character * n} 1" for n in (1, 2, 3, 5, 9))
        yield from (f"x{character}{other} {other}{character}{character}y" for other in _WHITE_SPACE)
        yield f"{character} "


def _characters() -> Iterator[str]:
    """Characters at which the tables of two versions of Unicode may differ, each among others."""
    chosen, before = [], ""
    for code in range(1, sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category != before:
            chosen += [code - 1, code]
        elif category == "Cn" and not code % _UNASSIGNED_STEP:
            chosen.append(code)
        before = category
    characters = [chr(code) for code in dict.fromkeys(chosen) if not 0xD800 <= code < 0xE000]
    for i in range(0, len(characters), 64):
        yield "".join(f"x{each} {each}{each}1{each}.{each}\n" for each in characters[i : i + 64])


def _mixtures(added: Sequence[str]) -> Iterator[str]:
    rng = random.Random(0)  # noqa: S311  no secret
    pieces = [
        *_CONTRACTIONS,
        *_WHITE_SPACE,
        *chain.from_iterable(_TEXTS),
        *chain.from_iterable(text.split(" ") for text in _TEXTS),
    ]
    kinds = (pieces, added or pieces, [*_RUNS, *"0123456789"], None)
    for _ in range(_MIXTURES):
        parts = []
        for _ in range(rng.randrange(1, _MIXED_PIECES)):
            kind = rng.choice(kinds)
            parts.append(chr(rng.randrange(0xD800)) if kind is None else rng.choice(kind))
        yield "".join(parts)
