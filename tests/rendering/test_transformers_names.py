"""transformers offers the same names whether it looks for them or takes them from the last process."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokscore.rendering.libraries.remembered import (
    cache_directory,
    read_remembered,
    remembered_file,
    write_remembered,
)
from tokscore.rendering.libraries.transformers_names import FILE, MAX_INSTALLATIONS, _installed, _remembering

SCRIPT = """
import hashlib, json, sys
if sys.argv[1] == "remember":
    from tokscore.rendering.libraries.transformers_names import remember_transformers_names
    remember_transformers_names()
import transformers
import transformers.models
from transformers.utils.import_utils import create_import_structure_from_path
lazy = sys.modules["transformers"]
names = [sorted(dir(transformers)), sorted(lazy._class_to_module.items()), sorted(lazy._modules),
         sorted(dir(transformers.models)),
         sorted((name, sorted(missing)) for name, missing in lazy._object_missing_backend.items())]
text = json.dumps(names)
print(len(text), hashlib.sha256(text.encode()).hexdigest(), create_import_structure_from_path.cache_info().misses)
"""


def names(cache: Path, how: str) -> tuple[str, int]:
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


@pytest.mark.slow
def test_names_of_the_last_process_are_those_that_are_found(tmp_path: Path) -> None:
    found, n_folders = names(tmp_path, "look")
    assert n_folders > 100
    looked, n_folders = names(tmp_path, "remember")
    assert n_folders > 100
    remembered, n_folders = names(tmp_path, "remember")
    assert n_folders < 10
    assert found == looked == remembered


@pytest.mark.parametrize("damage", ["cut", "null", "one", "other", "kinds", "folder"])
def test_a_file_that_does_not_hold_them_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    from transformers.utils.import_utils import define_import_structure

    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path))
    models = Path(str(sys.modules["transformers"].__file__)).parent / "models"
    asked: list[object] = []

    def look(path: str | Path, prefix: str | None = None) -> dict[frozenset[str], dict[str, set[str]]]:
        asked.append(path)
        found: dict[frozenset[str], dict[str, set[str]]] = define_import_structure(path, prefix)
        return found

    find = _remembering(look)
    expected = define_import_structure(models, "models")
    assert find(models, "models") == find(models, "models") == expected
    assert len(asked) == 1
    file = tmp_path / FILE
    (kept,) = json.loads(file.read_text())
    if damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        text = {
            "cut": file.read_text()[:5000],
            "null": "null",
            "one": json.dumps(kept),
            "other": json.dumps([{"installed": [*kept["installed"][:-1], 1], "names": []}]),
            "kinds": json.dumps([None, {**kept, "names": [[["torch"], {"models.llama": [3]}]]}]),
        }[damage]
        file.write_text(text)
    assert find(models, "models") == expected
    assert len(asked) == 2


def test_environments_beside_each_other_are_all_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path))
    release = importlib.metadata.version("transformers")
    asked: list[Path] = []

    def look(path: Path, prefix: str | None = None) -> dict[frozenset[str], dict[str, set[str]]]:
        asked.append(path)
        return {frozenset({"torch"}): {"llama": {path.parts[-3]}}}

    def environment(name: str) -> Path:
        models = tmp_path / name / "transformers" / "models"
        models.mkdir(parents=True)
        record = tmp_path / name / f"transformers-{release}.dist-info" / "RECORD"
        record.parent.mkdir()
        record.touch()
        return models

    places = [environment(f"env{n}") for n in range(MAX_INSTALLATIONS + 2)]
    find = _remembering(look)
    few = places[:MAX_INSTALLATIONS]
    for models in [*few, *few]:
        assert find(models) == {frozenset({"torch"}): {"llama": {models.parts[-3]}}}
    assert asked == few
    # Another version in the same place takes that place, and the oldest of too many goes.
    (few[1] / "mine").mkdir()
    for models in (few[1], few[0], *places[MAX_INSTALLATIONS:]):
        find(models)
    kept = [each["installed"][0] for each in json.loads((tmp_path / FILE).read_text())]
    assert kept == [str(each) for each in (few[3], few[1], *places[MAX_INSTALLATIONS:])]


def test_other_folders_are_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils.import_utils import define_import_structure

    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path))
    llama = Path(str(sys.modules["transformers"].__file__)).parent / "models" / "llama"
    find = _remembering(define_import_structure)
    assert find(llama) == define_import_structure(llama)
    assert not (tmp_path / FILE).exists()


def test_a_model_that_is_put_among_them_by_hand_is_looked_for(tmp_path: Path) -> None:
    release = importlib.metadata.version("transformers")
    models, record = tmp_path / "transformers/models", tmp_path / f"transformers-{release}.dist-info/RECORD"
    models.mkdir(parents=True)
    record.parent.mkdir()
    record.touch()
    os.utime(models, ns=(0, 0))
    before = _installed(models)
    assert before is not None
    assert _installed(models) == before
    (models / "mine").mkdir()
    assert _installed(models) != before


def test_without_a_home_directory_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TOKSCORE_CACHE", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    write_remembered(FILE, [1])
    assert read_remembered(FILE) is None


def test_the_cache_of_the_desktop_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKSCORE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert remembered_file(FILE) == tmp_path / "tokscore" / FILE
    assert cache_directory() == tmp_path / "tokscore"


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOKSCORE_CACHE", "~/cache")
    write_remembered(FILE, [1])
    assert remembered_file(FILE) == tmp_path / "cache" / FILE
    assert read_remembered(FILE) == [1]


def test_what_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path))
    monkeypatch.setattr(json, "dump", no_space)
    write_remembered(FILE, [1])
    assert list(tmp_path.iterdir()) == []
