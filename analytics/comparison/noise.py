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


class _SelfCheck(msgspec.Struct):
    noise_floor: _Floor


def read_noise_floor(path: Path) -> NoiseFloor:
    """The noise floor in the JSON of `tokscore selfcheck`.

    Raises:
        InputError: There is no such file, or it holds none.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist; expected the JSON of tokscore selfcheck --format json.")
    try:
        floor = msgspec.json.decode(path.read_bytes(), type=_SelfCheck).noise_floor
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{path} holds no noise floor ({error}); expected the JSON of tokscore selfcheck --format json."
        ) from error
    return NoiseFloor(floor.mean, floor.p99, floor.max)
