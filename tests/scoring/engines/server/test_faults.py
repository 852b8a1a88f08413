"""Whatever happens to answers on their way, rows are right, whole and there once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from tests.conftest import EXAMPLES
from tests.scoring.engines.server.faults import KINDS, Faults, proxy
from tests.scoring.engines.server.served import Served, by_last_two
from tests.scoring.samples import VOCAB_SIZE
from tokscore.dataset.errors import EngineError
from tokscore.scoring import Engine, TokenSequence
from tokscore.scoring.engines.server import tries

Serve = Callable[..., tuple[Served, str]]
Connect = Callable[..., Engine]
ROOT = EXAMPLES.parent
SHARE = 0.1
# The server makes probabilities add up to 1 once more.
ATOL = 1e-6


def sequences(n: int) -> list[TokenSequence]:
    rng = np.random.default_rng(3)
    return [
        TokenSequence(key, rng.integers(0, VOCAB_SIZE, rng.integers(2, 16)).astype(np.int32))
        for key in range(n)
    ]


@pytest.mark.slow
def test_no_row_is_lost_doubled_or_wrong_behind_a_faulty_proxy(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(tries, "LONGEST_WAIT_S", 0.1)
    _, url = serve()
    faults = Faults(SHARE)
    with proxy(url, faults) as faulty:
        found = list(connect(faulty, top_k=3, engine_arg={"retry_s": 60}).score(sequences(1_000)))
    assert sorted(key for key, _ in found) == list(range(1_000))
    assert all(faults.n[kind] > 100 for kind in KINDS), faults.n
    scores = dict(found)
    for key, ids, *_ in sequences(1_000):
        expected = by_last_two(ids.tolist())[:-1]
        realised = expected[np.arange(len(ids) - 1), ids[1:]]
        np.testing.assert_allclose(scores[key].logprobs, realised, atol=ATOL)
        np.testing.assert_array_equal(scores[key].ranks, (expected >= realised[:, None]).sum(1))
        order = np.argsort(-expected, axis=1, kind="stable")[:, :3]
        np.testing.assert_array_equal(scores[key].top_ids, order)
        np.testing.assert_allclose(
            scores[key].top_logprobs, np.take_along_axis(expected, order, 1), atol=ATOL
        )


@pytest.mark.parametrize("kind", ["too many", "broken", "drop", "truncate", "garble"])
@pytest.mark.slow
def test_a_server_that_never_answers_rightly_ends_the_run_with_its_reason(
    kind: str, serve: Serve, connect: Connect
) -> None:
    """Tries end; the message says what the last one met."""
    _, url = serve()
    faults = Faults(0.0)
    said = {"too many": "answered 429", "broken": "answered 500: Internal Server Error"}
    with proxy(url, faults) as faulty:
        engine = connect(faulty, top_k=3, engine_arg={"retry_s": 1})
        faults.always = kind
        with pytest.raises(EngineError, match=said.get(kind, "gave no answer|cannot be read")):
            list(engine.score(sequences(2)))


@pytest.mark.slow
def test_memory_stays_flat_over_10_000_requests() -> None:
    """In a process of its own, as what other tests leave behind comes and goes."""
    command = [sys.executable, "benchmarks/servers.py", "--requests", "10000"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert finished.returncode == 0, finished.stdout + finished.stderr
