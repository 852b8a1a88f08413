"""Several outputs of one plan put together: parts copied as they are, or joined to larger ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from tokscore.dataset.claims.commit import committing, finished_names
from tokscore.dataset.errors import InputError, UsageError, counted
from tokscore.dataset.files import PathName, location, output_location
from tokscore.dataset.manifest import Manifest, read_manifest
from tokscore.dataset.outputs.joining import join, joined_plan, neighbours
from tokscore.dataset.reading import VOCABULARY_NAME, Dataset
from tokscore.dataset.resuming import forget_claims, manifest_differences, prepare_output
from tokscore.dataset.stores.path import StorePath
from tokscore.dataset.table_files import TableFile, part_files
from tokscore.dataset.writing import Staged, temporary_name

# Called after each part with the parts done and their rows.
Progress = Callable[[int, int], None]


class Merged(NamedTuple):
    """What was put together.

    Attributes:
        n_parts: Of the plan that was written.
        n_written: Copied or joined now.
        n_missing: Parts that none of the outputs has.
        n_twice: Parts that several have; the first output's was taken.
    """

    n_parts: int
    n_written: int
    n_missing: int
    n_twice: int


def merge(
    outputs: Sequence[PathName],
    out: PathName,
    *,
    part_bytes: int | None = None,
    progress: Progress = lambda _done, _rows: None,
) -> Merged:
    """Put the parts of several outputs of one plan into one dataset.

    Args:
        outputs: Their folders, finished or not.
        out: New, or of a merge that was stopped.
        part_bytes: Join neighbouring parts until the table of their tokens has so many bytes. Then all parts
            have to be there, and the plan that is written has these larger parts: the command that wrote the
            outputs does not go on with it.
        progress: Called after each part.

    Raises:
        UsageError: `out` holds something else, or is one of the outputs.
        InputError: One is no output, or of another plan, or parts are missing where they are to be joined.
    """
    roots, target = [location(name) for name in outputs], output_location(out)
    if not roots:
        raise UsageError("there is nothing to merge; expected folders of outputs.")
    if target.resolve() in [root.resolve() for root in roots]:
        raise UsageError(f"{target} is one of the outputs; expected another directory.")
    manifest = _one_plan(roots)
    owners, n_twice = _owners(roots, manifest)
    with_vocabulary = next((root for root in roots if (root / VOCABULARY_NAME).is_file()), None)
    if with_vocabulary is None:
        raise InputError(f"{roots[0]} has no {VOCABULARY_NAME}; run the command that wrote it again.")

    def vocabulary() -> pa.Table:
        with TableFile(with_vocabulary / VOCABULARY_NAME, "vocabulary") as file:
            return file.read()

    if part_bytes is None:
        done = prepare_output(target, manifest, vocabulary)
        n_written = 0
        for part in sorted(owners.keys() - done):
            n_written += _copy(owners[part], target, manifest, part)
            progress(n_written, 0)
        return Merged(len(manifest.parts), n_written, forget_claims(target, manifest), n_twice)
    missing = len(manifest.parts) - len(owners)
    if missing:
        raise InputError(
            f"none of the outputs has {counted(missing, 'part')} of {len(manifest.parts):,}; expected all, "
            "as parts are to be joined. Finish the run first."
        )
    groups = list(neighbours(manifest, owners, part_bytes))
    joined = joined_plan(manifest, groups)
    done = prepare_output(target, joined, vocabulary)
    n_written = n_rows = 0
    for index, group in enumerate(groups):
        if index not in done:
            n_rows += join(owners, manifest, group, target, joined, index)
            n_written += 1
            progress(n_written, n_rows)
    return Merged(len(groups), n_written, forget_claims(target, joined), n_twice)


def _one_plan(roots: Sequence[Path]) -> Manifest:
    """The manifest of all outputs, with the earlier plans of each."""
    first = read_manifest(roots[0])
    earlier = {(plan.n_parts, plan.plan_hash): plan for plan in first.earlier_plans or []}
    for root in roots[1:]:
        other = read_manifest(root)
        earlier |= {(plan.n_parts, plan.plan_hash): plan for plan in other.earlier_plans or []}
        if other.plan_hash != first.plan_hash:
            raise InputError(
                f"{root} has another plan than {roots[0]}: {'; '.join(manifest_differences(first, other))}. "
                "Expected outputs of one command."
            )
    plans = [plan for _, plan in sorted(earlier.items(), key=lambda each: each[0])]
    return msgspec.structs.replace(first, earlier_plans=plans or msgspec.UNSET)


def _owners(roots: Sequence[Path], manifest: Manifest) -> tuple[dict[int, Path], int]:
    """The first output that has each part, and how many parts several have."""
    owners: dict[int, Path] = {}
    twice: set[int] = set()
    indices = {part.index for part in manifest.parts}
    for root in roots:
        for part in finished_names(root, manifest.kind.value, indices):
            if part in owners:
                twice.add(part)
            else:
                owners[part] = root
    return owners, len(twice)


def _copy(root: Path, target: Path, manifest: Manifest, part: int) -> int:
    """Copy the files of a part as they are, once they are known to be whole; returns the parts written."""
    Dataset.of_part(root, manifest, manifest.parts[part])
    staged: list[Staged] = []
    try:
        for name in part_files(manifest.kind, part):
            if not (root / name).is_file():  # older versions wrote no checksums
                continue
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            aside = temporary_name(target / name)
            _copy_file(root / name, aside)
            staged.append(Staged(aside, target / name))
        with committing(target, manifest.kind.value, part) as is_first:
            if is_first:
                for each in staged:
                    each.commit()
        return int(is_first)
    finally:
        for each in staged:
            each.discard()


def _copy_file(path: Path, aside: Path) -> None:
    if isinstance(path, StorePath):
        with aside.open("wb") as file:
            file.writelines(path.chunks())
    else:
        shutil.copyfile(path, aside)
