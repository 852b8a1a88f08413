from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest


class Scores(NamedTuple):
    """Two score datasets of the same conversations."""

    teacher: Path
    student: Path


@pytest.fixture(scope="session")
def scores(write_scores: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Scores:
    """Three conversations with hostile texts, empty messages and two branches."""
    samples = [
        ("long", (("user", tuple(range(1, 16))), ("assistant", tuple(range(16, 50))), ("user", ()))),
        ("forked", (("user", (1, 2)),), 0),
        ("forked", (("user", (1, 2)), ("assistant", (15, 3))), 2),
    ]
    folder = tmp_path_factory.mktemp("scores")
    return Scores(
        write_scores(folder / "teacher", samples),
        write_scores(folder / "student", samples, noise=0.7, model="student", top_k=7),
    )
