"""The noise floor of an engine, to be held against a gap between two models."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from tokscore.dataset.errors import InputError


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


def read_noise_floor(path: Path) -> NoiseFloor:
    """The noise floor in the JSON of `tokscore selfcheck`.

    Raises:
        InputError: There is no such file, or it holds none.
    """
    floor = _read(path).noise_floor
    return NoiseFloor(floor.mean, floor.p99, floor.max)


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
