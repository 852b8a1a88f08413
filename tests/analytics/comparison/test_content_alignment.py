"""Content tokens of two renderings of the same messages, matched by the text they cover."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tokscore.analytics import diff_report
from tokscore.analytics.comparison.content_alignment import AlignedRows, ContentAligner
from tokscore.cli.app import app
from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.rows import token_columns
from tokscore.dataset.tokens import ConversationRow, RenderedConversation, RenderedTokens
from tokscore.rendering import ChatTokenizer, Renderer, parse_conversation

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
# The text is stripped, and its last characters share a token with the quotation mark.
QUOTED = '{% for m in messages %}{{ m.role }}: "{{ m.content | trim }}"\n{% endfor %}'


VOCABULARY = [
    b"\n", b"\n\n", b"\nHi", b"Hi", b" there", b".", b".\n", b" ha", b"ha", b"\xe4\xbd", b"\xa0", b"\xe5\xa5\xbd",
]  # fmt: skip


def table(*tokens: bytes | None) -> tuple[pa.Table, np.ndarray[Any, Any]]:
    """One message's tokens; None is one of the template."""
    ids = [0 if text is None else VOCABULARY.index(text) for text in tokens]
    is_content = [text is not None for text in tokens]
    columns = {
        "token_id": pa.array(ids, pa.int32()),
        "message_index": pa.array([0] * len(ids), pa.int32()),
        "role": pa.array(["user"] * len(ids)),
        "source": pa.array(["content" if each else "template" for each in is_content]),
        "is_content": pa.array(is_content),
    }
    return pa.table(columns), np.array([0, len(ids)])


def aligned(teacher: Sequence[bytes | None], student: Sequence[bytes | None]) -> AlignedRows:
    return ContentAligner(dict(enumerate(VOCABULARY))).align(*table(*teacher), *table(*student))


@pytest.mark.parametrize(
    ("teacher", "student", "pairs"),
    [
        pytest.param([None, b"Hi", b"."], [b"Hi", b"."], [(1, 0), (2, 1)], id="equal"),
        pytest.param(
            [b"\nHi", b" there"], [None, b"Hi", b" there"], [(1, 2)], id="header in the first token"
        ),
        pytest.param([b"Hi", b".\n"], [b"Hi", b".", None], [(0, 0)], id="stop in the last token"),
        pytest.param(
            [b"\nHi", b" there", b"."], [b"Hi", b" there", b".\n"], [(1, 1)], id="one at either end"
        ),
        pytest.param([b"\n\n", b"Hi", b"\n"], [b"Hi"], [(1, 0)], id="stripped"),
        pytest.param([b"\n", b"Hi", b"."], [b"\n\n", b"Hi", b"."], [(1, 1), (2, 2)], id="other line breaks"),
        pytest.param([b"Hi", b".\n"], [b"Hi", b".", b"\n\n"], [(0, 0)], id="stripped before the stop"),
        pytest.param([b"\n", b"\n"], [b"\n\n"], [], id="other merges of the same text"),
        pytest.param([b" ha", b" ha", b" ha"], [b" ha"], [], id="several places"),
        pytest.param([b" ha", b" ha"], [b" ha", b" ha", b"\n"], [(0, 0), (1, 1)], id="repeated text"),
        pytest.param([b"Hi", b" there"], [b"ha", b"."], [], id="other text"),
        pytest.param([b"Hi", b"."], [b"Hi", b" there", b"."], [], id="text put in the middle"),
        pytest.param(
            [b"Hi", None, b"\nHi", b"."],
            [b"Hi", b"\n", b"Hi", b"."],
            [(0, 0), (3, 3)],
            id="another merge within",
        ),
        pytest.param(
            [b"Hi", b"\n", None, b" there", b"."],
            [b"Hi", None, b" there", b".\n"],
            [(0, 0), (3, 2)],
            id="run by run",
        ),
        pytest.param(
            [b"\n", b"\xe4\xbd", b"\xa0", b"\xe5\xa5\xbd"],
            [b"\xe4\xbd", b"\xa0", b"\xe5\xa5\xbd"],
            [(1, 0), (2, 1), (3, 2)],
            id="parts of a character",
        ),
    ],
)
def test_tokens_with_the_same_span_are_partners(
    teacher: list[bytes | None], student: list[bytes | None], pairs: list[tuple[int, int]]
) -> None:
    found = aligned(teacher, student)
    assert list(zip(found.teacher.tolist(), found.student.tolist(), strict=True)) == pairs
    content = [[i for i, text in enumerate(side) if text is not None] for side in (teacher, student)]
    assert found.teacher_alone.tolist() == sorted(set(content[0]) - {mine for mine, _ in pairs})
    assert found.student_alone.tolist() == sorted(set(content[1]) - {other for _, other in pairs})
    swapped = aligned(student, teacher)
    assert sorted(zip(swapped.student.tolist(), swapped.teacher.tolist(), strict=True)) == pairs


class Rendering(NamedTuple):
    """One rendered conversation as a token table, with the text it stands for."""

    tokens: RenderedTokens
    table: pa.Table


def rendering(tokenizer: ChatTokenizer, template: str, messages: list[dict[str, str]]) -> Rendering:
    tokenizer = copy(tokenizer)
    tokenizer.template = template
    tokens = Renderer(tokenizer).render(parse_conversation(json.dumps({"messages": messages}).encode()))
    row = ConversationRow("c", 0, "convs.jsonl", 1)
    return Rendering(tokens, pa.table(token_columns([RenderedConversation(row, tokens)])))


def spans(found: Rendering, messages: list[dict[str, str]]) -> dict[tuple[int, int, int, int], int]:
    """Tokens by message, characters of its content and id, told from the rendered text."""
    text = found.tokens.text
    assert text is not None
    assert found.tokens.char_starts is not None
    assert found.tokens.char_stops is not None
    keys, at = {}, 0
    for index, message in enumerate(messages):
        stripped = message["content"].strip()
        at = text.index(stripped, at)
        first = at - message["content"].index(stripped)
        at += len(stripped)
        for row in np.flatnonzero(found.tokens.is_content & (found.tokens.message_indices == index)).tolist():
            span = (int(each[row]) - first for each in (found.tokens.char_starts, found.tokens.char_stops))
            keys[(index, *span, int(found.tokens.token_ids[row]))] = row
    return keys


def test_partners_of_a_real_tokenizer_are_those_of_equal_characters(teacher_model: Path) -> None:
    messages = [
        {"role": "user", "content": "\n\nWhat is 12 * 7?  "},
        {"role": "assistant", "content": "It is 84: 12 * 7 = 84.\n"},
        {"role": "user", "content": "\u4f60\u597d, thanks \U0001f389"},
        {"role": "assistant", "content": ")."},
    ]
    tokenizer = ChatTokenizer(str(teacher_model))
    chatml, quoted = (rendering(tokenizer, template, messages) for template in (CHATML, QUOTED))
    expected = [spans(each, messages) for each in (chatml, quoted)]
    pairs = sorted((expected[0][key], expected[1][key]) for key in expected[0].keys() & expected[1].keys())
    contents = tokenizer.token_bytes.contents
    aligner = ContentAligner({i: raw for i, raw in enumerate(contents) if raw is not None})
    found = aligner.align(
        chatml.table, np.array([0, len(chatml.tokens)]), quoted.table, np.array([0, len(quoted.tokens)])
    )
    assert list(zip(found.teacher.tolist(), found.student.tolist(), strict=True)) == pairs
    # Some share a token with the template, and have no partner.
    assert 0 < len(found.teacher_alone) < len(pairs)
    assert 0 < len(found.student_alone) < len(pairs)


def other_template(write_dataset: Make, conversations: list[Any]) -> Path:
    dataset: Path = write_dataset(conversations, tokenizer={"template_sha256": "d" * 64})
    return dataset


@pytest.fixture
def sides(conversation: Make, write_dataset: Make) -> tuple[Path, Path, Path]:
    """A teacher; a student of the same tokens; the same scores of the student under a longer template."""
    made = [[conversation(f"c{n}", seed=n, model=model, n_header=header) for n in range(5)]
            for model, header in ((0, 0), (1, 0), (1, 3))]  # fmt: skip
    made[2].pop(3)
    made[1].pop(3)
    return write_dataset(made[0], n_parts=2), write_dataset(made[1]), other_template(write_dataset, made[2])


def test_the_content_under_another_template_gives_the_same_numbers(sides: tuple[Path, Path, Path]) -> None:
    teacher, student, longer = sides
    plain = diff_report(teacher, student, alpha=[0.1, 0.5], by="role,message_index")
    found = diff_report(teacher, longer, alpha=[0.1, 0.5], by="role,message_index", align="content")
    assert replace(found.total, n_unscored=0) == replace(plain.total, n_unscored=0)
    assert found.groups[:2] == plain.groups[:2]
    assert (found.n_conversations, found.n_only_teacher, found.n_only_student) == (4, 1, 0)
    assert found.alignment == (4 * 7, 0, 0)
    assert (plain.alignment, found.to_dict()["alignment"]) == (None, found.alignment._asdict())
    assert [each._replace(before="", after="") for each in found.contexts] == [
        each._replace(before="", after="") for each in plain.contexts
    ]


def test_tokens_keep_the_places_of_both_sides(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    diff_report(sides[2], sides[0], out=tmp_path / "out", align="content")
    rows = pq.read_table(tmp_path / "out/tokens.parquet", filters=[("conversation_id", "=", "c0")])
    assert rows["student_position"].to_pylist() == [1, 2, 3, 4, 5, 6, 7]
    assert rows["position"].to_pylist() == [4, 5, 6, 10, 11, 12, 13]


def test_tokens_of_one_side_are_counted_by_group(conversation: Make, write_dataset: Make) -> None:
    short = conversation("c", [("user", 3), ("assistant", 2)], n_header=1)
    messages = [("user", 3), ("assistant", 2), ("user", 4)]
    longer = conversation("c", messages, seed=1)
    longer.token_ids[1:6] = short.token_ids[[2, 3, 4, 6, 7]]
    report = diff_report(write_dataset([longer]), other_template(write_dataset, [short]), align="content")
    assert report.alignment == (5, 4, 0)
    assert {row.group: (row.n_tokens, row.n_unaligned) for row in report.groups} == {
        "assistant": (2, 0),
        "user": (3, 4),
        None: (0, 0),
    }


def test_another_template_is_refused_with_the_way_to_compare_it(sides: tuple[Path, Path, Path]) -> None:
    with pytest.raises(InputError, match="compare only the text of messages: `align='content'`"):
        diff_report(sides[0], sides[2])


def test_a_bad_logprob_of_the_student_is_named_by_its_place(conversation: Make, write_dataset: Make) -> None:
    def spoil(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        values = [*scores["logprob"].to_pylist()[:4], 0.5, *scores["logprob"].to_pylist()[5:]]
        return scores | {"logprob": pa.array(values, pa.float32())}

    made = [conversation("a", n_header=2), conversation("b", [("user", 2)], n_header=2)]
    spoiled = write_dataset(made, columns=spoil)
    with pytest.raises(InputError, match=r"conversation 'a', position 4: the logprob of id \d+ is 0\.5"):
        diff_report(
            write_dataset([conversation("a"), conversation("b", [("user", 2)])]), spoiled, align="content"
        )


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"tokenizer": {"sha256": "f" * 64}}, InputError, "the tokenizer is"),
        ({"settings": {"temperature": 0.7}}, InputError, r"settings\.temperature"),
    ],
)
def test_another_tokenizer_or_setting_is_still_refused(
    conversation: Make, write_dataset: Make, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    ours = [conversation("c")]
    with pytest.raises(error, match=message):
        diff_report(write_dataset(ours), write_dataset(ours, **settings), align="content")


def test_no_shared_content_is_refused(conversation: Make, write_dataset: Make) -> None:
    other = conversation("c", seed=1)
    with pytest.raises(InputError, match=r"no content token in the same place .* \(7 and 7 content tokens\)"):
        diff_report(write_dataset([conversation("c")]), write_dataset([other]), align="content")


def test_estimates_from_sampled_tokens_are_refused(sides: tuple[Path, Path, Path]) -> None:
    with pytest.raises(UsageError, match="`align='content'` leaves some out"):
        diff_report(sides[0], sides[2], align="content", sampled_by="student")


def test_the_command_says_that_contexts_differ(sides: tuple[Path, Path, Path]) -> None:
    arguments = ["diff", str(sides[0]), str(sides[2]), "--align", "content", "--format", "json"]
    finished = CliRunner().invoke(app, arguments)
    assert finished.exit_code == 0, finished.output
    assert "0 of " in finished.stderr
    assert "The models read different text before each token" in finished.stderr
    assert json.loads(finished.stdout)["alignment"]["n_aligned"] == 28


@pytest.mark.parametrize(
    "options", [["--on", "x.jsonl"], ["--exact"], ["--html", "x.html"], ["--recorded", "scores"]]
)
def test_what_needs_equal_tokens_is_refused_with_align_content(options: list[str]) -> None:
    sides = [] if options[0] == "--recorded" else ["a", "b"]
    finished = CliRunner().invoke(app, ["diff", *sides, *options, "--align", "content"])
    assert isinstance(finished.exception, UsageError)
    assert "--align content" in str(finished.exception)
