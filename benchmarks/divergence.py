"""Time and memory of comparing two score datasets, against reading them.

    python benchmarks/divergence.py
    python benchmarks/divergence.py --tokens 5000000 --folder DIR --reference bounds_reference.py

Prints medians of one run: bounds per token (with `--reference`, against an implementation of the same limits
in numpy, and how far both are apart), `diff` against reading and decoding the same columns with pyarrow, and
`stats` by role against a bare scan of its columns with polars, with the peak memory of each. Datasets are
made once in the folder and found again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokscore.analytics import TopK, diff_report, stats_report, topk_limits
from tokscore.analytics.comparison.compare import SCORE_COLUMNS
from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.manifest import Manifest, ModelIdentity, Part, TokenizerIdentity
from tokscore.dataset.schema import ROW_GROUP_ROWS, DatasetKind
from tokscore.dataset.tokens import ConversationRow, MessageFacts, RenderedConversation, RenderedTokens
from tokscore.dataset.writing import PartWriter
from tokscore.scoring.columns import ScoredTokens, score_columns
from tokscore.scoring.engines.contract import SequenceScores

VOCAB_SIZE = 151_936
TOP_K = 20
CANDIDATES = 96
CONVERSATION_TOKENS = 512
ROLES = (("system", 24), ("user", 104), ("assistant", 256), ("tool", 64), ("assistant", 63))


class Lists(NamedTuple):
    """Top-k lists of one model, as engines give them."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float64]
    realised: NDArray[np.float64]


def two_models(n_tokens: int, noise: float = 0.5) -> tuple[NDArray[np.int32], Lists, Lists]:
    """Realised tokens, and the lists of two models that differ by gaussian noise on their logits."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCAB_SIZE // CANDIDATES, (n_tokens, 1)) * CANDIDATES + np.arange(CANDIDATES)
    logits = rng.normal(0, 4, (n_tokens, CANDIDATES))
    at = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    rows = np.arange(n_tokens)
    sides = []
    for sigma in (0.0, noise):
        noisy = logits + rng.normal(0, sigma, logits.shape)
        noisy -= noisy.max(axis=1, keepdims=True)
        # A fiftieth of the mass is on ids that no list has.
        logprobs = noisy - np.log(np.exp(noisy).sum(axis=1, keepdims=True)) + np.log(0.98)
        top = np.argsort(-logprobs, axis=1)[:, :TOP_K]
        sides.append(
            Lists(
                np.take_along_axis(ids, top, axis=1).astype(np.int32),
                np.take_along_axis(logprobs, top, axis=1),
                logprobs[rows, at],
            )
        )
    return ids[rows, at].astype(np.int32), sides[0], sides[1]


def make_datasets(folder: Path, n_tokens: int) -> tuple[Path, Path]:
    """Two score datasets of the same tokens, in parts of one row group."""
    n_parts = max(n_tokens // ROW_GROUP_ROWS, 1)
    roots = folder / f"teacher-{n_parts}", folder / f"student-{n_parts}"
    if not all((root / "done").exists() for root in roots):
        token_ids, *sides = two_models(ROW_GROUP_ROWS)
        for root, lists in zip(roots, sides, strict=True):
            write_dataset(root, n_parts, token_ids, lists)
    return roots


def write_dataset(root: Path, n_parts: int, token_ids: NDArray[np.int32], lists: Lists) -> None:
    """Parts that differ in the ids of their conversations only."""
    parts = [Part(index, 0, index, index + 1, 1) for index in range(n_parts)]
    manifest = Manifest(
        kind=DatasetKind.SCORES,
        tokscore_version="0",
        settings={"top_k": TOP_K, "temperature": 1.0},
        tokenizer=TokenizerIdentity("tokenizer", None, "t" * 64, "c" * 64, VOCAB_SIZE),
        model=ModelIdentity(root.name, None, None, VOCAB_SIZE, "float32", "transformers", "5"),
        inputs=[],
        parts=parts,
    ).sealed()
    root.mkdir(parents=True)
    (root / "manifest.json").write_bytes(manifest.to_json())
    indices = np.concatenate([[-1], np.repeat(np.arange(len(ROLES)), [n for _, n in ROLES])]).astype(np.int32)
    is_assistant = np.array([i >= 0 and ROLES[i][0] == "assistant" for i in indices])
    with PartWriter(root, manifest, 0, score_columns) as writer:
        for line, start in enumerate(range(0, ROW_GROUP_ROWS, CONVERSATION_TOKENS), 1):
            rows = slice(start + 1, start + CONVERSATION_TOKENS)
            tokens = RenderedTokens(
                token_ids=token_ids[start : start + CONVERSATION_TOKENS],
                message_indices=indices,
                sampled_mask=is_assistant.astype(np.int8),
                is_content=indices >= 0,
                source_codes=(indices >= 0).astype(np.int16),
                sources=("template", "content"),
                messages=tuple(MessageFacts(role) for role, _ in ROLES),
            )
            scores = SequenceScores(
                lists.realised[rows].astype(np.float32),
                (lists.logprobs[rows] > lists.realised[rows, None]).sum(axis=1).astype(np.int32) + 1,
                lists.ids[rows],
                lists.logprobs[rows].astype(np.float32),
                None,
            )
            row = ConversationRow(f"conversation-{line}", 0, "conversations.jsonl", line)
            writer.add(RenderedConversation(row, tokens), ScoredTokens(CONVERSATION_TOKENS, scores))
        writer.finish()
    for index in range(1, n_parts):
        for table in ("spans", "messages", "conversations", "scores"):
            copy_part(root / table, index)
        (root / "errors" / part_name(index, "jsonl")).touch()
    (root / "done").touch()


def copy_part(folder: Path, index: int) -> None:
    """Part 0 under another index, its conversations under other ids."""
    table = pq.read_table(folder / part_name(0))
    ids = pc.binary_join_element_wise(table["conversation_id"], f"{index}", "-")
    table = table.set_column(0, table.schema.field(0), ids)
    if "part" in table.column_names:
        at = table.column_names.index("part")
        table = table.set_column(at, table.schema.field(at), pa.array([index] * len(table), pa.int32()))
    strings = [field.name for field in table.schema if pa.types.is_string(field.type)]
    floats = ("logprob", "entropy", "recorded_logprob", "top_logprobs.list.element", "top_ids.list.element")
    pq.write_table(
        table,
        folder / part_name(index),
        compression="zstd",
        compression_level=3,
        row_group_size=ROW_GROUP_ROWS,
        use_dictionary=strings,
        use_byte_stream_split=[name for name in floats if name.split(".")[0] in table.column_names],
        write_page_checksum=True,
    )


def read_columns(teacher: Path, student: Path) -> None:
    """Read and decode what `diff` reads, a row group at a time."""
    columns = ["token_id", "position", *SCORE_COLUMNS]
    for root, extra in ((teacher, ["role"]), (student, [])):
        for path in sorted((root / "scores").glob("*.parquet")):
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    file.read_row_group(group, columns=[*columns, *extra])


def scan_columns(teacher: Path, _student: Path) -> None:
    """Scan what `stats` reads, and add it up."""
    names = ["token_id", "is_content", "is_sampled", "logprob", "entropy", "rank"]
    scanned = pl.scan_parquet(sorted((teacher / "scores").glob("*.parquet")))
    scanned.group_by("role").agg(pl.col(names).sum()).collect(engine="streaming")


TASKS: dict[str, Callable[[Path, Path], object]] = {
    "read": read_columns,
    "diff": lambda teacher, student: diff_report(teacher, student),
    "scan": scan_columns,
    "stats": lambda teacher, _student: stats_report(teacher, by="role"),
}


def run_task(name: str, teacher: Path, student: Path, n_rounds: int) -> None:
    """Time one task after a first round that does not count, and print JSON."""
    times = []
    for _ in range(n_rounds + 1):
        started = time.perf_counter()
        TASKS[name](teacher, student)
        times.append(time.perf_counter() - started)
    print(json.dumps({"elapsed_s": statistics.median(times[1:]), "peak_mb": peak_mb()}))


def peak_mb() -> float:
    """Most memory this process held (Linux); `getrusage` would count what its parent held when it started."""
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) / 1024


def in_a_process(name: str, roots: tuple[Path, Path], n_rounds: int) -> dict[str, float]:
    """The numbers of one task in a process of its own, so that its memory is its own."""
    command = [sys.executable, __file__, "--task", name, "--rounds", str(n_rounds), *map(str, roots)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return found


def load_reference(path: Path) -> Any:  # Any: a module
    """The module at a path."""
    spec = importlib.util.spec_from_file_location("reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def time_bounds(reference: Path | None, n_rounds: int, n_tokens: int = 40_000) -> None:
    """Print microseconds per token of all limits at k = 20, and of the reference's."""
    _, teacher, student = two_models(n_tokens)
    lists = TopK(teacher.ids, teacher.logprobs), TopK(student.ids, student.logprobs)
    topk_limits(lists[0].rows(0, 10), lists[1].rows(0, 10))
    mine, theirs = [], []
    module = None if reference is None else load_reference(reference)
    n_few = 4_000
    worst = 0.0
    for _ in range(n_rounds):
        started = time.perf_counter()
        limits = topk_limits(*lists)
        mine.append((time.perf_counter() - started) / n_tokens * 1e6)
        if module is not None:
            started = time.perf_counter()
            cells = module.build_cells(*(each[:n_few] for side in (teacher, student) for each in side[:2]))
            ratio = module.solve_ratio(cells)
            found = {
                "KL(T||S)": (module.lower(cells, module.KL, ratio), limits.of("kl_teacher_student").lower),
                "KL(S||T)": (module.lower(cells, module.RKL, ratio), limits.of("kl_student_teacher").lower),
                "GJS lower": (module.lower(cells, module.GJS(0.5), ratio), limits.of("gjs", 0.5).lower),
                "GJS upper": (module.upper_gjs(cells, 0.5), limits.of("gjs", 0.5).upper),
                "skew lower": (
                    module.lower(cells, module.SkewKL(0.5), ratio),
                    limits.of("skew_kl", 0.5).lower,
                ),
                "skew upper": (module.upper_skewkl(cells, 0.5), limits.of("skew_kl", 0.5).upper),
                "TV": (module.tv_bounds(cells)[0], limits.of("total_variation").lower),
            }
            theirs.append((time.perf_counter() - started) / n_few * 1e6)
            worst = max(float(np.abs(a - b[:n_few]).max()) for a, b in found.values())
    print(f"bounds, k=20, all cores: {statistics.median(mine):.2f} us a token")
    if theirs:
        ratio_of = statistics.median(theirs) / statistics.median(mine)
        print(
            f"reference in numpy: {statistics.median(theirs):.1f} us a token, {ratio_of:.1f} times as long; "
            f"values differ by {worst:.1e} at most"
        )


def main() -> None:
    """Make the datasets and print the numbers, or run one task."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("roots", nargs="*", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "tokscore-benchmark")
    parser.add_argument("--reference", type=Path, help="Python file with the functions of the reference.")
    chosen = parser.parse_args()
    if chosen.task:
        run_task(chosen.task, *chosen.roots, chosen.rounds)
        return
    time_bounds(chosen.reference, chosen.rounds)
    roots = make_datasets(chosen.folder, chosen.tokens)
    n_tokens = sum(pq.read_metadata(path).num_rows for path in (roots[0] / "scores").glob("*.parquet"))
    found = {name: in_a_process(name, roots, chosen.rounds) for name in TASKS}
    for name, base in (("diff", "read"), ("stats", "scan")):
        ratio = found[name]["elapsed_s"] / found[base]["elapsed_s"]
        print(
            f"{name}, {n_tokens:,} tokens: {found[name]['elapsed_s']:.2f} s, {ratio:.2f} times {base} "
            f"({found[base]['elapsed_s']:.2f} s); peak memory {found[name]['peak_mb']:.0f} MB"
        )


if __name__ == "__main__":
    main()
