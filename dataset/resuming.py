"""Output directories: made ready to take the parts of a run, and gone on with where one stopped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.dataset.claims.claiming import clear
from tokscore.dataset.claims.commit import finished_names, part_name
from tokscore.dataset.errors import InputError, UsageError, none_could
from tokscore.dataset.files import check_is_text
from tokscore.dataset.manifest import MANIFEST_NAME, EarlierPlan, InputFile, Manifest, Setting, read_manifest
from tokscore.dataset.reading import VOCABULARY_CHECKSUM, VOCABULARY_NAME, read_failures
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.stores.path import is_store
from tokscore.dataset.table_files import CHECKSUMS, TableFile, checksums, is_of_plan
from tokscore.dataset.writing import is_temporary, put_in_place, remove_abandoned, temporary_name, write_file


def prepare_output(root: Path, manifest: Manifest, vocabulary: Callable[[], pa.Table]) -> set[int]:
    """Make `root` ready to take the parts of `manifest`.

    Args:
        root: New, empty, holding parts of the same plan or of its beginning, to which inputs were added, or
            of another plan without a finished part.
        manifest: Sealed.
        vocabulary: Makes `tables.VOCABULARY` rows, the same from every shard.

    Returns:
        Indices of the parts that are already done.

    Raises:
        UsageError: `root` holds something else; the message says what differs.
    """
    check_is_text(root)
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is a file; expected a directory for the output.")
    existing: Manifest | None = None
    # Another shard may be writing its manifest right now.
    if root.is_dir() and any(not is_temporary(path) for path in root.iterdir()):
        if not (root / MANIFEST_NAME).is_file():
            raise UsageError(
                f"{root} is not empty and holds no dataset of tokscore. Choose another directory with -o."
            )
        existing = read_manifest(root)
        is_begun = existing.plan_hash != manifest.plan_hash and _has_parts(root / existing.kind.value)
        if is_begun and (longer := grown(existing, manifest)):
            write_file(root / MANIFEST_NAME, longer.to_json())
            existing = longer
        elif is_begun:
            raise UsageError(
                f"{root} holds another run: {'; '.join(manifest_differences(existing, manifest))}.\n"
                "Choose another directory with -o, or delete this one."
            )
    root.mkdir(parents=True, exist_ok=True)
    remove_abandoned(root)
    is_new = existing is None or existing.plan_hash != manifest.plan_hash
    if is_new:
        write_file(root / MANIFEST_NAME, manifest.to_json())
    if is_new or not (root / VOCABULARY_NAME).is_file():
        write_vocabulary(root, vocabulary())
    return finished_parts(root, manifest)


def grown(existing: Manifest, wanted: Manifest) -> Manifest | None:
    """A plan to which inputs were added behind those of a dataset; None where more than that differs.

    Its first parts are those of the dataset, and stay as they are.
    """
    n_parts = len(existing.parts)
    for inputs in _beginnings(existing, wanted):
        beginning = msgspec.structs.replace(wanted, inputs=inputs, parts=wanted.parts[:n_parts])
        if beginning.sealed().plan_hash == existing.plan_hash:
            break
    else:
        return None
    return msgspec.structs.replace(
        wanted,
        engine_details=existing.engine_details,
        tokenizer_details=existing.tokenizer_details,
        earlier_plans=[*(existing.earlier_plans or []), EarlierPlan(existing.plan_hash, n_parts)],
    )


def _beginnings(existing: Manifest, wanted: Manifest) -> Iterator[list[InputFile]]:
    """Inputs that an earlier plan may have had: fewer files, or the token dataset before it grew."""
    if len(existing.inputs) < len(wanted.inputs):
        yield wanted.inputs[: len(existing.inputs)]
    elif len(wanted.inputs) == 1 and (plans := wanted.inputs[0].earlier_plans):
        for plan in plans:
            yield [msgspec.structs.replace(wanted.inputs[0], sha256=plan.plan_hash)]


def _has_parts(folder: Path) -> bool:
    with suppress(FileNotFoundError):
        return any(path.match("part-*.parquet") for path in folder.iterdir())
    return False


def write_vocabulary(root: Path, table: pa.Table) -> None:
    """Write the vocabulary table of the dataset at `root`, and its checksum."""
    path = root / VOCABULARY_NAME
    temporary = temporary_name(path)
    pq.write_table(table, temporary, compression="zstd", compression_level=3, write_page_checksum=True)
    # Before the table, which is not written again where it is there.
    (root / CHECKSUMS).mkdir(exist_ok=True)
    write_file(root / CHECKSUMS / VOCABULARY_CHECKSUM, checksums({VOCABULARY_NAME: temporary}))
    put_in_place(temporary, path)


def finished_parts(root: Path, manifest: Manifest) -> set[int]:
    """Indices of the parts that are there; in a store, where a file is there as a whole, by their names.

    Raises:
        InputError: One of this machine was cut.
    """
    found = finished_names(root, manifest.kind.value, {part.index for part in manifest.parts})
    if is_store(root):
        return found
    return {index for index in found if _is_finished(root, manifest.kind, index)}


def _is_finished(root: Path, kind: DatasetKind, index: int) -> bool:
    path = root / kind.value / part_name(index)
    if is_of_plan(path):
        return True
    with TableFile(path, kind, hint="Delete it and run again.") as file:
        return bool(file.footer.plan_hash)


def record_engine_details(
    root: Path, details: Mapping[str, Setting], *, but: Collection[str] = ()
) -> list[str]:
    """Write how the engine scores into the manifest, where no run has done so.

    Args:
        root: The dataset.
        details: By name.
        but: Names of those that differ by chance, which are no difference.

    Returns:
        In words, what differs from what an earlier run wrote, which stays.
    """
    manifest = read_manifest(root)
    earlier = manifest.engine_details
    if earlier is None:
        told = msgspec.structs.replace(manifest, engine_details=dict(details))
        write_file(root / MANIFEST_NAME, told.to_json())
        return []
    return [
        f"{name.replace('_', '-')} was {earlier.get(name)} and is {details.get(name)}"
        for name in sorted({*earlier, *details} - {*but})
        if earlier.get(name) != details.get(name)
    ]


def forget_claims(root: Path, manifest: Manifest) -> int:
    """Remove what runs leave in claims/ where all parts are done; returns how many are not."""
    indices = {part.index for part in manifest.parts}
    missing = indices - finished_names(root, manifest.kind.value, indices)
    if not missing:
        clear(root, missing)
    return len(missing)


def finished_elsewhere(part: int) -> str:
    """What a user is told of a part that two processes wrote."""
    return f"part {part} was finished by another process meanwhile; what this one made of it was dropped."


def forget_parts(root: Path, manifest: Manifest, parts: Collection[int] | None = None) -> None:
    """Make parts undone, by default all, because other ids are to be written."""
    for index in [part.index for part in manifest.parts] if parts is None else parts:
        (root / manifest.kind.value / part_name(index)).unlink(missing_ok=True)


def record_tokenizer_details(root: Path, details: Mapping[str, Setting]) -> None:
    """Write into the manifest what makes the ids now."""
    told = msgspec.structs.replace(read_manifest(root), tokenizer_details=dict(details))
    write_file(root / MANIFEST_NAME, told.to_json())


def check_some_succeeded(root: Path, parts: Sequence[int], what: str) -> None:
    """Refuse finished parts in which every conversation failed.

    Args:
        root: The dataset; other parts may be missing.
        parts: Their indices.
        what: What was to be done with the conversations, for the message.

    Raises:
        InputError: With the first failure.
    """
    for index in parts:
        with TableFile(root / "conversations" / part_name(index), "conversations") as file:
            if file.footer.n_rows:
                return
    failures = [failure for index in parts for failure in read_failures(root, index)]
    if failures:
        raise InputError(none_could(len(failures), "conversation", f"be {what}", failures[0].error()))


# For hashes, which say nothing to a reader.
_DIFFERENCES = {
    "sha256": "the tokenizer or the model's weights are others",
    "template_sha256": "the chat template is another (see `template`)",
}


def _name(section: str, key: str) -> str:
    """A setting as messages name arguments; what is known of a tokenizer or model in words."""
    return f"`{key}`" if section == "settings" else f"the {section}'s {key.replace('_', ' ')}"


def manifest_differences(existing: Manifest, wanted: Manifest) -> list[str]:
    """In words, what keeps two manifests from being the same plan."""
    if existing.kind is not wanted.kind:
        return [f"it has {existing.kind.value}, this run writes {wanted.kind.value}"]
    found: list[str] = []
    old, new = msgspec.to_builtins(existing), msgspec.to_builtins(wanted)
    for section in ("settings", "tokenizer", "model"):
        before, after = old[section] or {}, new[section] or {}
        found += [
            _DIFFERENCES.get(
                key, f"{_name(section, key)} is {before.get(key)} there and {after.get(key)} here"
            )
            for key in sorted({*before, *after})
            if before.get(key) != after.get(key)
        ]
    if existing.inputs != wanted.inputs:
        names = ", ".join(file.name for file in wanted.inputs)
        found.append(
            f"it was made from other input than {names}, or that changed since (new inputs go behind those "
            "that it has)"
        )
    if existing.tokscore_version != wanted.tokscore_version:
        found.append(f"tokscore {existing.tokscore_version} wrote it, this is {wanted.tokscore_version}")
    return found or ["the input is divided into other parts"]
