"""transformers offers the same names whether it looks for them or takes them from the last process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import hashlib, json, sys
if sys.argv[1] == "remember":
    from tokscore.rendering.libraries.transformers_names import remember_transformers_names
    remember_transformers_names()
import transformers
from transformers.utils.import_utils import create_import_structure_from_path
lazy = sys.modules["transformers"]
names = [sorted(dir(transformers)), sorted(lazy._class_to_module.items()), sorted(lazy._modules),
         sorted((name, sorted(missing)) for name, missing in lazy._object_missing_backend.items())]
from transformers import LlamaConfig, PreTrainedTokenizerFast, Qwen2Tokenizer
text = json.dumps(names)
print(len(text), hashlib.sha256(text.encode()).hexdigest(), create_import_structure_from_path.cache_info().misses)
"""


def names(cache: Path, how: str = "remember") -> tuple[str, int]:
    """A fingerprint of all that transformers offers, and how many folders it looked through."""
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, how],
        env={**os.environ, "TOKSCORE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    length, digest, n_folders = finished.stdout.split()
    assert int(length) > 100_000
    return digest, int(n_folders)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> str:
    digest, n_folders = names(tmp_path_factory.mktemp("cache"), "look")
    assert n_folders > 100
    return digest


def test_names_of_the_last_process_are_those_that_are_found(found: str, tmp_path: Path) -> None:
    looked = names(tmp_path)
    assert looked[0] == found
    assert looked[1] > 100
    remembered = names(tmp_path)
    assert remembered[0] == found
    assert remembered[1] < 10


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "kinds", "folder"])
def test_a_file_that_does_not_hold_them_is_made_again(found: str, tmp_path: Path, damage: str) -> None:
    names(tmp_path)
    file = tmp_path / "transformers_names.json"
    kept = json.loads(file.read_text())
    if damage == "cut":
        file.write_text(file.read_text()[:5000])
    elif damage == "empty":
        file.write_text("null")
    elif damage == "other":
        file.write_text(json.dumps({"installed": [*kept["installed"][:-1], 1], "names": []}))
    elif damage == "kinds":
        file.write_text(json.dumps({**kept, "names": [[["torch"], {"models.llama": [3]}]]}))
    else:
        file.unlink()
        file.mkdir()
    digest, n_folders = names(tmp_path)
    assert digest == found
    assert n_folders > 100
