from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.scoring.samples import VOCAB_SIZE, random_ids
from tests.scoring.tiny_models import change_config
from tokscore.dataset.errors import InputError
from tokscore.scoring import SequenceScores, TokenSequence, load_engine
from tokscore.scoring.engines.causality import check_causality

Tiny = Callable[[str], Path]


@pytest.mark.parametrize("name", ["bert", "xlnet"])
def test_a_model_that_looks_ahead_is_refused(tiny: Tiny, name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} is no causal language model .* with another last token"):
        load_engine("transformers", str(tiny(name)))


def test_bert_as_a_decoder_is_scored(tiny: Tiny, tmp_path: Path) -> None:
    from shutil import copytree

    path = copytree(tiny("bert"), tmp_path / "decoder")
    change_config(path, is_decoder=True)
    load_engine("transformers", str(path)).close()


@pytest.mark.parametrize("name", ["whisper", "bart"])
def test_a_decoder_without_its_encoder_is_refused(tiny: Tiny, name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} is an encoder-decoder"):
        load_engine("transformers", str(tiny(name)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("reward", "whose head is for sequence classification"), ("body", "which has no head")],
)
def test_tied_embeddings_do_not_stand_for_a_head(tiny: Tiny, name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        load_engine("transformers", str(tiny(name)))


class Engine:
    """Logprobs that follow from a rule: `score(ids, longest in the batch)` for each row."""

    def __init__(self, rule: Callable[[np.ndarray, int], np.ndarray]) -> None:
        self._rule = rule

    def score(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, SequenceScores]]:
        batch = list(sequences)
        longest = max(len(sequence.token_ids) for sequence in batch)
        for sequence in batch:
            logprobs = self._rule(sequence.token_ids, longest).astype(np.float32)
            ranks, none = np.ones(len(logprobs), np.int32), np.empty((len(logprobs), 0), np.int32)
            yield sequence.key, SequenceScores(logprobs, ranks, none, none.astype(np.float32), None)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (lambda ids, longest: -ids[1:] - 0.01 * ids[-1], "with another last token"),
        (lambda ids, longest: -ids[1:] - 0.01 * len(ids), "when more tokens follow"),
        (lambda ids, longest: -ids[1:] - 0.01 * longest, "beside longer sequences"),
    ],
)
def test_whatever_moves_earlier_rows_is_found(
    rule: Callable[[np.ndarray, int], np.ndarray], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        check_causality(Engine(rule).score, VOCAB_SIZE, 100, name="model", dtype="float32")


def test_rounding_in_other_company_is_let_through() -> None:
    rule = lambda ids, longest: -ids[1:] - 1e-5 * longest  # noqa: E731
    check_causality(Engine(rule).score, VOCAB_SIZE, 100, name="model", dtype="float32")
    check_causality(Engine(lambda ids, n: -ids[1:]).score, VOCAB_SIZE, 3, name="model", dtype="float32")


def test_the_check_leaves_scores_alone(tiny: Tiny) -> None:
    ids = random_ids(0, 30)
    [(_, scores)] = load_engine("transformers", str(tiny("llama"))).score([TokenSequence(0, ids)])
    assert len(scores) == 29
