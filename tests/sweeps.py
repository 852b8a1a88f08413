"""Parameters of which the quick tests run a few, and `make slow` the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")


def sweep(values: Iterable[T], quick: Collection[T]) -> list[T | ParameterSet]:
    """All values, those that are not among the quick ones marked slow."""
    values = list(values)
    assert set(quick) <= set(values)
    return [each if each in quick else pytest.param(each, marks=pytest.mark.slow) for each in values]
