"""Time to write and read manifests of many parts, and to tell the status of their outputs.

    python benchmarks/manifest.py [--parts 100000 1000000]

Parts are links to a few, so that an output of 100,000 parts takes little room. Status is the whole command,
in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.manifest import InputFile, Manifest, Part, TokenizerIdentity, read_manifest
from tokscore.dataset.schema import SCHEMAS, DatasetKind

PART_BYTES, PART_LINES = 4 * 2**20, 900
# Above it, only the manifest is timed.
MAX_FILES = 100_000
# Names that a file may have, in any file system.
LINKS = 10_000


def manifest_of(n_parts: int) -> Manifest:
    """One of so many parts of 4 MiB."""
    parts = [Part(i, 0, i * PART_BYTES, (i + 1) * PART_BYTES, i * PART_LINES + 1, {}) for i in range(n_parts)]
    return Manifest(
        kind=DatasetKind.TOKENS,
        tokscore_version="0",
        settings={},
        tokenizer=TokenizerIdentity("tokenizer", None, "0" * 64, "0" * 64, 256),
        model=None,
        inputs=[InputFile("conversations.jsonl", n_parts * PART_BYTES, "0" * 64)],
        parts=parts,
    ).sealed()


def measure(n_parts: int, root: Path) -> None:
    """Print times for so many parts."""
    root.mkdir()
    manifest = manifest_of(n_parts)
    started = time.perf_counter()
    (root / "manifest.json").write_bytes(manifest.to_json())
    wrote_s, started, at_work = time.perf_counter() - started, time.perf_counter(), time.process_time()
    read_manifest(root)
    read_s, read_cpu_s = time.perf_counter() - started, time.process_time() - at_work
    size = (root / "manifest.json").stat().st_size
    print(
        f"{n_parts:,} parts: {size / 1e6:.0f} MB, written in {wrote_s:.2f} s, read in {read_s:.2f} s "
        f"({read_cpu_s:.2f} s of a processor)"
    )
    if n_parts > MAX_FILES:
        return
    import pyarrow.parquet as pq

    (root / "tokens").mkdir()
    table = SCHEMAS["tokens"].empty_table().replace_schema_metadata(manifest.parquet_metadata())
    for index in range(n_parts * 9 // 10):
        path = root / "tokens" / part_name(index)
        if index % LINKS:
            os.link(root / "tokens" / part_name(index - index % LINKS), path)
        else:
            pq.write_table(table, path)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tokscore.cli.main", "status", str(root)], check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"status of {n_parts:,} parts in {time.perf_counter() - started:.2f} s "
        f"({used.ru_utime + used.ru_stime:.2f} s of a processor)"
    )


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=int, nargs="+", default=[100_000, 1_000_000])
    for n_parts in parser.parse_args().parts:
        with tempfile.TemporaryDirectory() as folder:
            measure(n_parts, Path(folder) / "out")


if __name__ == "__main__":
    main()
