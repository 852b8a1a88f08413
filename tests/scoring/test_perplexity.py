"""The perplexity of a text, against other tools' recipes written here with plain transformers."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pytest

from tokscore.analytics import stats_report
from tokscore.scoring import load_scores, score

if TYPE_CHECKING:
    import torch

LICENSE = Path(__file__).parents[2] / "LICENSE"
ATOL = 1e-4


class Measured(NamedTuple):
    """What a recipe says of a text.

    Attributes:
        perplexity: As it prints it.
        n_counted: Tokens in that.
        mean_nll: Of the counted tokens of each window, in nats.
    """

    perplexity: float
    n_counted: int
    mean_nll: list[float]


def load(path: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()
    return model, AutoTokenizer.from_pretrained(path)


def llama_cpp(model: Any, ids: Sequence[int], n_ctx: int, bos: int | None) -> Measured:
    """tools/perplexity/perplexity.cpp: full chunks, each opened by the BOS, and their second halves."""
    import torch

    first, nll, count, means = n_ctx // 2, 0.0, 0, []
    for i in range(len(ids) // n_ctx):
        tokens = list(ids[i * n_ctx : (i + 1) * n_ctx])
        opened = tokens if bos is None else [bos, *tokens[1:]]
        with torch.inference_mode():
            logprobs = model(torch.tensor([opened])).logits[0].double().log_softmax(-1)
        found = [-float(logprobs[j, tokens[j + 1]]) for j in range(first, n_ctx - 1)]
        nll, count = nll + sum(found), count + len(found)
        means.append(sum(found) / len(found))
    return Measured(math.exp(nll / count), count, means)


def hugging_face(model: Any, ids: Sequence[int], max_length: int, stride: int, bos: int | None) -> Measured:
    """docs/source/en/perplexity.md of transformers, with a BOS before every window where there is one."""
    import torch

    input_ids_of_text: torch.Tensor = torch.tensor([list(ids)])
    nll_sum, n_tokens, prev_end_loc, means = 0.0, 0, 0, []
    seq_len = input_ids_of_text.size(1)
    for begin_loc in range(0, seq_len, stride):
        end_loc = min(begin_loc + max_length, seq_len)
        trg_len = end_loc - prev_end_loc
        input_ids = input_ids_of_text[:, begin_loc:end_loc].clone()
        target_ids = input_ids.clone()
        target_ids[:, :-trg_len] = -100
        if bos is not None:
            input_ids[:, 0] = bos
        with torch.inference_mode():
            neg_log_likelihood = float(model(input_ids, labels=target_ids).loss)
        num_loss_tokens = int((target_ids != -100).sum()) - 1
        nll_sum += neg_log_likelihood * num_loss_tokens
        n_tokens += num_loss_tokens
        means.append(neg_log_likelihood)
        prev_end_loc = end_loc
        if end_loc == seq_len:
            break
    return Measured(math.exp(nll_sum / n_tokens), n_tokens, means)


@pytest.fixture(scope="module")
def tiny_model_with_bos(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, whose tokenizer puts <|endoftext|> before every text."""
    path = tmp_path_factory.mktemp("models") / "tiny-with-bos"
    shutil.copytree(tiny_model, path)
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    bos = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}
        },
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def scored(text: Path, model: Path, **chunks: int) -> tuple[pl.DataFrame, float]:
    """The score table of a text, and the perplexity that `stats` says."""
    dataset = score(
        text, model, input_format="text", engine="transformers", dtype="float32", top_k=0, **chunks
    )
    perplexity = stats_report(dataset).total.perplexity
    assert perplexity is not None
    return load_scores(dataset), perplexity


def window_means(scores: pl.DataFrame) -> list[float]:
    means = scores.group_by("branch").agg(-pl.col("logprob").cast(pl.Float64).mean()).sort("branch")
    return means["logprob"].to_list()


def check_llama_cpp(text: Path, path: Path, n_ctx: int) -> None:
    model, tokenizer = load(path)
    ids = tokenizer(text.read_text(encoding="utf-8"))["input_ids"]
    bos = ids[0] if ids[0] in tokenizer.all_special_ids else None
    expected = llama_cpp(model, ids, n_ctx, bos)
    scores, perplexity = scored(text, path, chunk=n_ctx, context=n_ctx // 2 + 1)
    assert scores["logprob"].count() == expected.n_counted
    assert perplexity == pytest.approx(expected.perplexity, rel=1e-6)
    np.testing.assert_allclose(window_means(scores), expected.mean_nll, atol=ATOL)
    own = scores.filter(pl.col("source") != "template")["token_id"].to_list()
    full = len(ids) // n_ctx * n_ctx
    assert own == [id_ for i, id_ in enumerate(ids[:full]) if bos is None or i % n_ctx]


@pytest.mark.parametrize("name", ["tiny_model", "tiny_model_with_bos"])
def test_the_second_halves_of_chunks_are_those_of_llama_cpp(
    name: str, request: pytest.FixtureRequest
) -> None:
    check_llama_cpp(LICENSE, request.getfixturevalue(name), 128)


@pytest.mark.parametrize("name", ["tiny_model", "tiny_model_with_bos"])
@pytest.mark.parametrize(("size", "stride"), [(128, 48), (64, 63)])
def test_windows_with_a_stride_are_those_of_hugging_face(
    name: str, size: int, stride: int, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(name)
    model, tokenizer = load(path)
    ids = tokenizer(LICENSE.read_text(encoding="utf-8"))["input_ids"]
    expected = hugging_face(model, ids, size, stride, 256 if name == "tiny_model_with_bos" else None)
    scores, perplexity = scored(LICENSE, path, chunk=size, stride=stride)
    found = window_means(scores)
    np.testing.assert_allclose(found, expected.mean_nll, atol=ATOL)
    counted = scores.filter("is_content")
    assert counted["token_id"].to_list() == [i for i in ids if i != 256]
    # The recipe gives every window one token less than it counts there; `stats` weighs tokens alike.
    n_loss = counted.group_by("branch").len().sort("branch")["len"].to_numpy() - 1
    n_loss[0] += name == "tiny_model_with_bos"
    as_published = math.exp(float(np.dot(found, n_loss) / n_loss.sum()))
    assert as_published == pytest.approx(expected.perplexity, rel=1e-6)
    n_scored = scores.group_by("branch").agg(pl.col("logprob").count()).sort("branch")["logprob"].to_numpy()
    plain = math.exp(float(np.dot(expected.mean_nll, n_scored) / n_scored.sum()))
    assert n_scored.sum() == len(ids) - 1
    assert perplexity == pytest.approx(plain, rel=1e-6)


@pytest.mark.model
@pytest.mark.slow
def test_the_perplexity_of_a_real_text_is_that_of_llama_cpp(teacher_model: Path) -> None:
    check_llama_cpp(LICENSE, teacher_model, 512)
