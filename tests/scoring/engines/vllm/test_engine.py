from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tokscore.dataset.errors import EngineError
from tokscore.dataset.tokens import RenderedConversation
from tokscore.rendering.inputs import open_source
from tokscore.scoring import TokenSequence, load_engine
from tokscore.scoring.engines.vllm.results import from_flat, from_tensors

EXAMPLES = Path(__file__).parents[4] / "examples"

# float32 engines on the real model.
ATOL = 2e-4
MEAN_ATOL = 2e-5


def flat(n_rows: int = 2, top_k: int = 1) -> SimpleNamespace:
    """vLLM's result for the ids 4, 5, 6: at each position the token, then the most likely id."""
    n = n_rows * (top_k + 1)
    return SimpleNamespace(
        start_indices=[0, *range(0, n, top_k + 1)],
        token_ids=[5, 9, 6, 6][:n],
        logprobs=[-3.0, -0.1, -0.5, -0.5][:n],
        ranks=[7, 1, 1, 1][:n],
    )


GIVEN = np.array([[1], [2]], np.int32)
SEQUENCE = TokenSequence(0, np.array([4, 5, 6], np.int32))


def test_the_realised_token_is_taken_out_of_the_top_k() -> None:
    scores = from_flat(flat(), SEQUENCE, 1)
    np.testing.assert_array_equal(scores.logprobs, np.float32([-3.0, -0.5]))
    np.testing.assert_array_equal(scores.ranks, [7, 1])
    np.testing.assert_array_equal(scores.top_ids, [[9], [6]])
    np.testing.assert_array_equal(scores.top_logprobs, np.float32([[-0.1], [-0.5]]))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "for None positions of 3 tokens"),
        (SimpleNamespace(start_indices=[], logprobs=[]), "for 0 positions of 3 tokens"),
        (flat(n_rows=1), "for 2 positions of 3 tokens"),
    ],
)
def test_missing_rows_are_an_engine_error(answer: object, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        from_flat(answer, SEQUENCE, 1)


def test_missing_alternatives_are_an_engine_error() -> None:
    with pytest.raises(EngineError, match="4 logprobs for 3 tokens; expected 2 x 3"):
        from_flat(flat(), SEQUENCE, 2)


def test_rows_of_other_tokens_are_an_engine_error() -> None:
    with pytest.raises(EngineError, match="other tokens"):
        from_flat(flat(), TokenSequence(0, np.array([4, 5, 7], np.int32)), 1)


def test_given_ids_are_refused_by_paths_without_them() -> None:
    sequence = SEQUENCE._replace(at_ids=GIVEN)
    with pytest.raises(EngineError, match="flat path gives no logprobs at given ids"):
        from_flat(flat(), sequence, 1)
    with pytest.raises(EngineError, match="tensors path gives no logprobs at given ids"):
        from_tensors(None, sequence, 1, is_fused=False)


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_starts_in_a_process_that_has_numba(tiny_llama: Path) -> None:
    importlib.import_module("numba")
    engine = load_engine("vllm", str(tiny_llama))
    [(_, scores)] = engine.score([SEQUENCE])
    engine.close()
    assert scores.logprobs.shape == (2,)


@pytest.mark.vllm
@pytest.mark.model
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_both_engines_agree_on_every_token_of_the_examples(teacher_model: Path) -> None:
    source = open_source(
        [str(EXAMPLES / "conversations.jsonl")],
        str(teacher_model),
        template=EXAMPLES / "chatml_tools.jinja",
    )
    items = [item for part in source.parts for item in source.read(part)]
    assert all(isinstance(item, RenderedConversation) for item in items)
    sequences = [TokenSequence(key, item.tokens.token_ids) for key, item in enumerate(items)]
    longest = max(len(sequence.token_ids) for sequence in sequences)
    found = []
    for name in ("vllm", "transformers"):
        engine = load_engine(name, str(teacher_model), longest=longest)
        found.append(dict(engine.score(sequences)))
        engine.close()
    logprobs, top_logprobs = (
        [np.concatenate([getattr(scores[key], column) for key in range(len(items))]) for scores in found]
        for column in ("logprobs", "top_logprobs")
    )
    differences = np.abs(logprobs[0] - logprobs[1])
    print(
        f"logprobs of {len(differences)} tokens differ by {differences.max():.2g}, mean {differences.mean():.2g}"
    )
    assert differences.max() < ATOL
    assert differences.mean() < MEAN_ATOL
    assert np.abs(top_logprobs[0] - top_logprobs[1]).max() < ATOL
