"""The names that transformers offers, remembered from one process to the next.

To know them, transformers reads its own 1,700 files whenever it is imported, which takes a third of a second.
They change only where another version is installed.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tokscore.rendering.libraries.remembered import read_remembered, write_remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

FILE = "transformers_names.json"
# Environments beside each other, whose processes would otherwise find out in turns. Each has 200 kB.
MAX_INSTALLATIONS = 4
_PACKAGE = "transformers"
_MODULE = f"{_PACKAGE}.utils.import_utils"
# By what must be installed for them, the names of each module.
Names: TypeAlias = "dict[frozenset[str], dict[str, set[str]]]"


def remember_transformers_names() -> None:
    """Let the next import of transformers in this process take its names from the last one's."""
    if _PACKAGE not in sys.modules and not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds the module of transformers that looks for names, to have it ask here first."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as it is found without this, with a loader around its own; nothing for other modules."""
        if name != _MODULE:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads a module and puts a function of it behind what is remembered."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:  # Any: whatever else a loader has
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        self._loader.exec_module(module)
        find = getattr(module, "define_import_structure", None)
        if find is not None:
            vars(module)["define_import_structure"] = _remembering(find)


def _remembering(find: Callable[..., Names]) -> Callable[..., Names]:
    """The function, which takes the names of all models' modules from the file where that holds them."""

    def define_import_structure(module_path: str | Path, prefix: str | None = None) -> Names:
        installed = _installed(Path(module_path))
        if installed is None:
            return find(module_path, prefix)
        names = _read(installed)
        if names is None:
            names = find(module_path)
            if all(isinstance(each, str) for needs in names for each in needs):
                kept = [[sorted(needs), {k: sorted(v) for k, v in of.items()}] for needs, of in names.items()]
                write_remembered(FILE, [*_others(installed), {"installed": installed, "names": kept}])
        before = f"{prefix}." if prefix else ""
        return {
            needs: {before + module: set(each) for module, each in of.items()} for needs, of in names.items()
        }

    return define_import_structure


def _installed(path: Path) -> list[object] | None:
    """What changes whenever other files are installed; None where files may change without.

    Args:
        path: Of the folder of all models or its `__init__`; the folders below are read at once.
    """
    models = path.parent if path.name == "__init__.py" else path
    if models.name != "models" or models.parent.name != _PACKAGE:
        return None
    try:
        release = version(_PACKAGE)
        status = (models.parents[1] / f"{_PACKAGE}-{release}.dist-info" / "RECORD").stat()
        folder = models.stat()  # changes where one puts a folder of a model among them by hand
    except (PackageNotFoundError, OSError):
        return None
    return [str(models), release, status.st_size, status.st_mtime_ns, folder.st_mtime_ns]


def _read(installed: list[object]) -> Names | None:
    for found in _entries():
        if found.get("installed") == installed:
            try:
                return {
                    frozenset(_texts(needs)): {module: set(_texts(each)) for module, each in of.items()}
                    for needs, of in found["names"]
                }
            except (KeyError, TypeError, ValueError, AttributeError):
                return None
    return None


def _entries() -> list[dict[str, Any]]:  # Any: JSON values
    """What is remembered of each installation, the last one at the end."""
    found = read_remembered(FILE)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _others(installed: list[object]) -> list[dict[str, Any]]:  # Any: JSON values
    """The last of other places; what was remembered of the same place is of what was there before."""
    others = [each for each in _entries() if _place(each.get("installed")) not in (None, installed[0])]
    return others[1 - MAX_INSTALLATIONS :]


def _place(installed: object) -> object:
    return installed[0] if isinstance(installed, list) and installed else None


def _texts(values: object) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise TypeError
    return values
