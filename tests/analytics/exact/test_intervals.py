"""Intervals against the exact value over the whole vocabulary, on the real pair of models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokscore.analytics import TopK, topk_limits
from tokscore.rendering import ConversationError, open_source
from tokscore.scoring import TokenSequence, load_engine

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.model, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EXAMPLES = Path(__file__).parents[3] / "examples"
TOP_K = 20
ALPHA = 0.5


@pytest.fixture(scope="module")
def sequences(teacher_model: Path) -> list[np.ndarray[Any, Any]]:
    source = open_source(
        [str(EXAMPLES / "conversations.jsonl")],
        str(teacher_model),
        template=EXAMPLES / "chatml_tools.jinja",
    )
    rendered = [item for part in source.parts for item in source.read(part)]
    assert not any(isinstance(item, ConversationError) for item in rendered)
    return [item.tokens.token_ids for item in rendered]


def scored_with_logits(
    model: Path, sequences: list[np.ndarray[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, Any]]:
    """The engine's scores of one sequence after the other, with the logits that it took them from."""
    from tokscore.scoring.engines import transformers as module

    engine = load_engine("transformers", str(model), top_k=TOP_K)
    seen: list[Any] = []
    score_logits = module.score_logits

    def recorded(logits: Any, *arguments: Any) -> Any:
        seen.append(logits.clone())
        return score_logits(logits, *arguments)

    for key, token_ids in enumerate(sequences):
        with monkeypatch.context() as patch:
            patch.setattr(module, "score_logits", recorded)
            [(_, scores)] = engine.score([TokenSequence(key, token_ids)])
        yield scores, torch.cat(seen)
        seen.clear()
    engine.close()


def full_softmax(teacher: Any, student: Any) -> np.ndarray[Any, Any]:
    """KL(T||S), KL(S||T), GJS, TV, both entropies and skew KL in float64 from two blocks of logits.

    Shape [7, rows].
    """
    # A few rows at a time, which the cache holds.
    blocks = zip(teacher.split(8), student.split(8), strict=True)
    return np.concatenate([_of_block(mine.double(), theirs.double()) for mine, theirs in blocks], axis=1)


def _of_block(teacher: Any, student: Any) -> np.ndarray[Any, Any]:
    log_p, log_q = teacher.log_softmax(-1), student.log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    log_m = (ALPHA * p + (1 - ALPHA) * q).log()
    kl_teacher_student = (p * (log_p - log_q)).sum(-1)
    kl_student_teacher = (q * (log_q - log_p)).sum(-1)
    skew_kl = (p * (log_p - log_m)).sum(-1)
    gjs = ALPHA * skew_kl + (1 - ALPHA) * (q * (log_q - log_m)).sum(-1)
    total_variation = (p - q).abs().sum(-1) / 2
    entropies = -(p * log_p).sum(-1), -(q * log_q).sum(-1)
    values = (kl_teacher_student, kl_student_teacher, gjs, total_variation, *entropies, skew_kl)
    return np.stack([value.numpy() for value in values])


@pytest.mark.parametrize(
    ("every", "n_tokens"),
    [(8, 20), pytest.param(1, 250, marks=pytest.mark.slow)],
    ids=["few short ones", "the first 250 tokens of all"],
)
def test_every_interval_of_the_examples_contains_the_exact_value(
    teacher_model: Path,
    student_model: Path,
    sequences: list[np.ndarray[Any, Any]],
    monkeypatch: pytest.MonkeyPatch,
    every: int,
    n_tokens: int,
) -> None:
    """Of the beginnings of conversations, over the 49,152 ids of real distributions."""
    beginnings = [token_ids[:n_tokens] for token_ids in sequences[::every]]
    n_checked = 0
    widths = []
    teachers = scored_with_logits(teacher_model, beginnings, monkeypatch)
    students = scored_with_logits(student_model, beginnings, monkeypatch)
    for token_ids, (teacher, teacher_logits), (student, student_logits) in zip(
        beginnings, teachers, students, strict=True
    ):
        lists = [TopK(side.top_ids, side.top_logprobs, side.logprobs) for side in (teacher, student)]
        limits = topk_limits(*lists, alphas=[ALPHA], token_ids=token_ids[1:])
        intervals = (
            limits.of("kl_teacher_student"),
            limits.of("kl_student_teacher"),
            limits.of("gjs", ALPHA),
            limits.of("total_variation"),
            limits.of("entropy_teacher"),
            limits.of("entropy_student"),
            limits.of("skew_kl", ALPHA),
        )
        values = full_softmax(teacher_logits, student_logits)
        for value, bounds in zip(values, intervals, strict=True):
            assert (bounds.lower <= value).all()
            assert (value <= bounds.upper).all()
        gjs = limits.of("gjs", ALPHA)
        assert (gjs.lower > 0).mean() > 0.9
        assert np.isfinite(gjs.upper).all()
        widths.append(gjs.upper - gjs.lower)
        n_checked += len(token_ids) - 1
    assert n_checked >= 15 // every * (n_tokens - 1)
    assert 0 < np.concatenate(widths).mean() < np.log(2)
