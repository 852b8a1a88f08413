"""Writes recorded.jsonl: example conversations with token ids, as a rollout server would have recorded them.

    python examples/make_recorded.py MODEL > examples/recorded.jsonl

MODEL is the small model that `make models` builds. Two of the four records are what the chat template gives
for their messages. In one, the model spelled a word in other tokens than the tokenizer does; one holds two
answers to the same prompt, the second of which opens with a space that its message no longer has.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokscore.rendering import ChatTokenizer, Conversation, RenderedTokens, Renderer

HERE = Path(__file__).parent
SPLIT = " because"


def recorded(
    tokens: RenderedTokens, messages: list[dict[str, Any]], ids: list[int], n: int
) -> dict[str, Any]:
    """One branch of the format `tokens`: the prompt of `tokens`, then other ids for the last `n`.

    The last run of roles and the mask grow or shrink with them.
    """
    kept = tokens.token_ids.tolist()[: len(tokens) - n]
    mask = [bool(each == 1) for each in tokens.sampled_mask.tolist()][: len(tokens) - n]
    roles: list[list[Any]] = [
        [span.role, span.stop - span.start]
        if span.message_index < 0
        else [span.role, span.stop - span.start, span.message_index]
        for span in tokens.role_token_spans()
    ]
    roles[-1][1] += len(ids) - n
    all_ids, all_mask = kept + ids, mask + [True] * len(ids)
    first = all_mask.index(True)
    return {
        "prompt_token_ids": all_ids[:first],
        "completion_token_ids": all_ids[first:],
        "mask": all_mask,
        "roles": roles,
        "messages": messages,
    }


def main(model: str) -> None:
    """Print the records, one a line."""
    template = (HERE / "chatml_tools.jinja").read_text("utf-8")
    tokenizer = ChatTokenizer(model, template=template)
    renderer = Renderer(tokenizer)
    newline = len(tokenizer.token_ids(["\n"])[0])

    def render(messages: list[dict[str, Any]]) -> RenderedTokens:
        """Up to the stop of the last answer, where a server ends."""
        whole = renderer.render(Conversation(messages))
        return whole[: len(whole) - newline]

    def answer(text: str) -> list[int]:
        ids: list[int] = tokenizer.token_ids([text + "<|im_end|>"])[0].tolist()
        return ids

    question = {"role": "user", "content": "Why is the sky blue?"}
    plain: list[dict[str, Any]] = [
        question,
        {"role": "assistant", "content": "Air scatters blue light more than red."},
    ]
    tools: list[dict[str, Any]] = [
        {"role": "user", "content": "What is 12 times 12?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "function": {"name": "multiply", "arguments": {"a": 12, "b": 12}}}
            ],
        },
        {"role": "tool", "name": "multiply", "content": "144"},
        {"role": "assistant", "content": "It is 144."},
    ]
    spelled: list[dict[str, Any]] = [
        question,
        {"role": "assistant", "content": f"It is blue{SPLIT} of the air."},
    ]
    text = spelled[1]["content"]
    before, after = text.split(SPLIT)
    ids = [tokenizer.token_ids([part])[0].tolist() for part in (before, SPLIT[:4], SPLIT[4:] + after)]
    pieces = [*ids[0], *ids[1], *ids[2], *answer("")]
    n_answer = len(answer(text))
    good: list[dict[str, Any]] = [question, {"role": "assistant", "content": "Because of the air."}]
    spaced: list[dict[str, Any]] = [question, {"role": "assistant", "content": "No idea."}]
    records: list[dict[str, Any]] = [
        {"id": "as-rendered", **recorded(render(plain), plain, [], 0)},
        {"id": "with-a-tool", **recorded(render(tools), tools, [], 0)},
        {"id": "spelled-otherwise", **recorded(render(spelled), spelled, pieces, n_answer)},
        {
            "id": "two-answers",
            "branches": [
                recorded(render(good), good, [], 0),
                recorded(render(spaced), spaced, answer(" No idea."), len(answer("No idea."))),
            ],
            "metadata": {"rewards": [1.0, 0.0]},
        },
    ]
    for record in records:
        print(json.dumps(record, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
