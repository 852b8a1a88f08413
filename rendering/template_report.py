"""What a chat template does with conversations, found out before anybody spends a GPU on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tokscore.dataset.errors import ConversationError
from tokscore.dataset.tokens import RenderedTokens
from tokscore.rendering.attribution.generation_tags import Policy
from tokscore.rendering.attribution.renderer import Renderer
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.template_shapes import CALL_AND_RESULT, shapes
from tokscore.rendering.templates.probes import ANSWER, TOOL, USER
from tokscore.rendering.templates.render import has_generation_tags


class Finding(NamedTuple):
    """One line of a report.

    Attributes:
        subject: Roles, prompt, header, stop, drops, append-only, tags or shape.
        name: Which of them.
        finding: What was found.
        how: What it was found from, or why it was not.
    """

    subject: str
    name: str
    finding: str
    how: str


def template_report(renderer: Renderer) -> list[Finding]:
    """What the template of a renderer takes, prints, drops and refuses.

    Args:
        renderer: The template with its tokenizer and variables.
    """
    rendered: dict[str, RenderedTokens] = {}
    refused: dict[str, str] = {}
    for name, conversation in shapes().items():
        try:
            rendered[name] = renderer.render(conversation)
        except ConversationError as error:
            refused[name] = error.reason
    return [
        *_roles(renderer),
        *_prompts(renderer),
        *_stops(renderer, rendered),
        *_drops(rendered),
        *_append_only(renderer, rendered),
        *_tags(renderer, rendered),
        *_shapes(rendered, refused),
    ]


def _roles(renderer: Renderer) -> Iterator[Finding]:
    for role, messages in {
        "system": [{**USER, "role": "system", "content": "be good"}, USER],
        "developer": [{**USER, "role": "developer", "content": "be good"}, USER],
        "user": [USER],
        "assistant": [USER, ANSWER],
        "tool": [USER, *CALL_AND_RESULT],
    }.items():
        tools = [TOOL] if role == "tool" else None
        at = next(i for i, message in enumerate(messages) if message["role"] == role)
        try:
            tokens = renderer.render(Conversation(messages, tools))
        except ConversationError as error:
            yield Finding("role", role, "refused", error.reason)
            continue
        is_printed = bool((tokens.is_content & (tokens.message_indices == at)).any())
        yield Finding("role", role, "taken" if is_printed else "taken, but its text is not printed", "")


def _prompts(renderer: Renderer) -> Iterator[Finding]:
    prompts = renderer.prompts(has_tools=False)
    with_tools = renderer.prompts(has_tools=True)
    for role in ("user", "tool", "assistant", "system", ""):
        found = (with_tools if role == "tool" else prompts).after.get(role)
        name = f"behind {role}" if role else "before all"
        if found is None:
            yield Finding("prompt", name, "unknown", "the template refuses the question")
        elif not found:
            yield Finding("prompt", name, "unknown", "nothing is printed, yet an answer there has an opener")
        elif not found[0].text:
            yield Finding("prompt", name, "none", "an answer opens with its own text")
        else:
            how = "the same without a generation prompt"
            if found[0].is_asked_for:
                how = "the difference to the text without a generation prompt"
            yield Finding("prompt", name, _shown(found[0].text), how)
    for role, opener in prompts.openers.items():
        yield Finding("header", role, _shown(opener), "what precedes its text in a conversation")


def _stops(renderer: Renderer, rendered: dict[str, RenderedTokens]) -> Iterator[Finding]:
    for name in ("two turns", "call and result"):
        tokens = rendered.get(name)
        if tokens is None:
            continue
        answer = next(i for i, message in enumerate(tokens.messages) if message.role == "assistant")
        facts = tokens.messages[answer]
        if facts.unknown_reason is not None:
            yield Finding("stop", name, "unknown", facts.unknown_reason)
            continue
        sampled = np.append(tokens.sampled_mask == 1, False)
        first = int(sampled.argmax())
        last = first + int(sampled[first:].argmin()) - 1
        token_id = int(tokens.token_ids[last])
        if "no_stop_rendered" in facts.flags:
            yield Finding("stop", name, "none", "the template prints no control token behind the answer")
            continue
        how = "ends a turn by the tokenizer or the generation config"
        if token_id not in renderer.tokenizer.eos_ids:
            how = "the last control token; no id that ends a turn is printed"
        elif tokens.message_indices[last] != answer:
            how += ", and opens the next message"
        yield Finding("stop", name, _shown(renderer.tokenizer.hf.decode([token_id])), how)


def _drops(rendered: dict[str, RenderedTokens]) -> Iterator[Finding]:
    for name, tokens in rendered.items():
        dropped = [
            f"{facts.n_dropped_characters} of message {i} ({facts.role})"
            for i, facts in enumerate(tokens.messages)
            if facts.n_dropped_characters
        ]
        if dropped:
            yield Finding("drops", name, "characters: " + ", ".join(dropped), "")


def _append_only(renderer: Renderer, rendered: dict[str, RenderedTokens]) -> Iterator[Finding]:
    """Whether a longer conversation begins with the tokens of a shorter one."""
    for name in ("two turns", "reasoning in two turns", "calls in two turns"):
        if name not in rendered:
            continue
        conversation, whole = shapes()[name], rendered[name].token_ids
        finding, how = "yes", "the tokens of the shorter conversations stay as they are"
        for n in range(1, len(conversation.messages)):
            try:
                shorter = renderer.render(
                    Conversation(conversation.messages[:n], conversation.tools)
                ).token_ids
            except ConversationError:
                continue
            if not np.array_equal(shorter, whole[: len(shorter)]):
                finding, how = "no", f"the tokens of the first {n} messages change when more follow"
                break
        yield Finding("append-only", name, finding, how)


def _tags(renderer: Renderer, rendered: dict[str, RenderedTokens]) -> Iterator[Finding]:
    if not has_generation_tags(renderer.tokenizer.chat_template(has_tools=False)):
        yield Finding("tags", "generation", "none", "the rule decides what is sampled")
        return
    policies: dict[str, set[str]] = {}
    for name, tokens in rendered.items():
        for flag in (flag for facts in tokens.messages for flag in facts.flags if flag in set(Policy)):
            policies.setdefault(str(flag), set()).add(name)
    if not policies:
        yield Finding("tags", "generation", "as the rule", "on all shapes")
    for policy, names in sorted(policies.items()):
        yield Finding("tags", "generation", policy, "on " + ", ".join(sorted(names)))


def _shapes(rendered: dict[str, RenderedTokens], refused: dict[str, str]) -> Iterator[Finding]:
    for name in shapes():
        if name in refused:
            yield Finding("shape", name, "refused", refused[name])
            continue
        tokens = rendered[name]
        n_sampled = int((tokens.sampled_mask == 1).sum())
        unknown = [
            f"message {i}: {facts.unknown_reason}"
            for i, facts in enumerate(tokens.messages)
            if facts.unknown_reason is not None
        ]
        flags = sorted({str(flag) for facts in tokens.messages for flag in facts.flags})
        yield Finding(
            "shape",
            name,
            f"{len(tokens)} tokens, {n_sampled} sampled" + (", some unknown" if unknown else ""),
            "; ".join([*unknown, *flags]),
        )


def _shown(text: Any) -> str:  # Any: what the tokenizer decodes
    return repr(str(text))[1:-1]
