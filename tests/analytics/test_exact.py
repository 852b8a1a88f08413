"""Intervals against the exact value over the whole vocabulary, on the real pair of models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokscore.analytics import TopK, topk_divergences
from tokscore.rendering import ConversationError, open_source
from tokscore.scoring import TokenSequence, load_engine

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.model, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EXAMPLES = Path(__file__).parents[2] / "examples"
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


def exact(teacher: Any, student: Any) -> np.ndarray[Any, Any]:
    """KL(T||S), KL(S||T) and GJS in float64 from two blocks of logits; shape [3, rows]."""
    p, q = (torch.log_softmax(logits.double(), dim=-1) for logits in (teacher, student))
    m = torch.logaddexp(p + np.log(ALPHA), q + np.log1p(-ALPHA))
    kl_teacher_student = (p.exp() * (p - q)).sum(-1)
    kl_student_teacher = (q.exp() * (q - p)).sum(-1)
    gjs = ALPHA * (p.exp() * (p - m)).sum(-1) + (1 - ALPHA) * (q.exp() * (q - m)).sum(-1)
    return np.stack([kl_teacher_student.numpy(), kl_student_teacher.numpy(), gjs.numpy()])


def test_every_interval_of_the_examples_contains_the_exact_value(
    teacher_model: Path,
    student_model: Path,
    sequences: list[np.ndarray[Any, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_checked = 0
    widths = []
    teachers = scored_with_logits(teacher_model, sequences, monkeypatch)
    students = scored_with_logits(student_model, sequences, monkeypatch)
    for token_ids, (teacher, teacher_logits), (student, student_logits) in zip(
        sequences, teachers, students, strict=True
    ):
        divergences = topk_divergences(
            TopK(teacher.top_ids, teacher.top_logprobs, teacher.logprobs),
            TopK(student.top_ids, student.top_logprobs, student.logprobs),
            alpha=ALPHA,
            token_ids=token_ids[1:],
        )
        values = np.concatenate(
            [exact(t, s) for t, s in zip(teacher_logits.split(256), student_logits.split(256), strict=True)],
            axis=1,
        )
        for value, bounds in zip(values, divergences, strict=True):
            assert (bounds.lower <= value).all()
            assert (value <= bounds.upper).all()
        assert (divergences.gjs.lower > 0).mean() > 0.9
        assert np.isfinite(divergences.gjs.upper).all()
        widths.append(divergences.gjs.upper - divergences.gjs.lower)
        n_checked += len(token_ids) - 1
    assert n_checked == sum(len(token_ids) - 1 for token_ids in sequences) > 8_000
    assert 0 < np.concatenate(widths).mean() < np.log(2)
