"""Peak memory and time of `tokscore select` and `tokscore export` as conversations become more.

    python benchmarks/choosing.py [--sizes 10000 100000 1000000] [--only "select --where" "export topk"]

Conversations are short. The dataset of their scores is written in bulk: one part of 10,000 conversations as
a run writes it, the others as copies with other ids and lines. Each command is a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.dataset.manifest import InputFile, Manifest, ModelIdentity, Part, TokenizerIdentity
from tokscore.dataset.resuming import write_vocabulary
from tokscore.dataset.schema import VOCABULARY, DatasetKind
from tokscore.dataset.tokens import ConversationRow, MessageFacts, RenderedConversation, RenderedTokens
from tokscore.dataset.writing import PartWriter
from tokscore.scoring.columns import ScoredTokens, score_columns
from tokscore.scoring.engines.contract import SequenceScores

PART_CONVERSATIONS, N_TOKENS, VOCAB_SIZE, TOP_K = 10_000, 8, 256, 3
TABLES = ("spans", "messages", "conversations", "scores")
MESSAGES = '[{{"role": "user", "content": "abc"}}, {{"role": "assistant", "content": "defg"}}]'
RECORD = (
    '{{"id": "c{:07}", "messages": [{{"role": "user", "content": "abc"}}, '
    '{{"role": "assistant", "content": "defg"}}]}}\n'
)
LINE_BYTES = len(RECORD.format(0))


def write_inputs(folder: Path, n: int) -> Path:
    """The records, and a dataset of their scores."""
    conversations = folder / f"{n}.jsonl"
    with conversations.open("w") as file:
        file.writelines(RECORD.format(i) for i in range(n))
    parts = [
        Part(i, 0, first * LINE_BYTES, min(first + PART_CONVERSATIONS, n) * LINE_BYTES, first + 1)
        for i, first in enumerate(range(0, n, PART_CONVERSATIONS))
    ]
    digest = hashlib.sha256(conversations.read_bytes()).hexdigest()
    manifest = Manifest(
        kind=DatasetKind.SCORES,
        tokscore_version="0",
        settings={"top_k": TOP_K, "temperature": 1.0, "input_format": "openai"},
        tokenizer=TokenizerIdentity("tok", None, "t" * 64, "c" * 64, VOCAB_SIZE),
        model=ModelIdentity("m", None, None, VOCAB_SIZE, "float32", "transformers", "transformers 5"),
        inputs=[InputFile(conversations.name, n * LINE_BYTES, digest)],
        parts=parts,
    ).sealed()
    root = folder / f"scores-{n}"
    root.mkdir()
    (root / "manifest.json").write_bytes(manifest.to_json())
    texts = [f"t{i}".encode() for i in range(VOCAB_SIZE)]
    write_vocabulary(
        root, pa.table([[*range(VOCAB_SIZE)], [text.decode() for text in texts], texts], schema=VOCABULARY)
    )
    with PartWriter(root, manifest, 0, score_columns) as writer:
        for i in range(min(n, PART_CONVERSATIONS)):
            row = ConversationRow(f"c{i:07}", 0, conversations.name, i + 1)
            writer.add(RenderedConversation(row, TOKENS), ScoredTokens(N_TOKENS, scores(i)))
        writer.finish()
    shutil.rmtree(root / "checksums")
    for part in parts[1:]:
        copy_part(root, part.index)
        shutil.copy(root / "errors/part-00000.jsonl", root / f"errors/part-{part.index:05}.jsonl")
    return root


TOKENS = RenderedTokens(
    token_ids=np.arange(N_TOKENS, dtype=np.int32),
    message_indices=np.repeat([0, 1], [3, N_TOKENS - 3]).astype(np.int32),
    sampled_mask=np.repeat([0, 1], [3, N_TOKENS - 3]).astype(np.int8),
    is_content=np.ones(N_TOKENS, np.bool_),
    source_codes=np.zeros(N_TOKENS, np.int16),
    sources=("content",),
    messages=(MessageFacts("user"), MessageFacts("assistant")),
)


def scores(seed: int) -> SequenceScores:
    """Of a conversation: numbers by chance, with lists in order."""
    lists = np.sort(np.random.default_rng(seed).uniform(-9, -1.2, (N_TOKENS - 1, TOP_K)))[:, ::-1]
    return SequenceScores(
        logprobs=lists[:, 1].astype(np.float32),
        ranks=np.full(N_TOKENS - 1, 2, np.int32),
        top_ids=(TOKENS.token_ids[1:, None] + np.array([1, 0, 2], np.int32)) % VOCAB_SIZE,
        top_logprobs=lists.astype(np.float32),
        entropy=np.ones(N_TOKENS - 1, np.float32),
    )


def copy_part(root: Path, index: int) -> None:
    """Write a part as the first, of other conversations."""
    for table in TABLES:
        rows = pq.read_table(root / table / "part-00000.parquet")
        schema = rows.schema
        if "conversation_id" in schema.names:
            column = schema.get_field_index("conversation_id")
            ids = rows["conversation_id"].to_numpy(zero_copy_only=False)
            moved = [f"c{int(name[1:]) + index * PART_CONVERSATIONS:07}" for name in ids]
            rows = rows.set_column(column, schema.field(column), pa.array(moved, schema.field(column).type))
        if table == "conversations":
            column = schema.get_field_index("source_line")
            lines = pa.array(rows["source_line"].to_numpy() + index * PART_CONVERSATIONS)
            rows = rows.set_column(column, schema.field(column), lines.cast(schema.field(column).type))
            if "part" in schema.names:
                column = schema.get_field_index("part")
                rows = rows.set_column(
                    column, schema.field(column), pa.array([index] * rows.num_rows, schema.field(column).type)
                )
        pq.write_table(rows, root / table / f"part-{index:05}.parquet", compression="zstd")


def measured(*arguments: str | Path) -> tuple[float, float]:
    """Peak MiB and seconds of a command."""
    command = [sys.executable, "-m", "tokscore.cli.main", *map(str, arguments)]
    started = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    with process.stderr or nullcontext() as said:
        printed = said.read() if said else b""
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(printed.decode())
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**20, time.monotonic() - started


def commands(root: Path, folder: Path) -> dict[str, tuple[str | Path, ...]]:
    """By title; their outputs are new files in `folder`."""
    kept, exported = ("-o", folder / "kept.jsonl"), ("export", root, "-o", folder / "targets.parquet")
    return {
        "select --where": ("select", root, "--where", "mean_logprob > -5", *kept),
        "select --keep-top": ("select", root, "--keep-top", "90%", "--by", "mean_logprob", *kept),
        "select --against": ("select", root, "--against", root, "--where", "log_ratio > -1", *kept),
        "export labels": exported,
        "export topk": (*exported, "--format", "topk"),
        "export advantages": (*exported, "--format", "advantages", "--student", root),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--only", nargs="+", choices=commands(Path(), Path()), help="Of the commands.")
    arguments = parser.parse_args()
    for n in arguments.sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for title, command in commands(write_inputs(folder, n), folder).items():
                if arguments.only and title not in arguments.only:
                    continue
                peak, elapsed_s = measured(*command)
                print(f"{n:>9,}  {title:18} {peak:6,.0f} MiB {elapsed_s:7.1f} s", flush=True)
                for written in ("kept.jsonl", "targets.parquet"):
                    (folder / written).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
