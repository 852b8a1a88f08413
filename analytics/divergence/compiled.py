"""Loops over tokens, compiled to machine code the first time they run and kept beside their module."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """The function in machine code, without the interpreter's lock.

    The kept code is made again when the file of the function changes, not when that of another one
    does which it calls: functions that call each other belong into one module. Dividing by 0 gives inf
    or NaN, as in numpy.
    """
    return cast("Function", njit(cache=True, nogil=True, error_model="numpy")(function))
