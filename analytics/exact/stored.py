"""What the datasets say of the tokens that are compared again: nothing may differ by more than noise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.comparison.noise import read_reference_gap
from tokscore.analytics.divergence.topk import FloatArray
from tokscore.dataset.errors import InputError, counted
from tokscore.dataset.reading import Dataset
from tokscore.dataset.token_rows import Place, conversation_name
from tokscore.scoring.selfcheck import Tolerance, default_tolerance

# Logprobs are known to so many digits, not decimals: tolerances are of logprobs up to this size.
_TOLERATED_SIZE = 20.0
# In 16 bits, a token in so many may stray further: one whose experts are chosen otherwise, or a rare one.
_STRAY_SHARE = {"float32": 0.0, "float64": 0.0}
_STRAY_SHARE_16_BIT = 1e-3
# What an engine was measured to differ by may be exceeded elsewhere.
_SAFETY = 2.0


class StoredGap(NamedTuple):
    """Differences between the logprobs of this run and those that a dataset holds, in nats.

    Attributes:
        n_tokens: Compared.
        mean: Of their sizes; None without tokens.
        max: The largest.
    """

    n_tokens: int
    mean: float | None
    max: float


class StoredLogprobs:
    """The logprobs of one dataset, which those of this run are held against.

    The models are run by another engine than scored the dataset, or in other batches, and in the dtype of
    the dataset: what differs by more than such runs do was not scored by this model, or one of both runs is
    wrong.
    """

    def __init__(self, dataset: Dataset, side: str, noise_floor: Path | None = None) -> None:
        """Nothing was compared yet.

        Args:
            dataset: Of scores.
            side: "teacher" or "student".
            noise_floor: JSON of `tokscore selfcheck`, where the engine that scored differs by more.

        Raises:
            InputError: The file holds none.
        """
        self._root, self._side = dataset.root, side
        self._dtype = dataset.manifest.model.dtype if dataset.manifest.model else "float32"
        self._tolerance = default_tolerance(self._dtype)
        measured = None if noise_floor is None else read_reference_gap(noise_floor)
        if measured is not None:
            self._tolerance = Tolerance(
                max(self._tolerance.max_delta, _SAFETY * measured.max),
                max(self._tolerance.mean_delta, _SAFETY * measured.mean),
            )
        # Noise of logits is divided by the temperature, too.
        self._scale = max(1.0, 1 / float(dataset.manifest.settings.get("temperature") or 1.0))
        self._stray_share = _STRAY_SHARE.get(self._dtype, _STRAY_SHARE_16_BIT)
        self._n_tokens = 0
        self._sum = self._allowed = self._max = 0.0

    @property
    def gap(self) -> StoredGap:
        """Of all tokens so far."""
        return StoredGap(self._n_tokens, self._sum / self._n_tokens if self._n_tokens else None, self._max)

    def hold(self, place: Place, positions: NDArray[np.int32], stored: FloatArray, found: FloatArray) -> None:
        """Compare the tokens of a conversation.

        Args:
            place: The conversation.
            positions: Of its compared tokens.
            stored: Their logprobs in the dataset.
            found: In this run.

        Raises:
            InputError: They differ by more than noise, alone or together with those before.
        """
        if not len(stored):
            return
        # Where both rule the token out there is no difference.
        gaps = np.abs(np.subtract(stored, found, out=np.zeros(len(stored)), where=stored != found))
        sizes = np.fmax(1.0, np.minimum(np.abs(stored), np.abs(found)) / _TOLERATED_SIZE) * self._scale
        is_beyond = ~(gaps <= self._tolerance.max_delta * sizes)
        allowed = self._tolerance.mean_delta * sizes
        n, n_stray = len(gaps), math.ceil(self._stray_share * len(gaps))
        of_few = self._tolerance.max_delta / math.sqrt(n) * float(sizes.mean())
        self._n_tokens += n
        self._sum += float(gaps.sum())
        self._allowed += float(allowed.sum())
        self._max = max(self._max, float(gaps.max()))
        of_all = self._allowed + self._tolerance.max_delta * math.sqrt(self._n_tokens) * self._scale
        if (
            np.count_nonzero(is_beyond) > n_stray
            or not gaps.mean() <= allowed.mean() + of_few
            or not self._sum <= of_all
        ):
            worst = int(np.argmax(np.nan_to_num(gaps, nan=np.inf)))
            raise self._refusal(place, int(positions[worst]), stored[worst], found[worst], gaps, is_beyond)

    def _refusal(
        self,
        place: Place,
        position: int,
        stored: float,
        found: float,
        gaps: FloatArray,
        is_beyond: NDArray[np.bool_],
    ) -> InputError:
        limit = self._tolerance.max_delta * self._scale
        return InputError(
            f"{self._root}: {conversation_name(*place.key)}, position {position}: the {self._side}'s logprob "
            f"is {stored:.6g} there and {found:.6g} over the whole vocabulary. Of "
            f"{counted(len(gaps), 'token')} of this conversation, {np.count_nonzero(is_beyond):,} differ by "
            f"more than {limit:g} nats, and all by {gaps.mean():.3g} on average; {self._dtype} explains "
            f"{self._tolerance.mean_delta * self._scale:g}.\n"
            "The dataset was scored with another model or other settings, or one of both runs is wrong. "
            "Score it again; if its engine differs by more, measure that with tokscore selfcheck and give "
            "`noise_floor`."
        )
