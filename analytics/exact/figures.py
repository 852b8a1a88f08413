"""The figures by which quantised models are judged, as numbers and as tables print them."""

from __future__ import annotations

from typing import NamedTuple

_ERRORS = ("se_tokens", "se_conversations")
# What has fewer digits than tables show is printed with an exponent.
_SMALLEST_SHOWN = 1e-3


class Figure(NamedTuple):
    """One figure.

    Attributes:
        name: In JSON and CSV.
        label: In tables.
        value: None where it is infinite or there are no tokens.
        se_tokens: Standard error over tokens; None where it has none.
        se_conversations: Over conversations; None with fewer than 2, too.
        is_share: Whether tables show it in percent.
    """

    name: str
    label: str
    value: float | None
    se_tokens: float | None = None
    se_conversations: float | None = None
    is_share: bool = False

    @property
    def title(self) -> str:
        """The label with the unit of `shown`."""
        return f"{self.label}, %" if self.is_share else self.label

    def shown(self, value: float | None) -> str:
        """The value or an error as tables print it: six decimals, or percent with three."""
        if value is None:
            return "-"
        if self.is_share:
            return f"{100 * value:.3f}"
        return f"{value:.3e}" if 0 < abs(value) < _SMALLEST_SHOWN else f"{value:,.6f}"


class Summary(NamedTuple):
    """All figures of two models over the same tokens.

    Attributes:
        n_tokens: Compared.
        n_conversations: They are of.
        perplexity: Figures of the perplexities.
        kld: Of KL(base || Q), in nats.
        delta_p: Of Q's less base's probability of the token, and of the most likely ids.
    """

    n_tokens: int
    n_conversations: int
    perplexity: tuple[Figure, ...]
    kld: tuple[Figure, ...]
    delta_p: tuple[Figure, ...]

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All of them."""
        return (*self.perplexity, *self.kld, *self.delta_p)

    def to_dict(self) -> dict[str, object]:
        """For JSON: a figure without errors is a number."""
        counts = {"n_tokens": self.n_tokens, "n_conversations": self.n_conversations}
        return counts | {each.name: _json(each) for each in self.figures}

    def flat(self) -> dict[str, float | None]:
        """All numbers by name, standard errors as NAME.se_tokens and NAME.se_conversations."""
        found: dict[str, float | None] = {}
        for each in self.figures:
            found[each.name] = each.value
            if each.se_tokens is not None:
                found |= {f"{each.name}.{name}": getattr(each, name) for name in _ERRORS}
        return found


def _json(figure: Figure) -> object:
    if figure.se_tokens is None:
        return figure.value
    return {"value": figure.value, **{name: getattr(figure, name) for name in _ERRORS}}
