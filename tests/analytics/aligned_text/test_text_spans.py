"""Spans of the same text in two tokenizations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokscore.analytics.aligned_text.text_spans import TextSpans, text_spans
from tokscore.analytics.comparison.content_alignment import FieldText

texts = st.text(st.characters(codec="utf-8"), max_size=24)


def field(*tokens: bytes) -> FieldText:
    return FieldText(b"".join(tokens).decode("latin-1"), np.cumsum([0, *map(len, tokens)]))


def pieces(
    spans: TextSpans, teacher: tuple[bytes, ...], student: tuple[bytes, ...]
) -> list[tuple[bytes, ...]]:
    """The tokens of each span, the teacher's before the student's."""
    return [
        (b"|".join(teacher[a:b]), b"|".join(student[c:d]))
        for (a, b), (c, d) in zip(
            pairwise(spans.teacher.tolist()), pairwise(spans.student.tolist()), strict=True
        )
    ]


@st.composite
def tokenizations(draw: st.DrawFn) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """One text cut twice, anywhere between its bytes, with tokens that have none."""
    raw = draw(texts).encode()
    found = []
    for _ in range(2):
        cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=12)))
        found.append(tuple(raw[start:stop] for start, stop in pairwise([0, *cuts, len(raw)])))
    return found[0], found[1]


@given(tokenizations())
def test_spans_tile_the_tokens_and_the_text_of_both_sides(
    cut: tuple[tuple[bytes, ...], tuple[bytes, ...]],
) -> None:
    teacher, student = cut
    spans = text_spans(field(*teacher), field(*student))
    assert spans is not None
    raw = b"".join(teacher)
    if not raw:
        assert spans.n_spans == 0
        return
    assert (spans.teacher[0], spans.teacher[-1]) == (0, len(teacher))
    assert (spans.student[0], spans.student[-1]) == (0, len(student))
    assert (spans.starts[0], spans.starts[-1]) == (0, len(raw))
    for side, bounds in ((teacher, spans.teacher), (student, spans.student)):
        assert (np.diff(bounds) > 0).all()
        found = [b"".join(side[a:b]) for a, b in pairwise(bounds.tolist())]
        assert found == [raw[a:b] for a, b in pairwise(spans.starts.tolist())]
        for text in found:
            text.decode()  # whole characters
    # None can be cut further: no character begins where both have a boundary inside a span.
    inner = [set(np.cumsum([len(token) for token in side])[:-1].tolist()) for side in cut]
    whole = {len(raw.decode()[:n].encode()) for n in range(len(raw.decode()))}
    assert set(spans.starts[1:-1].tolist()) == (inner[0] & inner[1] & whole) - {0, len(raw)}


@given(tokenizations())
def test_equal_tokenizations_of_whole_characters_have_a_span_a_token(
    cut: tuple[tuple[bytes, ...], tuple[bytes, ...]],
) -> None:
    characters = b"".join(cut[0]).decode()
    tokens = tuple(character.encode() for character in characters)
    spans = text_spans(field(*tokens), field(*tokens))
    assert spans is not None
    assert spans.n_spans == len(tokens)


@given(tokenizations())
def test_sides_can_be_exchanged(cut: tuple[tuple[bytes, ...], tuple[bytes, ...]]) -> None:
    one, other = (text_spans(field(*a), field(*b)) for a, b in (cut, cut[::-1]))
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.teacher, other.student)
    np.testing.assert_array_equal(one.student, other.teacher)


@pytest.mark.parametrize(
    ("teacher", "student", "expected"),
    [
        pytest.param(
            (b"Hel", b"lo", b" there"),
            (b"Hello", b" th", b"ere"),
            [(b"Hel|lo", b"Hello"), (b" there", b" th|ere")],
            id="boundaries in common",
        ),
        pytest.param(
            (b"\xe4\xbd", b"\xa0", b"\xe5\xa5\xbd"),
            (b"\xe4\xbd", b"\xa0\xe5", b"\xa5\xbd"),
            [(b"\xe4\xbd|\xa0|\xe5\xa5\xbd", b"\xe4\xbd|\xa0\xe5|\xa5\xbd")],
            id="characters that tokens share",
        ),
        pytest.param(
            (b"\nHi", b" there"), (b"Hi", b" the", b"re"), [(b" there", b" the|re")], id="header in a token"
        ),
        pytest.param((b"Hi", b".\n"), (b"H", b"i", b"."), [(b"Hi", b"H|i")], id="stop in a token"),
        pytest.param(
            (b"aHi", b" there"),
            (b"b", b"Hi", b" there"),
            [(b" there", b" there")],
            id="other first characters",
        ),
        pytest.param(
            (b"Hi", b" ha"), (b"Hi", b"", b" ha", b""), [(b"Hi", b"Hi|"), (b" ha", b" ha|")], id="empty"
        ),
    ],
)
def test_spans_of_known_texts(
    teacher: tuple[bytes, ...], student: tuple[bytes, ...], expected: list[tuple[bytes, bytes]]
) -> None:
    spans = text_spans(field(*teacher), field(*student))
    assert spans is not None
    assert pieces(spans, teacher, student) == expected


def test_other_texts_have_no_spans() -> None:
    assert text_spans(field(b"Hi", b" there", b"."), field(b"Hi", b" here", b".")) is None
    assert text_spans(field(b"ha", b" ha", b" ha"), field(b" ha")) is None
