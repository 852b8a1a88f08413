"""Small tokenizers, templates and conversations for tests of rendered tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tokscore.rendering import ChatTokenizer, Renderer
from tokscore.rendering.attribution.settings import Verify

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Control tokens of each template, those that end a turn first.
REAL_TEMPLATES = {
    "qwen3": ["<|im_end|>", "<|im_start|>"],
    "llama3_1": ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>"],
    "gemma3": ["<end_of_turn>", "<start_of_turn>", "<bos>"],
    "glm4moe": ["<|user|>", "<|observation|>", "<|assistant|>", "<|system|>", "[gMASK]", "<sop>"],
    "gptoss": ["<|return|>", "<|end|>", "<|call|>", "<|start|>", "<|message|>", "<|channel|>"],
    "phi3_5": ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"],
}
N_EOS = {"glm4moe": 2, "gptoss": 3}  # else 1
NO_TOOLS = {"gemma3", "phi3_5"}  # these refuse tool messages, or print nothing of them
CHATML_TOOLS = Path(__file__).parents[2] / "examples" / "chatml_tools.jinja"


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: object, **more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(arguments: object) -> dict[str, Any]:
    return {"id": "call_00001", "type": "function", "function": {"name": "f", "arguments": arguments}}


def tool(content: str) -> dict[str, Any]:
    return {"role": "tool", "name": "f", "tool_call_id": "call_00001", "content": content}


def byte_tokenizer(folder: Path, special: Sequence[str], eos: str) -> Path:
    """A tokenizer with one token per byte and the given control tokens, the eos among them."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": eos,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


_load = lru_cache(ChatTokenizer)


def template_renderer(tokenizer: Path, template: str) -> Renderer:
    """The tokenizer with a template; everything is verified."""
    loaded = copy(_load(str(tokenizer)))
    loaded.template = template
    return Renderer(loaded, verify=Verify.FULL)


def byte_renderer(folder: Path, assets: Path, template: str) -> Renderer:
    """One of REAL_TEMPLATES with a byte tokenizer, made in `folder`, that has its control tokens."""
    special = REAL_TEMPLATES[template]
    tokenizer = folder / template
    if not tokenizer.exists():
        byte_tokenizer(tokenizer, special, special[0])
        eos = list(range(256, 256 + N_EOS.get(template, 1)))
        (tokenizer / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    return template_renderer(tokenizer, (assets / "trl" / "chat_templates" / f"{template}.jinja").read_text())


PIECES = [
    "a",
    "Hello",
    " ",
    "\n",
    "\n\n",
    "é",
    "e\u0301",
    "🎉",
    "你好",
    "\x00",
    "<think>",
    "</think>",
    "{{ x }}",
]
CONTROL = [*SPECIAL, "<|eot_id|>", "<end_of_turn>", "<|user|>", "<|end|>", "assistant\n"]
CONTENTS = st.lists(st.sampled_from([*PIECES, *CONTROL]) | st.text(max_size=4), max_size=5).map("".join)


@st.composite
def conversations(draw: st.DrawFn, *, has_tools: bool = True) -> list[dict[str, Any]]:
    """A system message or none, then turns of a user and an assistant, with tool calls and their results."""
    messages = [{"role": "system", "content": draw(CONTENTS)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append(user(draw(CONTENTS)))
        if has_tools and draw(st.booleans()):
            messages += [
                assistant(draw(CONTENTS), tool_calls=[call({"p": draw(CONTENTS)})]),
                tool(draw(CONTENTS)),
            ]
        if draw(st.booleans()):
            messages.append(assistant(draw(CONTENTS), reasoning_content=draw(CONTENTS)))
        else:
            messages.append(assistant(draw(CONTENTS)))
    return messages[: len(messages) - draw(st.integers(0, 1))]
