"""Parts of an earlier run: which are done, told from their ends alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.dataset.claims.two_writers import MANIFEST, write
from tokscore.dataset.errors import InputError
from tokscore.dataset.resuming import finished_parts


@pytest.fixture
def last(tmp_path: Path) -> Path:
    """The token table of the last of two parts."""
    for part in (0, 3):
        assert write(tmp_path, part, 1)
    return tmp_path / "tokens" / "part-00003.parquet"


def test_parts_that_are_whole_are_done(last: Path, tmp_path: Path) -> None:
    assert finished_parts(tmp_path, MANIFEST) == {0, 3}


def test_a_part_that_is_cut_anywhere_is_named(last: Path, tmp_path: Path) -> None:
    content = last.read_bytes()
    lengths = [*range(0, len(content), 97), *range(len(content) - 16, len(content))]
    for length in lengths:
        last.write_bytes(content[:length])
        with pytest.raises(InputError, match=r"part-00003\.parquet is no whole Parquet file.*Delete it"):
            finished_parts(tmp_path, MANIFEST)


def test_a_part_whose_end_was_never_written_is_named(last: Path, tmp_path: Path) -> None:
    content = last.read_bytes()
    last.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    with pytest.raises(InputError, match="is no whole Parquet file"):
        finished_parts(tmp_path, MANIFEST)


def test_a_file_of_the_right_columns_that_names_no_plan_is_no_part(last: Path, tmp_path: Path) -> None:
    table = pq.read_table(last)
    plain = {key: value for key, value in (table.schema.metadata or {}).items() if b"plan" not in key}
    pq.write_table(pa.table(table.columns, table.schema.with_metadata(plain)), last)
    assert finished_parts(tmp_path, MANIFEST) == {0}
