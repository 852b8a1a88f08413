"""What is wrong with a dataset: every part against the plan, and the plan against itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tokscore.dataset.claims.commit import finished_names, part_name
from tokscore.dataset.errors import InputError
from tokscore.dataset.files import PathName, is_of_machine, location
from tokscore.dataset.manifest import Manifest, read_manifest
from tokscore.dataset.reading import VOCABULARY_CHECKSUM, VOCABULARY_NAME, Dataset, list_folders
from tokscore.dataset.table_files import CHECKSUMS, TableFile, check_checksums
from tokscore.dataset.verification.part_rows import check_rows

# Called after each part with the parts done and their rows.
Progress = Callable[[int, int], None]


class Fault(NamedTuple):
    """Something that is wrong.

    Attributes:
        part: Index of the part; None of what belongs to all.
        reason: What was found and what was expected.
        is_repairable: Of a file that a run can make again, and not of one that cannot be read for now.
    """

    part: int | None
    reason: str
    is_repairable: bool = True


class Verification(NamedTuple):
    """What was found.

    Attributes:
        n_parts: Of the plan.
        n_whole: Those that are as they were written.
        n_missing: Those that are not there.
        n_rows: Token rows of those that are whole.
        faults: What is wrong; of a part the first.
    """

    n_parts: int
    n_whole: int
    n_missing: int
    n_rows: int
    faults: list[Fault]

    @property
    def is_whole(self) -> bool:
        """Whether all parts are there and right."""
        return not self.faults and self.n_whole == self.n_parts


def verify(dataset: PathName, *, progress: Progress = lambda _done, _rows: None) -> Verification:
    """Read all of a dataset, and hold every part against the plan and its own footers and checksums.

    Memory grows with the number of conversations, about 100 bytes each, and the rows of one row group.

    Args:
        dataset: Its folder, of a run that is finished or not.
        progress: Called after each part.

    Raises:
        InputError: There is no dataset, or its manifest is damaged.
    """
    root = location(dataset)
    manifest = read_manifest(root)
    list_folders(root, manifest.kind.value)
    faults = [Fault(None, reason, is_repairable=False) for reason in _plan_faults(manifest)]
    faults += _other_files(root, manifest)
    faults += _vocabulary_faults(root)
    done = finished_names(root, manifest.kind.value, {part.index for part in manifest.parts})
    owners: dict[tuple[str, int], int] = {}
    n_whole = n_rows = 0
    for part in manifest.parts:
        if part.index in done:
            try:
                opened = Dataset.of_part(root, manifest, part)
                for key in check_rows(opened, manifest, part.index):
                    first = owners.setdefault(key, part.index)
                    if first != part.index:
                        raise InputError(f"conversation {key[0]!r} is in part {first}, too.")
            except InputError as error:
                faults.append(Fault(part.index, str(error), is_repairable=not _is_of_machine(error)))
            else:
                n_whole += 1
                n_rows += opened.n_rows(manifest.kind.value)
        progress(part.index + 1, n_rows)
    return Verification(len(manifest.parts), n_whole, len(manifest.parts) - len(done), n_rows, faults)


def _is_of_machine(error: InputError) -> bool:
    """Whether a file could not be read, rather than is damaged; one that is missing can be made again."""
    cause = error.__cause__
    return cause is not None and is_of_machine(cause) and not isinstance(cause, FileNotFoundError)


def _plan_faults(manifest: Manifest) -> Iterator[str]:
    """Where parts of the plan overlap, or leave a gap."""
    parts, sizes = manifest.parts, [file.size_bytes for file in manifest.inputs]
    for before, part in pairwise(parts):
        is_same = before.file == part.file
        if (is_same and before.stop != part.start) or (not is_same and part.start and sizes[part.file]):
            yield f"the plan has a gap or an overlap between parts {before.index} and {part.index}."
        if not is_same and sizes[before.file] and before.stop != sizes[before.file]:
            yield f"the plan ends its input {before.file} at byte {before.stop} of {sizes[before.file]}."
    if sizes[parts[-1].file] and parts[-1].stop != sizes[parts[-1].file]:
        yield f"the plan ends its last input at byte {parts[-1].stop} of {sizes[parts[-1].file]}."


def _other_files(root: Path, manifest: Manifest) -> Iterator[Fault]:
    """Parts that the plan does not have, which whoever reads the folder would take for more rows."""
    folder = root / manifest.kind.value
    if not folder.is_dir():
        return
    planned = {part_name(part.index) for part in manifest.parts}
    names = (path.name for path in folder.iterdir())
    for name in sorted(name for name in names if name.endswith(".parquet") and not name.startswith(".")):
        if name not in planned:
            yield Fault(None, f"{folder / name} belongs to no part of the plan.", is_repairable=False)


def _vocabulary_faults(root: Path) -> Iterator[Fault]:
    path = root / VOCABULARY_NAME
    if not path.is_file():
        return
    try:
        with TableFile(path, "vocabulary") as file:
            file.read()
        check_checksums(root / CHECKSUMS / VOCABULARY_CHECKSUM, {VOCABULARY_NAME: path})
    except InputError as error:
        yield Fault(None, str(error), is_repairable=not _is_of_machine(error))
