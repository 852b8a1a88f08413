"""Two models of vLLM, one after the other, against both of transformers side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.scoring.tiny_models import VOCAB_SIZE
from tokscore.dataset.errors import EngineError, UsageError
from tokscore.scoring import TokenSequence, plan_engine

pytest.importorskip("vllm")
from tokscore.scoring.engines.child import Child
from tokscore.scoring.engines.vllm.surroundings import ENVIRONMENT
from tokscore.scoring.exact.divergences import ExactTokens
from tokscore.scoring.exact.one_after_other import OneAfterOther
from tokscore.scoring.exact.states import NamelessFile

pytestmark = pytest.mark.vllm

ALPHAS = (0.1, 0.5)


def sequences_of(n_tokens: Sequence[int], vocab_size: int = VOCAB_SIZE) -> list[TokenSequence]:
    """Some of all tokens, some of every third, and one of none."""
    random = np.random.default_rng(3)
    found = []
    for key, n in enumerate(n_tokens):
        wanted = None if key % 2 else np.arange(n - 1) % 3 != key % 3
        if key == 4:
            wanted = np.zeros(n - 1, np.bool_)
        found.append(TokenSequence(10 + key, random.integers(0, vocab_size, n).astype(np.int32), wanted))
    return found


def n_models() -> int:
    """Processes of this one that hold a model."""
    import psutil  # comes with vLLM

    children = psutil.Process().children()
    return sum("tokscore.scoring.engines.child" in each.cmdline() for each in children)


def assert_equal(found: ExactTokens, expected: ExactTokens, atol: float) -> None:
    for name in ExactTokens._fields:
        values = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(*map(np.float64, values), atol=atol, rtol=0, err_msg=name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([{"tensor_parallel_size": 2}, {}], "`tensor_parallel_size` is 2"),
        ([{}, {"pipeline_parallel_size": 2}], "`pipeline_parallel_size` is 2"),
        ([{"temperature": 0.5}, {}], r"the temperatures are 0\.5 and 1"),
    ],
)
def test_what_cannot_run_so_is_refused_before_anything_starts(
    tiny: Callable[[str], Path], tmp_path: Path, settings: list[dict[str, object]], message: str
) -> None:
    plans = [plan_engine(str(tiny("llama")), engine="vllm", top_k=0, **each) for each in settings]
    with pytest.raises(UsageError, match=message):
        OneAfterOther(plans[0], plans[1], [], tmp_path)


def test_it_equals_both_models_alone_in_as_many_rounds_as_the_disk_needs(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """The second model has more ids, and its embeddings are padded otherwise."""
    models = [str(tiny(name)) for name in ("llama", "wider")]
    sequences = sequences_of((90, 61, 2, 130, 40, 77))
    expected = side_by_side(models, sequences)
    said: list[tuple[int, int]] = []

    def keeping(done: int, total: int) -> None:
        assert n_models() <= 1, "both are in memory"
        said.append((done, total))

    pair = OneAfterOther(
        *(plan_engine(model, engine="vllm", top_k=0) for model in models),
        iter(sequences),
        tmp_path,
        alphas=ALPHAS,
        keeping=keeping,
        max_bytes=210 * 64 * 4,
    )
    try:
        # As they are asked for: a part behind a part.
        found = dict(pair.measure(sequences[:1])) | dict(pair.measure(sequences[1:]))
        assert n_models() == 1
        with pytest.raises(EngineError, match="sequence 99: the first model has not run it"):
            dict(pair.measure([sequences[0]._replace(key=99)]))
    finally:
        pair.close()
    assert list(tmp_path.iterdir()) == []
    totals = [total for done, total in said if done == total]
    assert len(totals) == 2
    assert sum(totals) == sum(len(each.token_ids) for each in sequences if each.n_rows)
    assert found.keys() == {each.key for each in sequences}
    for key, values in found.items():
        assert np.isinf(values.kl_student_teacher).all()
        # KL of random models that disagree is the difference of large sums.
        assert_equal(values, expected[key], 1e-4)


@pytest.mark.parametrize("name", ["gemma2", "granite", "cohere", "biased-phi"])
def test_a_head_that_is_loaded_again_is_the_same(
    tiny: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """Capped, divided, multiplied and biased: the model's own, beside the model itself."""
    sequences = sequences_of((90, 61, 130))
    spec = plan_engine(str(tiny(name)), engine="vllm", top_k=0)
    with NamelessFile(tmp_path) as states, NamelessFile(tmp_path) as head:
        own: Child[ExactTokens] = Child(
            "tests.scoring.exact.own_head:OwnHead",
            "compare",
            spec,
            states.path,
            head.path,
            environment=ENVIRONMENT,
        )
        try:
            found = dict(own.call(sequences))
        finally:
            own.close()
    for sequence in sequences:
        values = found[sequence.key]
        assert len(values.teacher_logprob) == sequence.n_rows
        for field in ("kl_teacher_student", "kl_student_teacher", "total_variation", "gjs"):
            np.testing.assert_allclose(getattr(values, field), 0, atol=1e-9, err_msg=field)
        np.testing.assert_allclose(values.teacher_logprob, values.student_logprob, atol=1e-5)


def side_by_side(models: Sequence[str], sequences: Sequence[TokenSequence]) -> dict[int, ExactTokens]:
    """In a process that vLLM has not changed."""
    plans = [plan_engine(model, engine="transformers", top_k=0) for model in models]
    pair: Child[ExactTokens] = Child(
        "tokscore.scoring.exact.pair:ModelPair", "measure", *plans, alphas=ALPHAS
    )
    try:
        return dict(pair.call(sequences))
    finally:
        pair.close()
