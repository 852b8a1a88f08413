"""Peak memory of `tokscore diff --exact` on vLLM: that of one model and the other's head, not of both models.

    python benchmarks/exact_memory.py --tokenizer DIR --on convs.jsonl [--hidden 2048] [--engine vllm]

Two random Llamas of two layers with heads of their own score the conversations and are compared, each run in
processes of its own. Printed is the most that its processes held at a time of memory that no file backs,
beside the size of a model and of a head. `--engine transformers`, which holds both models, is for comparison.
Linux.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PAUSE_S = 0.1
COPIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def make_model(tokenizer: Path, folder: Path, hidden: int, seed: int) -> tuple[int, int]:
    """A random model with the tokenizer; its bytes and those of its head."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(AutoTokenizer.from_pretrained(tokenizer)),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=2,
            num_attention_heads=hidden // 64,
            num_key_value_heads=hidden // 64,
            max_position_embeddings=2048,
            tie_word_embeddings=False,
        )
    )
    model.save_pretrained(folder)
    for name in COPIED:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, folder)
    return sum(each.nbytes for each in model.parameters()), model.lm_head.weight.nbytes


def with_descendants(pid: int) -> Iterator[int]:
    """A process and all that it started, directly or not."""
    yield pid
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text("ascii").split()
        ]
    except OSError:  # it has just ended
        return
    for child in children:
        yield from with_descendants(child)


def held_bytes(pid: int) -> int:
    """Memory that no file backs, of a process and all that it started; shared pages counted by share."""
    total = 0
    for each in with_descendants(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text("ascii").splitlines()
        except OSError:  # it has just ended
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return total * 1024


def peak_bytes(*arguments: str | Path) -> int:
    """Of a run of tokscore."""
    command = [sys.executable, "-m", "tokscore.cli.main", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    peak = 0
    while process.poll() is None:
        peak = max(peak, held_bytes(process.pid))
        time.sleep(PAUSE_S)
    if process.returncode:
        raise SystemExit(f"tokscore ended with status {process.returncode}")
    return peak


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", type=Path, required=True, help="directory of a model")
    parser.add_argument("--on", type=Path, required=True, help="conversations")
    parser.add_argument("--hidden", type=int, default=2048, help="width of the models")
    parser.add_argument("--engine", default="vllm")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = [folder / "teacher", folder / "student"]
        for seed, model in enumerate(models):
            size, head = make_model(chosen.tokenizer, model, chosen.hidden, seed)
        print(f"a model {size / 2**20:,.0f} MiB, of which its head {head / 2**20:,.0f} MiB", flush=True)
        peak_bytes("render", chosen.on, "-m", models[1], "-o", folder / "tokens")
        how = ("--engine", chosen.engine, "--dtype", "float32")
        scores = [folder / "teacher-scores", folder / "student-scores"]
        alone = 0
        for model, out in zip(models, scores, strict=True):
            peak = peak_bytes("logprobs", folder / "tokens", "-m", model, "-o", out, *how)
            print(f"logprobs of the {model.name}: {peak / 2**20:,.0f} MiB", flush=True)
            alone = max(alone, peak)
        os.environ["TOKSCORE_CACHE"] = str(folder / "cache")
        sides = ("--teacher-model", models[0], "--student-model", models[1], "--engine", chosen.engine)
        peak = peak_bytes("diff", *scores, "--exact", *sides)
        more = peak - alone
        print(f"diff --exact: {peak / 2**20:,.0f} MiB, {more / 2**20:,.0f} more than one model alone")
        print(f"which is {more / head:.2f} heads, {more / size:.2f} models")


if __name__ == "__main__":
    main()
