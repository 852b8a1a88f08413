"""Bad parts set aside, so that the next run makes them again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tokscore.dataset.files import PathName, location
from tokscore.dataset.manifest import read_manifest
from tokscore.dataset.reading import VOCABULARY_CHECKSUM, VOCABULARY_NAME
from tokscore.dataset.table_files import CHECKSUMS, part_files
from tokscore.dataset.verification.verify import Fault

SET_ASIDE = "set-aside"


def repair(dataset: PathName, faults: Iterable[Fault]) -> list[int]:
    """Move the files of bad parts, and a bad vocabulary, into `set-aside/` of the dataset.

    Args:
        dataset: Its folder.
        faults: What `verify` found; those that no run can put right stay.

    Returns:
        Indices of the parts that are to be made again.
    """
    root = location(dataset)
    kind = read_manifest(root).kind
    wanted = [fault for fault in faults if fault.is_repairable]
    aside = _new_folder(root) if wanted else root
    parts = sorted({fault.part for fault in wanted if fault.part is not None})
    for part in parts:
        # The token table first: without it the part is not done, whatever else is there.
        for name in reversed(part_files(kind, part)):
            _move(root, aside, name)
    if any(fault.part is None for fault in wanted):
        _move(root, aside, VOCABULARY_NAME)
        _move(root, aside, f"{CHECKSUMS}/{VOCABULARY_CHECKSUM}")
    return parts


def _new_folder(root: Path) -> Path:
    """Of this repair; earlier ones keep theirs."""
    return next(path for path in _folders(root) if not path.exists())


def _folders(root: Path) -> Iterator[Path]:
    n = 1
    while True:
        yield root / SET_ASIDE / str(n)
        n += 1


def _move(root: Path, aside: Path, name: str) -> None:
    path, target = root / name, aside / name
    if path.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
