"""Sums that do not depend on the order of their terms, so that sharding never changes a number."""

from __future__ import annotations

from collections.abc import Iterable

# Every finite float64 is a whole multiple of 2**-1074.
_FRACTION_BITS = 1074


class ExactSum:
    """Sum of finite float64 values without rounding, until it is read."""

    __slots__ = ("_scaled",)

    def __init__(self) -> None:
        self._scaled = 0

    def add(self, value: float) -> None:
        """Add one term."""
        numerator, denominator = value.as_integer_ratio()
        self._scaled += numerator << (_FRACTION_BITS + 1 - denominator.bit_length())

    def value(self) -> float:
        """The sum, rounded once."""
        return self._scaled / (1 << _FRACTION_BITS)


class ExactSums:
    """Several `ExactSum`s that grow together."""

    def __init__(self, n: int) -> None:
        self._sums = [ExactSum() for _ in range(n)]

    def add(self, values: Iterable[float]) -> None:
        """Add one term to each."""
        for total, value in zip(self._sums, values, strict=True):
            total.add(value)

    def values(self) -> list[float]:
        """The sums, each rounded once."""
        return [total.value() for total in self._sums]
