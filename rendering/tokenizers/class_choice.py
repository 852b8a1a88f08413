"""Which class of transformers AutoTokenizer chose for a model, remembered from one process to the next.

AutoTokenizer imports torch and the configurations of all models to choose, for seconds. It decides by the
files of the model, so that for the same files and versions the class can be loaded at once.
"""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tokscore.rendering.libraries.remembered import read_remembered, write_remembered

# What the choice depends on beside the files.
_PACKAGES = ("transformers", "tokenizers", "mistral-common", "sentencepiece", "tiktoken")
_SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt", ".tiktoken", ".py"})
_READ_BYTES = 2**20  # of longer files, size and time of change stand for the content
_KEPT = 500
FILE = "tokenizer_classes.json"


def remembered_class(model: str) -> Any:  # Any: a class of transformers, which has no usable types
    """The class that AutoTokenizer chose for a model directory, None where it is not known."""
    name = _read().get(_key(model) or "")
    if name is None:
        return None
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError):
        return None


def remember_class(model: str, tokenizer: Any) -> None:  # Any: of transformers
    """Keep the class that AutoTokenizer chose, where it is a fast one of transformers' own."""
    kind = type(tokenizer)
    key = _key(model)
    if key is None or not tokenizer.is_fast or not kind.__module__.startswith("transformers."):
        return
    known = _read()
    name = f"{kind.__module__}:{kind.__qualname__}"
    if known.get(key) == name:
        return
    write_remembered(FILE, {**dict([*known.items()][-_KEPT:]), key: name})


def _read() -> dict[str, str]:
    found = read_remembered(FILE)
    if not isinstance(found, dict):
        return {}
    return {
        key: name
        for key, name in found.items()
        if isinstance(name, str) and name.startswith("transformers.") and name.count(":") == 1
    }


def _key(model: str) -> str | None:
    """A hash of all that the choice depends on; None where that is no directory with a tokenizer.json."""
    folder = Path(model)
    if not (folder / "tokenizer.json").is_file():
        return None
    digest = hashlib.sha256(json.dumps([model, str(folder.resolve()), *map(_version, _PACKAGES)]).encode())
    try:
        for path in sorted(folder.iterdir()):
            if path.suffix in _SUFFIXES and path.is_file():
                status = path.stat()
                content: object = [status.st_size, status.st_mtime_ns]
                if status.st_size <= _READ_BYTES:
                    content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(json.dumps([path.name, content]).encode())
    except OSError:
        return None
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
