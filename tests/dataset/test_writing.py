"""Files that are written aside."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tokscore.dataset.manifest import Manifest, Part, TokenizerIdentity
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.tokens import ConversationRow, RenderedConversation, RenderedTokens
from tokscore.dataset.writing import PartWriter, remove_abandoned, temporary_name, write_file

NAMING = (
    "import sys, pathlib, tokscore.dataset.writing as p; print(p.temporary_name(pathlib.Path(sys.argv[1])))"
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has namespaces of process ids")
def test_only_files_of_ended_processes_that_can_be_seen_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "part-00000.parquet"
    finished = subprocess.run(
        [sys.executable, "-c", NAMING, path], capture_output=True, text=True, check=True
    )
    abandoned = Path(finished.stdout.strip())
    namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    assert namespace in abandoned.name
    # A container of the same host name has the same process ids, and its processes cannot be seen.
    in_container = abandoned.with_name(abandoned.name.replace(namespace, f"{namespace}1"))
    own = temporary_name(path)
    for each in (abandoned, in_container, own):
        each.touch()
    remove_abandoned(tmp_path)
    assert {*tmp_path.iterdir()} == {in_container, own}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=["disk", "quota"])
def test_what_fails_while_rows_are_written_ends_the_part_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    manifest = Manifest(
        kind=DatasetKind.SCORES,
        tokscore_version="0",
        settings={},
        tokenizer=TokenizerIdentity("tokenizer", None, "t" * 64, "c" * 64, 9),
        model=None,
        inputs=[],
        parts=[Part(0, 0, 0, 1, 1)],
    ).sealed()
    tokens = RenderedTokens(
        token_ids=np.zeros(3, np.int32),
        message_indices=np.full(3, -1, np.int32),
        sampled_mask=np.zeros(3, np.int8),
        is_content=np.zeros(3, bool),
        source_codes=np.zeros(3, np.int16),
        sources=("template",),
        messages=(),
    )
    conversation = RenderedConversation(ConversationRow("c", 0, "convs.jsonl", 1), tokens)
    monkeypatch.setattr("tokscore.dataset.writing.ROW_GROUP_ROWS", 3)

    def full(_rows: object) -> dict[str, pa.ChunkedArray]:
        raise OSError(number, os.strerror(number))

    with PartWriter(tmp_path, manifest, 0, full) as writer:
        writer.add(conversation)
        with pytest.raises(OSError, match=re.escape(os.strerror(number))):
            writer.add(conversation)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    """Renamed over, /dev/null would be a file of that name from then on."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as readers:
        read = readers.submit(pipe.read_bytes)
        write_file(pipe, b"content")
        assert read.result(timeout=10) == b"content"
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]
    assert not temporary_name(pipe).exists()
