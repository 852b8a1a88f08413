"""Libraries that are installed and that commands do without."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_LIBRARY = "pandas"
_FROM = ("tokscore.", "pyarrow.")


def keep_pandas_out() -> None:
    """Let pyarrow go on without pandas in this process: its import takes a third of a second and 40 MB.

    pyarrow imports pandas whenever it makes an array, to know pandas' columns among what it is given, and no
    command gives it any. Other libraries import pandas as ever.
    """
    if _LIBRARY not in sys.modules and not any(isinstance(each, _Absent) for each in sys.meta_path):
        sys.meta_path.insert(0, _Absent())


class _Absent:
    """Finds no pandas for pyarrow, and is asked before those that would."""

    def find_spec(self, name: str, _path: object = None, _target: ModuleType | None = None) -> None:
        """Nothing, for others to look.

        Raises:
            ModuleNotFoundError: pyarrow looks for pandas.
        """
        if name == _LIBRARY and _importer().startswith(_FROM):
            raise ModuleNotFoundError(name, name=name)


def _importer() -> str:
    """The module that imports; of compiled ones, which leave no trace, the one that calls them."""
    frame = sys._getframe(2)
    # A library that only asks whether there is a module does so in importlib.util.
    while frame.f_back is not None and frame.f_code.co_filename == "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))
