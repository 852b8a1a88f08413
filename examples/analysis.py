"""Render, score and compare a few conversations from Python, cell by cell, as in a notebook.

    python examples/analysis.py

takes the two models that `make demo` builds (in $TOKSCORE_CACHE or ~/.cache/tokscore) and under a minute.
"""

# %% Conversations are dictionaries, or paths such as "rollouts/*.jsonl".
import json
import os
from pathlib import Path

import numpy as np
import polars as pl

from tokscore.analytics import diff, stats, topk_gjs
from tokscore.rendering import Dataset, load_table, load_tokens, render
from tokscore.scoring import load_scores, score

HERE = Path(__file__).parent
MODELS = Path(os.environ.get("TOKSCORE_CACHE", "~/.cache/tokscore")).expanduser() / "models"
TEACHER, STUDENT = MODELS / "smollm2-135m-instruct", MODELS / "smollm2-135m-student"

lines = (HERE / "conversations.jsonl").read_text(encoding="utf-8").splitlines()
conversations = [json.loads(line) for line in lines[:2]]
pl.Config.set_tbl_hide_dataframe_shape(True).set_float_precision(4).set_tbl_width_chars(110)

# %% Every token knows its message, role and field, and whether a model generated it.
tokens = render(conversations, STUDENT, template=HERE / "chatml_tools.jinja")
print(
    load_tokens(tokens, columns=["conversation_id", "position", "token_id", "role", "source", "is_sampled"])
)

# %% For training, the same as arrays: the ids, and the mask of what the model generated.
for row, rendered in tokens.conversations():
    n_sampled = int((rendered.sampled_mask == 1).sum())
    print(f"{row.conversation_id}: {rendered.token_ids.shape[0]} ids, {n_sampled} of them sampled")

# %% Both models score the same ids. Without `out="teacher"` a dataset lasts until the process ends.
teacher = score(tokens, TEACHER, top_k=20)
student = score(tokens, STUDENT, top_k=20)
print(stats(teacher).select("role", "n_tokens", "n_scored", "mean_logprob", "perplexity", "rank1_share"))

# %% A lazy frame reads only the columns it needs, however large the dataset is.
vocabulary = load_table(teacher, "vocabulary", lazy=True)
surprising = (
    load_scores(teacher, lazy=True)
    .filter("is_sampled")
    .sort("logprob")
    .head(5)
    .join(vocabulary, on="token_id", how="left", maintain_order="left")
    .select("conversation_id", "position", "text", "logprob", "rank")
)
print(surprising.collect())

# %% The models compared: means per token in nats, between a lower and an upper limit.
by_role = diff(teacher, student, alpha=[0.5, 0.1], by="role")
print(by_role.select("role", "n_tokens", "log_ratio", "^gjs_.*(lower|upper)$"))


# %% The bounds of single tokens, as numpy arrays.
def top_k(dataset: Dataset) -> list[np.ndarray]:
    frame = load_scores(dataset, columns=["top_ids", "top_logprobs"]).drop_nulls()
    return [frame[name].list.to_array(20).to_numpy() for name in frame.columns]


(teacher_ids, teacher_logprobs), (student_ids, student_logprobs) = top_k(teacher), top_k(student)
bounds = topk_gjs(teacher_ids, teacher_logprobs, student_ids, student_logprobs)
furthest = int(bounds.lower.argmax())
print(f"GJS of token {furthest}: {bounds.lower[furthest]:.4f} to {bounds.upper[furthest]:.4f} nats")
