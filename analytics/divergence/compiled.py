"""Loops over tokens, compiled to machine code the first time they run and kept beside their module."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

# Loading the compiler and the kept code takes as long as the interpreter needs for more rows than that.
INTERPRETED_ROWS = 20_000


def compiled(function: Function) -> Function:
    """The function in machine code, without the interpreter's lock.

    The kept code is made again when the file of the function changes, not when that of another one
    does which it calls: functions that call each other belong into one module. Dividing by 0 gives inf
    or NaN, as in numpy.
    """
    from numba import njit

    return cast("Function", njit(cache=True, nogil=True, error_model="numpy")(function))


def compiled_if_long(function: Function) -> Function:
    """The function in machine code once it was given many rows, and as it is before.

    Its first argument has a value a row, and it calls no compiled function.
    """
    n_rows = 0
    machine: Function | None = None

    @wraps(function)
    def run(rows: Any, *arguments: Any) -> object:  # Any: as of the function
        nonlocal n_rows, machine
        n_rows += len(rows)
        if machine is None and n_rows > INTERPRETED_ROWS:
            machine = compiled(function)
        return (machine or function)(rows, *arguments)

    return cast("Function", run)
