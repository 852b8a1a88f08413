"""`vllm serve` on this machine against the vLLM engine in this process, in float32."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest

from tokscore.dataset.tokens import RenderedConversation
from tokscore.rendering.inputs import open_source
from tokscore.scoring import SequenceScores, TokenSequence, plan_engine

pytest.importorskip("vllm")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.model,
    pytest.mark.nightly,
]

EXAMPLES = Path(__file__).parents[4] / "examples"
ATOL = 1e-4
TOP_K = 20
START_S = 240


@pytest.fixture(scope="module")
def url(teacher_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the 135M model."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port = some.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    # What `vllm serve` runs; the command itself looks for a distribution that the CPU build is not.
    arguments = [
        "--model",
        str(teacher_model),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        "float32",
        "--max-model-len",
        "4096",
        "--enable-scale-out",  # the token-in token-out endpoint
        "--enforce-eager",  # compiling takes minutes on a CPU
    ]
    environment = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    with log.open("w") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
    try:
        _wait_for(server, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


def _wait_for(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    stop = time.monotonic() + START_S
    while time.monotonic() < stop and server.poll() is None:
        try:
            with urlopen(address, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (URLError, HTTPException, OSError):
            time.sleep(0.5)
    pytest.fail(f"vllm serve did not start: {log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def sequences(teacher_model: Path) -> list[TokenSequence]:
    """All examples."""
    source = open_source(
        [str(EXAMPLES / "conversations.jsonl")],
        str(teacher_model),
        template=EXAMPLES / "chatml_tools.jinja",
    )
    items = [item for part in source.parts for item in source.read(part)]
    assert all(isinstance(item, RenderedConversation) for item in items)
    return [TokenSequence(key, item.tokens.token_ids) for key, item in enumerate(items)]


@pytest.fixture(scope="module")
def in_process(teacher_model: Path, sequences: list[TokenSequence]) -> dict[int, SequenceScores]:
    spec = plan_engine(str(teacher_model), engine="vllm", dtype="float32", top_k=TOP_K)
    engine = spec.start(max(len(sequence.token_ids) for sequence in sequences))
    found = dict(engine.score(sequences))
    engine.close()
    return found


@pytest.mark.parametrize("kind", ["vllm", "vllm-tokens", "echo"])
def test_every_number_of_all_examples_is_that_of_vllm_in_process(
    kind: str,
    in_process: dict[int, SequenceScores],
    url: str,
    teacher_model: Path,
    sequences: list[TokenSequence],
) -> None:
    top_k = TOP_K if kind != "echo" else 5
    engine = plan_engine(str(teacher_model), url=url, server_kind=kind, top_k=top_k).start()
    found = dict(engine.score(sequences))
    engine.close()
    assert sorted(found) == sorted(in_process)
    n_ranks = n_rows = 0
    for key, scores in found.items():
        expected = in_process[key]
        np.testing.assert_allclose(scores.logprobs, expected.logprobs, atol=ATOL)
        np.testing.assert_allclose(scores.top_logprobs, expected.top_logprobs[:, :top_k], atol=ATOL)
        _assert_same_lists(scores, expected, top_k)
        if scores.ranks is not None:
            n_ranks += _assert_same_ranks(scores, expected)
            n_rows += len(scores)
    if kind != "echo":
        # Ranks far down a list count hundreds of ids that are as likely but for rounding.
        assert n_ranks > 0.99 * n_rows > 0


def test_auto_finds_completions_with_prompt_logprobs(url: str, teacher_model: Path) -> None:
    engine = plan_engine(str(teacher_model), url=url).start()
    assert engine.details["server_kind"] == "vllm"
    assert engine.identity.engine_version.startswith("vllm 0.")
    engine.close()


def _assert_same_lists(one: SequenceScores, other: SequenceScores, top_k: int) -> None:
    """Ids differ only between places whose logprobs are apart by less than the tolerance."""
    for row, place in zip(*np.nonzero(one.top_ids != other.top_ids[:, :top_k]), strict=True):
        logprobs = other.top_logprobs[row]
        near = np.abs(logprobs - logprobs[place]) < ATOL
        assert near.sum() > 1 or place == top_k - 1, (row, place)


def _assert_same_ranks(one: SequenceScores, other: SequenceScores) -> int:
    assert other.ranks is not None
    apart = np.abs(one.ranks - other.ranks)
    listed = other.ranks <= TOP_K
    differs = listed & (apart > 0)
    # Among the listed, only ids as likely as the token can change its rank.
    for row in np.flatnonzero(differs):
        assert (np.abs(other.top_logprobs[row] - other.logprobs[row]) < ATOL).sum() > 1, row
    assert (apart <= np.maximum(2, 0.01 * other.ranks)).all()
    return int((apart == 0).sum())
