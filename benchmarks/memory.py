"""Peak memory of `tokscore logprobs` on 10,000 and on 100,000 short sequences: it should be the same.

    python benchmarks/memory.py [--runs 3] [--small 10000] [--large 100000]

A tiny random model scores conversations of random letters, so that the process itself is measured. Each run
is a process of its own; medians are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

VOCAB_SIZE = 259


def make_model(folder: Path) -> Path:
    """A two-layer Llama with a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }}<|im_end|>{% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "chat_template": template,
            }
        )
    )
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            max_position_embeddings=256,
        )
    ).save_pretrained(folder)
    return folder


def write_conversations(path: Path, n: int) -> Path:
    """Conversations of about 20 tokens, none like another."""
    chance = random.Random(0)
    with path.open("w") as file:
        for i in range(n):
            text = f"{i} " + "".join(chance.choices("abcdefgh ", k=chance.randrange(4, 20)))
            file.write(json.dumps({"messages": [{"role": "user", "content": text}]}) + "\n")
    return path


def peak_bytes(model: Path, conversations: Path, out: Path) -> int:
    """Of a process that scores the conversations."""
    command = [sys.executable, "-m", "tokscore.cli.main", "logprobs", str(conversations), "-m", str(model)]
    command += ["-o", str(out), "--engine", "transformers", "--verify", "off", "--format", "json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"tokscore ended with status {status}")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=100_000)
    chosen = parser.parse_args()
    medians = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder / "model")
        for n in (chosen.small, chosen.large):
            conversations = write_conversations(folder / f"{n}.jsonl", n)
            peaks = [peak_bytes(model, conversations, folder / f"{n}-{run}") for run in range(chosen.runs)]
            medians.append(statistics.median(peaks))
            shown = ", ".join(f"{peak / 2**20:,.0f}" for peak in peaks)
            print(f"{n:>8,} sequences: median {medians[-1] / 2**20:,.0f} MiB ({shown})", flush=True)
    print(f"ratio {medians[1] / medians[0]:.3f}")


if __name__ == "__main__":
    main()
