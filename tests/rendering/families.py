"""A tokenizer that fits every chat template.

Each is a real tokenizer to which the control strings of the templates are added as special tokens, so that
`<|START_OF_TURN_TOKEN|>` is one id here as in the model's own vocabulary; ids that end a turn are those of the
models' generation configs. Where the model's own tokenizer is at hand, nothing of its own is changed.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tokscore.dataset.choices import MessageForm
from tokscore.rendering import ChatTokenizer, Renderer
from tokscore.rendering.attribution.settings import Verify

_CONTROL = re.compile(
    r"""<\|[^|<>\s'"]+\|> | <\|[a-z_]+> | <[a-z_]+\|> | <\|"\|> | <｜[^｜<>\s]+｜> | <end_of_utterance>""",
    re.X,
)
_MORE_CONTROL = ["<s>", "</s>", "<BOS_TOKEN>", "<|startoftext|>", "<|image>", "<image|>", "<sop>", "[gMASK]"]
_MORE_CONTROL += ["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]"]
_MORE_CONTROL += ["[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
_MORE_CONTROL += ["[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"]
_MORE_CONTROL += ["]~b]", "[e~[", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"]
_MARKERS = [
    f"<{slash}{name}>" for name in ("think", "tool_call", "arg_key", "arg_value") for slash in ("", "/")
]


class Family(NamedTuple):
    """A group of models that share a template.

    Attributes:
        base: Folder of the real tokenizer.
        eos: Texts of the ids that end a turn.
        bos_token: The template variable.
        eos_token: The template variable.
    """

    base: str
    eos: tuple[str, ...]
    bos_token: str
    eos_token: str


_GEMMA4 = Family("gemma3", ("<eos>", "<turn|>", "<|tool_response>"), "<bos>", "<eos>")
_UTTERANCE = Family("llama3_1", ("<end_of_utterance>",), "<|begin_of_text|>", "<end_of_utterance>")
FAMILIES = {
    "cohere": Family("qwen3", ("<|END_OF_TURN_TOKEN|>",), "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "deepseek": Family(
        "deepseek_v3", ("<｜end▁of▁sentence｜>",), "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    ),
    "diffusion_gemma": _GEMMA4,
    "gemma4": _GEMMA4,
    "gemma": Family("gemma3", ("<eos>", "<end_of_turn>"), "<bos>", "<eos>"),
    "glm": Family("qwen3", ("<|endoftext|>", "<|user|>", "<|observation|>"), "", "<|endoftext|>"),
    "gptoss": Family("gptoss", ("<|return|>", "<|endoftext|>", "<|call|>"), "<|startoftext|>", "<|return|>"),
    "kimi": Family("qwen3", ("<|im_end|>",), "", "<|im_end|>"),
    "minimax": Family("qwen3", ("[e~[",), "", "[e~["),
    "idefics3": _UTTERANCE,
    "lfm2": Family("qwen3", ("<|im_end|>",), "<|startoftext|>", "<|im_end|>"),
    "llama3": Family(
        "llama3_1", ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"), "<|begin_of_text|>", "<|eot_id|>"
    ),
    "llava_next": Family("qwen3", ("</s>",), "<s>", "</s>"),
    "mistral": Family("qwen3", ("</s>",), "<s>", "</s>"),
    "muse_glimmer": Family("qwen3", ("<|eot|>", "<|eom|>"), "<|begin_of_text|>", "<|eot|>"),
    "nemotron": Family("qwen3", ("<|im_end|>",), "<s>", "<|im_end|>"),
    "phi3": Family("qwen3", ("<|endoftext|>", "<|end|>", "<|assistant|>"), "<s>", "<|endoftext|>"),
    "qwen": Family("qwen3", ("<|im_end|>", "<|endoftext|>"), "", "<|im_end|>"),
    "smolvlm": _UTTERANCE,
}


class Families:
    """Renderers for the templates of the test assets, by template name.

    Attributes:
        assets: Folder of the test assets.
        scratch: Folder for the tokenizers made.
        templates: Sources by name.
    """

    def __init__(self, assets: Path, scratch: Path) -> None:
        folder = assets / "trl" / "chat_templates"
        self.templates = {path.stem: path.read_text() for path in sorted(folder.glob("*.jinja"))}
        self.assets, self.scratch = assets, scratch
        self._tokenizers: dict[str, ChatTokenizer] = {}

    def renderer(
        self,
        template: str,
        *,
        source: str | None = None,
        add_generation_prompt: bool = False,
        verify: Verify = Verify.FULL,
        messages: MessageForm = MessageForm.AUTO,
        **template_kwargs: Any,
    ) -> Renderer:
        """For a template by name, or for `source` as if it had that name."""
        family = next(family for prefix, family in FAMILIES.items() if template.startswith(prefix))
        if family.base not in self._tokenizers:
            self._tokenizers[family.base] = self._make(family.base)
        tokenizer = copy.copy(self._tokenizers[family.base])
        tokenizer.template = self.templates[template] if source is None else source
        tokenizer.eos_ids = frozenset(tokenizer.hf.convert_tokens_to_ids(list(family.eos)))
        return Renderer(
            tokenizer,
            template_kwargs={
                "bos_token": family.bos_token,
                "eos_token": family.eos_token,
                **template_kwargs,
            },
            add_generation_prompt=add_generation_prompt,
            verify=verify,
            messages=messages,
        )

    def own_template(self, base: str) -> str:
        """The template that comes with a tokenizer."""
        config = json.loads((self.assets / "tokenizers" / base / "tokenizer_config.json").read_text())
        return str(config["chat_template"])

    def _make(self, base: str) -> ChatTokenizer:
        return family_tokenizer(self, base, base, control_strings(self.templates.values()))


def control_strings(templates: Iterable[str]) -> set[str]:
    """What templates print that looks like a control token."""
    return {text for template in templates for text in _CONTROL.findall(template)}


def family_tokenizer(families: Families, base: str, name: str, control: set[str]) -> ChatTokenizer:
    """A real tokenizer to which control strings are added, kept in the scratch folder under `name`."""
    source, target = families.assets / "tokenizers" / base, families.scratch / name
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocabulary, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    known = {token["content"] for token in added}
    free = itertools.count(max(*vocabulary.values(), *(token["id"] for token in added)) + 1)
    for text in sorted({*control, *_MORE_CONTROL, *_MARKERS} - known):
        token = {"id": vocabulary[text] if text in vocabulary else next(free), "content": text}
        token |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added.append({**token, "special": text not in _MARKERS})
    added.sort(key=lambda token: token["id"])
    config = json.loads((source / "tokenizer_config.json").read_text())
    target.mkdir(exist_ok=True)
    (target / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (target / "tokenizer_config.json").write_text(
        json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return ChatTokenizer(str(target), template="")
