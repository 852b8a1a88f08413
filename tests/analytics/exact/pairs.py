"""Pairs of models with the datasets that they scored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tokscore.analytics.exact.run import CompareTokens, ExactRun
from tokscore.rendering import open_source
from tokscore.scoring import TokenSequence, plan_engine
from tokscore.scoring.run import score

ALPHAS = (0.1, 0.9)
N_CONVERSATIONS = 12


class Pair(NamedTuple):
    """Score datasets of the same conversations, and the models that scored them."""

    teacher: Path
    student: Path
    teacher_model: Path
    student_model: Path

    def start(self, _ahead: Iterable[TokenSequence] = ()) -> AbstractContextManager[CompareTokens]:
        return self._start()

    @contextmanager
    def _start(self) -> Iterator[CompareTokens]:
        from tokscore.scoring.exact.measuring import measuring

        plans = [
            plan_engine(str(model), engine="transformers", top_k=0)
            for model in (self.teacher_model, self.student_model)
        ]
        with measuring(*plans, alphas=ALPHAS) as measure:
            yield measure

    def run(self, folder: Path, **settings: Any) -> ExactRun:
        """A run that keeps its parts in a folder."""
        settings = {"alphas": ALPHAS, "start": self.start, **settings}
        return ExactRun(folder, self.teacher, self.student, **settings)


def score_pair(folder: Path, lines: Path, teacher: Path, student: Path, **settings: Any) -> Pair:
    """Both models' scores of the conversations in a file."""
    for model, name in ((teacher, "teacher"), (student, "student")):
        plan = plan_engine(str(model), **{"engine": "transformers", "top_k": 5, **settings})
        score(open_source(str(lines), str(teacher)), folder / name, plan)
    return Pair(folder / "teacher", folder / "student", teacher, student)


def write_conversations(path: Path, n: int = N_CONVERSATIONS) -> Path:
    """Short ones, of two topics."""
    records = [
        {
            "id": f"c{index}",
            "messages": [
                {"role": "user", "content": f"Hi, {index}" * (1 + index % 3)},
                {"role": "assistant", "content": "Good morning. " * (1 + index % 5)},
            ],
            "metadata": {"topic": "greeting" if index < 4 else "weather"},
        }
        for index in range(n)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
