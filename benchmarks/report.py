"""How large the HTML report of many tokens is, how long it takes to write, and how it behaves in Chromium.

    python benchmarks/report.py FOLDER [--conversations 2000] [--tokens 2000000] [--longest 100000]

Writes two score datasets of random logprobs to FOLDER (kept and used again), a report of them, and opens it
in Debian's chromium. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.analytics.report import write_diff_report
from tokscore.dataset.manifest import Manifest, ModelIdentity, Part, TokenizerIdentity
from tokscore.dataset.schema import VOCABULARY, DatasetKind
from tokscore.dataset.tokens import ConversationRow, MessageFacts, RenderedConversation, RenderedTokens
from tokscore.dataset.writing import PartWriter
from tokscore.scoring.columns import ScoredTokens, score_columns
from tokscore.scoring.engines.contract import SequenceScores

VOCAB_SIZE = 50_000
TOP_K = 20
MESSAGE_TOKENS = 200


def write_dataset(root: Path, lengths: list[int], model: str, seed: int) -> None:
    """A score dataset whose lists fall off as those of language models do."""
    manifest = Manifest(
        kind=DatasetKind.SCORES,
        tokscore_version="0",
        settings={"top_k": TOP_K, "temperature": 1.0},
        tokenizer=TokenizerIdentity("random", None, "t" * 64, "c" * 64, VOCAB_SIZE),
        model=ModelIdentity(model, None, None, VOCAB_SIZE, "float32", "none", "0"),
        inputs=[],
        parts=[Part(0, 0, 0, 1, 1)],
    ).sealed()
    root.mkdir(parents=True)
    (root / "manifest.json").write_bytes(manifest.to_json())
    texts = [f" w{i}" if i % 13 else f"w{i}\n" for i in range(VOCAB_SIZE)]
    rows = [list(range(VOCAB_SIZE)), texts, [text.encode() for text in texts]]
    pq.write_table(pa.table(rows, schema=VOCABULARY), root / "vocab.parquet")
    with PartWriter(root, manifest, 0, score_columns) as writer:
        for line, n in enumerate(lengths, 1):
            row = ConversationRow(f"conversation-{line}", 0, "convs.jsonl", line)
            tokens, ids = make_tokens(n, line)
            # The longest is the most divergent, so that it is kept.
            noise = 0.9 if line == 1 else 0.3
            scores = make_scores(tokens.token_ids, ids, np.random.default_rng([line, seed]), noise)
            writer.add(RenderedConversation(row, tokens), ScoredTokens(n, scores))
        writer.finish()


def make_tokens(n: int, line: int) -> tuple[RenderedTokens, np.ndarray]:
    """Tokens, and the ids that both models list at each."""
    random = np.random.default_rng(line)
    ids = random.integers(0, VOCAB_SIZE - TOP_K, (n, 1)) + np.arange(TOP_K)
    realised = ids[np.arange(n), np.minimum(random.geometric(0.6, n) - 1, TOP_K - 1)]
    message = np.arange(n) // MESSAGE_TOKENS
    tokens = RenderedTokens(
        token_ids=realised.astype(np.int32),
        message_indices=message.astype(np.int32),
        sampled_mask=(message % 2).astype(np.int8),
        is_content=np.ones(n, bool),
        source_codes=np.zeros(n, np.int16),
        sources=("content",),
        messages=tuple(MessageFacts("assistant" if i % 2 else "user") for i in range(message[-1] + 1)),
    )
    return tokens, ids


def make_scores(
    token_ids: np.ndarray, ids: np.ndarray, random: np.random.Generator, noise: float
) -> SequenceScores:
    """Logprobs that fall by `slope` a place; the same ids in nearly the same order for every model."""
    n = len(token_ids) - 1
    ids = ids[1:]
    slope = random.gamma(2.0, 1.0, (n, 1)) + 0.1
    logits = -slope * np.arange(TOP_K) + random.normal(0, noise, (n, TOP_K))
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)) - 0.02
    order = np.argsort(-logprobs, axis=1)
    ids, logprobs = np.take_along_axis(ids, order, axis=1), np.take_along_axis(logprobs, order, axis=1)
    at = (ids == token_ids[1:, None]).argmax(axis=1)
    return SequenceScores(
        logprobs=logprobs[np.arange(n), at].astype(np.float32),
        ranks=(at + 1).astype(np.int32),
        top_ids=ids.astype(np.int32),
        top_logprobs=logprobs.astype(np.float32),
        entropy=-(np.exp(logprobs) * logprobs).sum(axis=1).astype(np.float32),
    )


def browse(path: Path, longest: str) -> dict[str, Any]:
    """Main-thread seconds until the page is usable, and nodes while the longest conversation scrolls."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        driver.execute_cdp_cmd("Performance.enable", {})

        def main_thread() -> tuple[float, float]:
            """Processor seconds of the main thread, and seconds that its tasks took on the clock."""
            metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
            found = {metric["name"]: float(metric["value"]) for metric in metrics}
            return found["ThreadTime"], found["TaskDuration"]

        def wait() -> None:
            while not driver.execute_script("return document.querySelectorAll('#strip .t').length > 0"):
                time.sleep(0.02)

        driver.get("about:blank")
        before, started = main_thread(), time.perf_counter()
        driver.get(path.as_uri())
        wait()
        wall_s = time.perf_counter() - started
        open_cpu_s, open_task_s = (after - was for after, was in zip(main_thread(), before, strict=True))
        driver.get("about:blank")
        driver.get(f"{path.as_uri()}#c={longest}&b=0")
        wait()
        heading = driver.execute_script("return document.getElementById('conversation-heading').textContent")
        before, nodes, n_steps = main_thread(), 0, 300
        for step in range(n_steps):
            where = (
                f"const s = document.getElementById('strip'); s.scrollTop = s.scrollHeight * {step / n_steps}"
            )
            driver.execute_script(where)
            driver.execute_script("return new Promise(requestAnimationFrame)")
            count = driver.execute_script("return document.querySelectorAll('*').length")
            nodes = max(nodes, count)
        scroll_s = (main_thread()[0] - before[0]) / n_steps
        return {
            "open_main_thread_cpu_s": round(open_cpu_s, 3),
            "open_main_thread_task_s": round(open_task_s, 3),
            "open_wall_s": round(wall_s, 3),
            "longest": heading,
            "most_elements": nodes,
            "scroll_step_main_thread_ms": round(1000 * scroll_s, 1),
        }
    finally:
        driver.quit()


def main() -> None:
    """Parse, write, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--conversations", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--longest", type=int, default=100_000)
    parser.add_argument("--max-mb", type=float, default=25.0)
    options = parser.parse_args()
    each = (options.tokens - options.longest) // (options.conversations - 1)
    lengths = [options.longest, *[each] * (options.conversations - 1)]
    datasets = [options.folder / name for name in ("teacher", "student")]
    for seed, root in enumerate(datasets):
        if not root.is_dir():
            write_dataset(root, lengths, root.name, seed)
            print(f"wrote {root}", file=sys.stderr)
    path = options.folder / "report.html"
    started = time.perf_counter()
    size = write_diff_report(*datasets, path, max_mb=options.max_mb)
    result: dict[str, Any] = {
        "tokens": sum(lengths),
        "write_s": round(time.perf_counter() - started, 1),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        **size._asdict(),
    }
    print(json.dumps(result | browse(path, "conversation-1"), indent=2))


if __name__ == "__main__":
    main()
