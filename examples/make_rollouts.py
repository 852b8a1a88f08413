"""Writes rollouts.jsonl: recorded.jsonl with the logprobs of sampled tokens, as an inference server has them.

    python examples/make_rollouts.py MODEL > examples/rollouts.jsonl

MODEL is the small model that `make models` builds; it scores in float32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokscore.rendering import render
from tokscore.scoring import load_scores, score

HERE = Path(__file__).parent
DIGITS = 6


def main(model: str) -> None:
    """Print the records, one a line."""
    tokens = render(HERE / "recorded.jsonl", model, template=HERE / "chatml_tools.jinja")
    scores = load_scores(
        score(tokens, model, dtype="float32", engine="transformers"),
        columns=["conversation_id", "branch", "is_sampled", "logprob"],
    )
    columns = scores.group_by("conversation_id", "branch").agg("is_sampled", "logprob")
    logprobs: dict[tuple[str, int], list[float | None]] = {
        (name, branch): [
            round(value, DIGITS) if was_sampled else None
            for was_sampled, value in zip(sampled, values, strict=True)
        ]
        for name, branch, sampled, values in columns.iter_rows()
    }
    for line in (HERE / "recorded.jsonl").read_text("utf-8").splitlines():
        record: dict[str, Any] = json.loads(line)
        for index, branch in enumerate(record.get("branches", [record])):
            n_prompt = len(branch["prompt_token_ids"])
            branch["logprobs"] = logprobs[record["id"], index][n_prompt:]
        print(json.dumps(record, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
