"""Chat templates that packages publish, each with a tokenizer that has its control strings."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.rendering.families import FAMILIES, Families, control_strings, family_tokenizer
from tests.rendering.mistral import mistral_templates
from tokscore.rendering import ChatTokenizer

# Strings that end a turn, where a template prints them; the first is its `eos_token`.
_STOPS = [
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>", "[e~[", "[|endofturn|]", "<seed:eos>", "<|message_sep|>",
    "<|end_of_msg|>", "<|assistant_end|>", "<SPECIAL_12>", "<sep>", "<|eot|>", "<|eom|>", "<|eos|>", "<|end|>",
    "</s>", "<|endoftext|>", "<eos>",
]  # fmt: skip
# Control strings that a template puts together.
_MADE = {
    f"<｜hy_{name}:opensource｜>"
    for name in ("begin▁of▁sentence", "User", "Assistant", "eos", "place▁holder▁no▁3")
}
_OWN_STOPS = {
    "tencent-Hy3": ["<｜hy_eos:opensource｜>"],
    "GLM": ["<|endoftext|>", "<|user|>", "<|observation|>"],
    "openai-gpt-oss": ["<|return|>", "<|call|>", "<|endoftext|>"],
}
_BOS = re.compile(r"<\|begin_of_text\|>|<｜begin▁of▁sentence｜>|<bos>|<s>")


class Published(NamedTuple):
    """A template and the tokenizer it is used with.

    Attributes:
        name: Package and file.
        source: The template.
        tokenizer: Has its control strings; its eos ids are those that end a turn.
        variables: bos_token and eos_token.
    """

    name: str
    source: str
    tokenizer: ChatTokenizer
    variables: dict[str, str]


def published_templates(families: Families, only: str = "") -> Iterator[Published]:
    """All that the test assets hold, or those whose name holds `only`."""
    for name, source in families.templates.items():
        if only in f"trl/{name}":
            yield _of_family(families, f"trl/{name}", name, source)
    for base in ("qwen3", "llama3_1", "gemma3", "deepseek_v3"):
        family = {"llama3_1": "llama3", "gemma3": "gemma", "deepseek_v3": "deepseek"}.get(base, "qwen")
        if only in f"npm/{base}":
            yield _of_family(families, f"npm/{base}", family, families.own_template(base))
    for name, source in mistral_templates(families.assets / "mistral").items():
        if only in f"mistral/{name}":
            yield _of_family(families, f"mistral/{name}", "mistral", source)
    folders = [families.assets / name for name in ("axolotl", "llama_cpp", "vllm")]
    sources = {
        f"{folder.name}/{path.stem}": path.read_text("utf-8")
        for folder in folders
        for path in sorted(folder.glob("*.jinja"))
        if only in f"{folder.name}/{path.stem}"
    }
    sources = {name: text for text, name in {t: n for n, t in reversed(sources.items())}.items()}
    if sources:
        tokenizer = family_tokenizer(
            families, "qwen3", "published", control_strings(sources.values()) | set(_STOPS) | _MADE
        )
        for name, source in sources.items():
            yield _guessed(name, source, tokenizer)


def _of_family(families: Families, name: str, family_name: str, source: str) -> Published:
    family = next(family for prefix, family in FAMILIES.items() if family_name.startswith(prefix))
    renderer = families.renderer(family_name, source=source)
    return Published(
        name, source, renderer.tokenizer, {"bos_token": family.bos_token, "eos_token": family.eos_token}
    )


def _guessed(name: str, source: str, tokenizer: ChatTokenizer) -> Published:
    stem = name.partition("/")[2]
    own = next((stops for prefix, stops in _OWN_STOPS.items() if stem.startswith(prefix)), None)
    stops = own or [stop for stop in _STOPS if stop in source] or ["</s>"]
    tokenizer = copy.copy(tokenizer)
    tokenizer.template = source
    tokenizer.eos_ids = frozenset(tokenizer.hf.convert_tokens_to_ids(stops))
    bos = _BOS.search(source)
    return Published(name, source, tokenizer, {"bos_token": bos[0] if bos else "<s>", "eos_token": stops[0]})
