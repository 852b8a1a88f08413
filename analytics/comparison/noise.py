"""The noise floor of an engine, to be held against a gap between two models."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from tokscore.dataset.errors import InputError
from tokscore.dataset.manifest import ModelIdentity


class NoiseFloor(NamedTuple):
    """Sizes of the differences between two passes of one engine over the same tokens, in nats.

    Attributes:
        mean: On average.
        p99: The 99th percentile.
        max: The largest.
    """

    mean: float
    p99: float
    max: float


class MeasuredOn(NamedTuple):
    """What a noise floor was measured on.

    Attributes:
        model: Its name.
        engine: Name of the engine.
        dtype: Type the model computed in.
    """

    model: str
    engine: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.model} ({self.engine}, {self.dtype})"

    def is_of(self, model: ModelIdentity) -> bool:
        """Whether it is the model, engine and type that scored a dataset."""
        return (self.model, self.engine, self.dtype) == (model.name, model.engine, model.dtype)


class _Floor(msgspec.Struct):
    mean: float
    p99: float
    max: float


class ReferenceGap(NamedTuple):
    """Sizes of the differences between an engine and transformers in float32, in nats.

    Attributes:
        mean: On average.
        max: The largest.
    """

    mean: float
    max: float


class _Gap(msgspec.Struct):
    mean: float
    max: float


class _SelfCheck(msgspec.Struct):
    noise_floor: _Floor
    against_reference: _Gap | None = None
    model: str | None = None
    engine: str | None = None
    dtype: str | None = None


def read_noise_floor(path: Path) -> NoiseFloor:
    """The noise floor in the JSON of `tokscore selfcheck`.

    Raises:
        InputError: There is no such file, or it holds none.
    """
    floor = _read(path).noise_floor
    return NoiseFloor(floor.mean, floor.p99, floor.max)


def read_measured_on(path: Path) -> MeasuredOn | None:
    """What the noise floor in the same JSON was measured on; None where it does not say.

    Raises:
        InputError: There is no such file, or it holds no noise floor.
    """
    found = _read(path)
    if found.model is None or found.engine is None or found.dtype is None:
        return None
    return MeasuredOn(found.model, found.engine, found.dtype)


def read_reference_gap(path: Path) -> ReferenceGap | None:
    """What an engine differs from transformers by, in the same JSON; None where it does not say.

    Raises:
        InputError: There is no such file, or it holds no noise floor.
    """
    gap = _read(path).against_reference
    return None if gap is None else ReferenceGap(gap.mean, gap.max)


def _read(path: Path) -> _SelfCheck:
    if not path.is_file():
        raise InputError(f"{path} does not exist; expected the JSON of tokscore selfcheck --format json.")
    try:
        return msgspec.json.decode(path.read_bytes(), type=_SelfCheck)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{path} holds no noise floor ({error}); expected the JSON of tokscore selfcheck --format json."
        ) from error
