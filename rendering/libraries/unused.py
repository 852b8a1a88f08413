"""Libraries that are installed and that commands do without."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tokscore.rendering.libraries.transformers_names import remember_transformers_names

if TYPE_CHECKING:
    from types import ModuleType

# Each with those that would import it where they find it, for what no command asks of them: pyarrow to know
# pandas' columns among what it is given, numba to compile products of matrices and calls of C, and httpcore2
# to wait by trio instead of asyncio.
_UNUSED = {
    "pandas": ("tokscore.", "pyarrow."),
    "scipy": ("numba.",),
    "cffi": ("numba.",),
    "trio": ("httpcore2.",),
}


def import_what_is_used() -> None:
    """Let libraries go on without what commands have no use for, in this process: half a second and 60 MB.

    Others import the same libraries as ever.
    """
    if not any(isinstance(each, _Absent) for each in sys.meta_path):
        sys.meta_path.insert(0, _Absent())
    remember_transformers_names()


class _Absent:
    """Finds no such library for some, and is asked before those that would."""

    def find_spec(self, name: str, _path: object = None, _target: ModuleType | None = None) -> None:
        """Nothing, for others to look.

        Raises:
            ModuleNotFoundError: One looks for a library that no command needs it to have.
        """
        if name in _UNUSED and f"{_importer()}.".startswith(_UNUSED[name]):
            raise ModuleNotFoundError(name, name=name)


def _importer() -> str:
    """The module that imports; of compiled ones, which leave no trace, the one that calls them."""
    frame = sys._getframe(2)
    # A library that only asks whether there is a module does so in importlib.util.
    while frame.f_back is not None and frame.f_code.co_filename == "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))
