"""Two tiny models, and the datasets that they scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analytics.exact.pairs import Pair, score_pair, write_conversations


@pytest.fixture(scope="session")
def pair(tiny_model: Path, other_tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("pair")
    return score_pair(folder, write_conversations(folder / "convs.jsonl"), tiny_model, other_tiny_model)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of about two conversations."""
    monkeypatch.setattr("tokscore.analytics.exact.run.MIN_PART_TOKENS", 100)
