from __future__ import annotations

from pathlib import Path

import pytest

from .families import Families


@pytest.fixture(scope="session")
def families(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Families:
    """Renderers for all templates at hand."""
    return Families(assets, tmp_path_factory.mktemp("tokenizers"))
