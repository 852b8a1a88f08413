"""Peak memory of exact divergences: vLLM holds one body at a time, transformers two.

    python benchmarks/exact_memory.py [--layers 12] [--engine vllm --engine transformers]

Two random models, with few layers and with more, and with a small and a larger vocabulary, are compared by
either engine in processes of their own. What the peak grows by is divided by the bytes of the layers, and by
those of one matrix of the vocabulary (each model has two: embeddings and head). Memory is that which is not
backed by a file, of all processes of the run together.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

HIDDEN, FEW_LAYERS = 1024, 1
SMALL_VOCABULARY, LARGE_VOCABULARY = 16_000, 80_000
N_SEQUENCES, N_TOKENS = 6, 200


class Shape(NamedTuple):
    """Of both models."""

    n_layers: int
    vocab_size: int


def make_model(folder: Path, shape: Shape, seed: int) -> Path:
    """A random Llama in float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=512,
        dtype="float32",
    )
    path = folder / f"{shape.n_layers}-{shape.vocab_size}-{seed}"
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def layer_bytes() -> int:
    """Of the weights of one layer: four square matrices, three of four times the width, two norms."""
    return 4 * (4 * HIDDEN**2 + 3 * 4 * HIDDEN**2 + 2 * HIDDEN)


def compare(engine: str, models: list[str]) -> None:
    """Run both models over a few sequences."""
    from tokscore.scoring import TokenSequence, plan_engine
    from tokscore.scoring.exact.measuring import measuring

    chance = np.random.default_rng(0)
    sequences = [
        TokenSequence(key, chance.integers(0, SMALL_VOCABULARY, N_TOKENS).astype(np.int32))
        for key in range(N_SEQUENCES)
    ]
    teacher, student = (plan_engine(model, engine=engine, top_k=0) for model in models)
    with measuring(teacher, student, sequences) as measure:
        values = dict(measure(sequences))
    assert all(np.isfinite(each.kl_teacher_student).all() for each in values.values())


def peak_bytes(engine: str, models: list[Path]) -> int:
    """Of a run in a process of its own, and those that it starts."""
    command = [sys.executable, __file__, "--compare", engine, *map(str, models)]
    process = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(own_bytes, family(process.pid))))
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"the run by {engine} ended with status {process.returncode}")
    return peak


def family(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:  # It has ended.
                continue
    return found


def own_bytes(pid: int) -> int:
    """Memory of a process that is not backed by a file; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    sizes = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
    return 1024 * (sizes["Pss_Anon:"] + sizes["Pss_Shmem:"])


def main() -> None:
    """Print a line for each engine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--engine", action="append")
    parser.add_argument("--compare", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compare:
        engine, *models = given.compare
        compare(engine, models)
        return
    shapes = [
        Shape(FEW_LAYERS, SMALL_VOCABULARY),
        Shape(given.layers, SMALL_VOCABULARY),
        Shape(FEW_LAYERS, LARGE_VOCABULARY),
    ]
    body_bytes = (given.layers - FEW_LAYERS) * layer_bytes()
    matrix_bytes = 4 * HIDDEN * (LARGE_VOCABULARY - SMALL_VOCABULARY)
    print(
        f"layers {body_bytes / 2**20:,.0f} MiB, matrix of the vocabulary {matrix_bytes / 2**20:,.0f} MiB more"
    )
    for engine in given.engine or ["vllm", "transformers"]:
        peaks = []
        for shape in shapes:
            with tempfile.TemporaryDirectory() as folder:
                models = [make_model(Path(folder), shape, seed) for seed in (0, 1)]
                peaks.append(peak_bytes(engine, models))
        found = {
            "engine": engine,
            "peak_mib": [round(peak / 2**20) for peak in peaks],
            "bodies": round((peaks[1] - peaks[0]) / body_bytes, 2),
            "vocabulary_matrices": round((peaks[2] - peaks[0]) / matrix_bytes, 2),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
