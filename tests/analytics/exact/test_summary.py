"""The figures of llama.cpp's perplexity tool, against its formulas written out over full logits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")
from tests.analytics.exact.pairs import Pair, score_pair
from tokscore.analytics.exact.figures import Summary
from tokscore.analytics.exact.report import exact_report

Array = np.ndarray[Any, np.dtype[np.float64]]
DOCS = Path(__file__).parents[3] / "docs"
BLOCK_ROWS = 8  # of float64, which the cache holds
# Texts of different kinds: prose with tables, code, and lists of commands.
TEXTS = ("attribution.md", "python.md", "formats.md")


class Tokens(NamedTuple):
    """What the figures are made of, of every token with one before it; shape [tokens]."""

    nll_base: Array
    nll: Array
    kld: Array
    is_same_top: Array

    def joined(self, others: list[Tokens]) -> Tokens:
        return Tokens(*map(np.concatenate, zip(self, *others, strict=True)))


def tokens_of(models: tuple[Path, Path], sequences: list[list[int]]) -> list[Tokens]:
    """By transformers' logits over the whole vocabulary; their softmax in float64, a few rows at a time."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = [AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval() for model in models]
    found = []
    for ids in sequences:
        with torch.inference_mode():
            sides = [model(torch.tensor([ids]), use_cache=False).logits[0, :-1] for model in loaded]
        targets = torch.tensor(ids[1:])[:, None]
        blocks = zip(*(each.split(BLOCK_ROWS) for each in (*sides, targets)), strict=True)
        columns = zip(*(block_of(*block) for block in blocks), strict=True)
        found.append(Tokens(*(torch.cat(column).numpy() for column in columns)))
    return found


def block_of(base_logits: Any, logits: Any, targets: Any) -> tuple[Any, ...]:
    base, q = (each.double().log_softmax(-1) for each in (base_logits, logits))
    nll_base, nll = (-each.gather(1, targets)[:, 0] for each in (base, q))
    is_same = base.argmax(1) == q.argmax(1)
    return nll_base, nll, (base.exp() * (base - q)).sum(1), is_same


def mean_and_uncertainty(values: Array) -> tuple[float, float]:
    mean = values.sum() / len(values)
    variance = (values**2).sum() / len(values) - mean**2
    return mean, math.sqrt(max(variance, 0) / (len(values) - 1))


def percentile(values: Array, share: float) -> float:
    ordered = sorted(values.tolist())
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return (1 - (place - below)) * ordered[below] + (place - below) * ordered[above]


def figures_of_llama(tokens: Tokens) -> dict[str, float]:
    """What the tool prints."""
    nll_base, nll, kld, is_same_top = tokens
    n = len(nll)
    p_diff = np.exp(-nll) - np.exp(-nll_base)
    found: dict[str, float] = {}

    def put(name: str, value: float, error: float) -> None:
        found[name], found[f"{name}.se_tokens"] = value, error

    log_ppl, log_ppl_error = mean_and_uncertainty(nll)
    log_base, log_base_error = mean_and_uncertainty(nll_base)
    covariance = ((nll * nll_base).sum() / n - log_ppl * log_base) / (n - 1)
    ppl, ppl_base = math.exp(log_ppl), math.exp(log_base)
    put("mean_ppl_q", ppl, ppl * log_ppl_error)
    put("mean_ppl_base", ppl_base, ppl_base * log_base_error)
    found["cor_ln_ppl"] = covariance / (log_ppl_error * log_base_error)
    ratio_error = math.sqrt(log_ppl_error**2 + log_base_error**2 - 2 * covariance)
    put("mean_ln_ppl_ratio", log_ppl - log_base, ratio_error)
    put("mean_ppl_ratio", math.exp(log_ppl - log_base), math.exp(log_ppl - log_base) * ratio_error)
    difference_error = math.sqrt(
        (ppl * log_ppl_error) ** 2 + (ppl_base * log_base_error) ** 2 - 2 * ppl * ppl_base * covariance
    )
    put("mean_ppl_difference", ppl - ppl_base, difference_error)
    put("mean_kld", *mean_and_uncertainty(kld))
    put("mean_delta_p", *mean_and_uncertainty(p_diff))
    for name, values in (("kld", kld), ("delta_p", p_diff)):
        found[f"maximum_{name}"], found[f"minimum_{name}"] = values.max(), values.min()
        found[f"median_{name}"] = float(np.median(values))
        for percent in (
            "99.9",
            "99",
            "95",
            "90",
            "10",
            "5",
            "1",
            "0.1",
            *(("75", "25") * (name == "delta_p")),
        ):
            found[f"p{percent.replace('.', '_')}_{name}"] = percentile(values, float(percent) / 100)
    square, square_error = mean_and_uncertainty(p_diff**2)
    put("rms_delta_p", math.sqrt(square), 0.5 / math.sqrt(square) * square_error)
    same = is_same_top.sum() / n
    put("same_top_p", same, math.sqrt(same * (1 - same) / (n - 1)))
    return found


def errors_over_conversations(conversations: list[Tokens]) -> dict[str, float]:
    """By leaving out one conversation after the other (jackknife), which linearisation comes close to."""
    names = [
        "mean_ppl_q",
        "mean_ppl_base",
        "mean_ppl_ratio",
        "mean_ppl_difference",
        "mean_kld",
        "rms_delta_p",
    ]
    left: list[list[float]] = []
    for index in range(len(conversations)):
        first, *rest = (*conversations[:index], *conversations[index + 1 :])
        found = figures_of_llama(first.joined(rest))
        left.append([found[name] for name in names])
    values = np.array(left)
    n = len(conversations)
    errors = np.sqrt((n - 1) / n * ((values - values.mean(0)) ** 2).sum(0))
    return dict(zip(names, errors.tolist(), strict=True))


def summary_and_tokens(pair: Pair, folder: Path) -> tuple[Summary, list[Tokens]]:
    import polars as pl

    summary = exact_report(pair.run(folder)).summary
    rows = pl.read_parquet(pair.teacher / "scores/*.parquet")
    sequences = rows.group_by("conversation_id", maintain_order=True).agg("token_id")["token_id"].to_list()
    return summary, tokens_of((pair.teacher_model, pair.student_model), sequences)


def held_to_llama(summary: Summary, tokens: Tokens) -> None:
    found, expected = summary.flat(), figures_of_llama(tokens)
    assert found.keys() == expected.keys() | {
        name.replace("se_tokens", "se_conversations") for name in expected if name.endswith("se_tokens")
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=5e-5, abs=1e-6), name
        assert abs(found[name] - value) < 1e-4 * max(1.0, abs(value)), name
    assert summary.n_tokens == len(tokens.nll)


def test_every_figure_is_that_of_the_formulas_over_full_logits(pair: Pair, tmp_path: Path) -> None:
    summary, (first, *rest) = summary_and_tokens(pair, tmp_path)
    held_to_llama(summary, first.joined(rest))
    errors = {each.name: each.se_conversations for each in summary.figures}
    for name, error in errors_over_conversations([first, *rest]).items():
        assert errors[name] == pytest.approx(error, rel=0.15), name


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize(
    "text", [TEXTS[0], *(pytest.param(text, marks=pytest.mark.nightly) for text in TEXTS[1:])]
)
def test_every_figure_of_the_example_pair_is_right_to_four_digits(
    teacher_model: Path, student_model: Path, tmp_path: Path, text: str
) -> None:
    """Over 2,000 tokens of a text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(teacher_model)
    ids = tokenizer((DOCS / text).read_text(encoding="utf-8"))["input_ids"][:2_001]
    assert len(ids) == 2_001
    lines = tmp_path / "text.jsonl"
    record = {"id": text, "prompt_token_ids": ids[:1], "completion_token_ids": ids[1:]}
    lines.write_text(json.dumps(record) + "\n")
    pair = score_pair(tmp_path, lines, teacher_model, student_model)
    summary, [tokens] = summary_and_tokens(pair, tmp_path / "exact")
    assert summary.n_tokens == 2_000
    held_to_llama(summary, tokens)


def test_a_model_against_itself_has_figures_of_nothing(pair: Pair, tmp_path: Path) -> None:
    same = pair._replace(student=pair.teacher, student_model=pair.teacher_model)
    found = exact_report(same.run(tmp_path)).summary.flat()
    assert found["mean_ppl_q"] == found["mean_ppl_base"]
    assert (found["mean_ppl_ratio"], found["mean_ppl_ratio.se_tokens"]) == (1, 0)
    assert (found["same_top_p"], found["cor_ln_ppl"]) == (1, pytest.approx(1))
    for name in ("mean_kld", "maximum_kld", "mean_ppl_difference", "rms_delta_p", "rms_delta_p.se_tokens"):
        assert found[name] == 0


def test_json_nests_errors_and_leaves_percentiles_plain(pair: Pair, tmp_path: Path) -> None:
    found = exact_report(pair.run(tmp_path)).summary.to_dict()
    assert isinstance(found["mean_kld"], dict)
    assert found["mean_kld"].keys() == {"value", "se_tokens", "se_conversations"}
    assert isinstance(found["p99_9_kld"], float)
    assert found["n_conversations"] == 12
