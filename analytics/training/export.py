"""Datasets written as training batches: one Parquet file with a row for each conversation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.analytics.comparison.pairing import Pairing
from tokscore.analytics.training.targets import Counts, columns_of, target_schema, target_table
from tokscore.dataset.choices import Targets, Weighting, choose
from tokscore.dataset.errors import InputError, UsageError, counted
from tokscore.dataset.files import PathName, check_is_new_file, check_is_text, output_location
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.token_rows import Place, token_batches
from tokscore.dataset.writing import put_in_place, temporary_name

_BATCH_TOKENS = 2**16


def export(
    dataset: PathName,
    out: PathName,
    *,
    targets: Targets | str = Targets.LABELS,
    student: PathName | None = None,
    role: str | None = None,
    weighting: Weighting | str = Weighting.TOKENS,
) -> Counts:
    """Write the training targets of a dataset as Parquet, a row for each conversation (or branch).

    Entry t of every list is about token t, whose logits are those of position t-1: a loss has to shift them,
    as transformers does with `labels`. Memory does not grow with the dataset.

    Args:
        dataset: A dataset, with scores for other targets than labels: those of the teacher.
        out: New file.
        targets: What the rows have beside ids and labels.
        student: Scores of the model that is trained, for advantages.
        role: Only tokens of this role are targets; of those that a model generated.
        weighting: Whether tokens or conversations weigh alike.

    Returns:
        What was written.

    Raises:
        UsageError: `out` exists or is in no directory, or a student is given without advantages, or the other
            way round.
        InputError: The datasets lack scores, do not have the same tokens, or an advantage is infinite.
    """
    wanted, path = choose(Targets, targets, "targets"), output_location(out)
    weights = choose(Weighting, weighting, "weighting")
    check_is_text(path)
    check_is_new_file(path)
    if (student is not None) != (wanted is Targets.ADVANTAGES):
        raise UsageError(
            "advantages are made of the scores of a teacher and a student; expected both `student` and "
            "`targets='advantages'`, or none."
        )
    opened = Dataset(dataset, kind=None if wanted is Targets.LABELS else DatasetKind.SCORES)
    top_k = int(opened.manifest.settings.get("top_k") or 0) if wanted is Targets.TOPK else 0
    if wanted is Targets.TOPK and not top_k:
        raise InputError(f"{opened.root} has no lists; expected scores with a `top_k` of at least 1.")
    total, aside = Counts(), temporary_name(path)
    try:
        schema = target_schema(wanted).with_metadata(
            opened.manifest.parquet_metadata() | {"tokscore.targets": wanted.value}
        )
        with pq.ParquetWriter(aside, schema, compression="zstd", write_page_checksum=True) as writer:
            for places, starts, rows, other in _batches(opened, wanted, student):
                table, counts = target_table(
                    wanted,
                    places,
                    starts,
                    rows,
                    other,
                    top_k=top_k,
                    role=role,
                    weighting=weights,
                )
                writer.write_table(table)
                total += counts
        if not total.n_targets:
            raise InputError(
                f"{opened.root} has no targets"
                + (f" of role {role}" if role is not None else "")
                + ": of no token it is known that a model generated it.\nSee stats --by role,is_sampled."
            )
        put_in_place(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return total


def _batches(
    dataset: Dataset, targets: Targets, student: PathName | None
) -> Iterator[tuple[list[Place], np.ndarray, pa.Table, pa.Table | None]]:
    columns = columns_of(targets)
    if student is None:
        rows = dataset.token_rows(columns)
        for places, starts, table in token_batches(dataset.places(), rows, _BATCH_TOKENS):
            yield places, starts, table, None
        return
    other = Dataset(student, kind=DatasetKind.SCORES)
    pairing = Pairing(dataset, other, teacher_columns=columns, student_columns=["logprob"])
    for batch in pairing.batches(_BATCH_TOKENS):
        yield batch.places, batch.starts, batch.teacher, batch.student
    if pairing.n_only_teacher or pairing.n_only_student:
        raise InputError(
            f"{dataset.root} has {counted(pairing.n_only_teacher, 'conversation')} that {other.root} lacks, "
            f"and lacks {pairing.n_only_student:,} of its; expected the same in both."
        )
