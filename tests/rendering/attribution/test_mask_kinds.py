"""Kinds of template on which owners or sampled tokens are easily wrong, three small ones of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rendering.samples import template_renderer
from tests.rendering.shapes import assistant, system, tool, user
from tokscore.dataset.tokens import MessageFlag
from tokscore.rendering import ChatTokenizer, Conversation, RenderedTokens, Renderer
from tokscore.rendering.attribution.headers import UNCONFIRMED

CHAT = [user("How far?"), assistant("Nine miles."), user("And back?"), assistant("Nine more.")]
ONE = CHAT[:2]
GREETING = [assistant("Welcome!"), user("Hi."), assistant("Yes?")]
CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": {}}}
AGENT = [user("Time?"), assistant("", tool_calls=[CALL]), tool("noon", "c1"), assistant("Noon.")]
FOR, END, ASK = "{%- for m in messages %}", "{%- endfor %}", "{%- if add_generation_prompt %}"

# The prompt and the opener of a recorded answer are not spelled alike.
SPELLED_OTHERWISE = [
    FOR + "{%- if m.role == 'user' %}{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}"
    "{%- else %}{{- ' <|im_start|>assistant\n' + m.content + '<|im_end|>\n' }}{%- endif %}" + END
    + "{%- if add_generation_prompt and messages[-1].role == 'user' %}{{- '  <|im_start|>assistant\n' }}{%- endif %}",
    FOR + "{%- if m.role == 'user' %}{{- '<|im_start|>user\n' + m.content + '<|im_end|>' }}"
    "{%- else %}{{- '\n<|im_start|>assistant\n' + m.content + '<|im_end|>' }}{%- endif %}" + END
    + "{%- if add_generation_prompt and messages[-1].role == 'user' %}{{- '\n\n\n<|im_start|>assistant\n' }}{%- endif %}",
    FOR + "{%- if m.role == 'user' %}{{- 'USER: ' + m.content }}"
    "{%- else %}{{- ' ASSISTANT:\n' + m.content + '<|im_end|>' }}{%- endif %}" + END
    + "{%- if add_generation_prompt and messages[-1].role == 'user' %}{{- '\nASSISTANT:\n' }}{%- endif %}",
]  # fmt: skip

# The loop over the messages prints the prompt, and its newline merges with the end of the question.
IN_LOOP_NEWLINE = [
    FOR + "{%- if m.role == 'user' %}{{- '<|im_start|>user\n' + m.content }}"
    "{%- else %}{{- '\n<|im_start|>assistant\n' + m.content + '<|im_end|>' }}{%- endif %}"
    "{%- if loop.last and add_generation_prompt and m.role != 'assistant' %}{{- '\n<|im_start|>assistant\n' }}{%- endif %}" + END,
    FOR + "{{- '<|im_start|>' + m.content if m.role == 'user' else '\n\n<|im_start|>\n' + m.content + '<|im_end|>' }}"
    "{%- if loop.last and add_generation_prompt %}{{- '\n\n<|im_start|>\n' }}{%- endif %}" + END,
    FOR + "{%- if m.role == 'user' %}{{- '### Question\n' + m.content }}"
    "{%- else %}{{- '\n### Response\n' + m.content + '<|im_end|>' }}{%- endif %}"
    "{%- if m == messages[-1] and add_generation_prompt and m.role == 'user' %}{{- '\n### Response\n' }}{%- endif %}" + END,
]  # fmt: skip

# The loop prints the prompt.
IN_LOOP = [
    FOR + "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- if loop.last and add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}" + END,
    FOR + "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- if loop.nextitem is undefined and add_generation_prompt %}{{- '<|im_start|>' + 'assistant\n' }}{%- endif %}" + END,
    FOR + "{%- set text = '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' %}"
    "{%- if loop.last and add_generation_prompt and m.role != 'assistant' %}{%- set text = text + '<|im_start|>assistant\n' %}{%- endif %}"
    "{{- text }}" + END,
]  # fmt: skip

# The text is collected in a namespace and printed at the end.
IN_NAMESPACE = [
    "{%- set ns = namespace(out='') %}" + FOR
    + "{%- if m.role == 'user' %}{%- set ns.out = ns.out ~ 'human: ' ~ m.content ~ '<|im_end|>' %}"
    "{%- else %}{%- set ns.out = ns.out ~ 'assistant: ' ~ m.content ~ '\n\n<|im_end|>' %}{%- endif %}" + END
    + "{%- if add_generation_prompt and messages[-1].role != 'assistant' %}{%- set ns.out = ns.out ~ 'assistant:' %}{%- endif %}"
    "{{- ns.out }}",
    "{%- set ns = namespace(parts=[]) %}" + FOR
    + "{%- set ns.parts = ns.parts + [m.role + ': ' + m.content + ('\n\n' if m.role == 'assistant' else '') + '<|im_end|>'] %}" + END
    + ASK + "{%- set ns.parts = ns.parts + ['assistant:'] %}{%- endif %}{{- ns.parts | join }}",
    "{%- set ns = namespace(text='<|endoftext|>Be nice.<|im_end|>') %}{%- for i in range(messages | length) %}"
    "{%- set m = messages[i] %}{%- set ns.text = ns.text + m.role + ': ' %}{%- set ns.text = ns.text + m.content %}"
    "{%- if m.role == 'assistant' %}{%- set ns.text = ns.text + '\n\n' %}{%- endif %}"
    "{%- set ns.text = ns.text + '<|im_end|>' %}" + END
    + ASK + "{%- set ns.text = ns.text + 'assistant:' %}{%- endif %}{{- ns.text }}",
]  # fmt: skip

_CALLS = (
    "{{- '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{%- for c in m.tool_calls or [] %}{{- '<tool_call>' + c.function.name + '</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}"
)
_PROMPT = ASK + "{{- '<|im_start|>assistant\n' }}{%- endif %}"

# The header of a tool result is made from the call before it.
HEADER_FROM_CALL = [
    FOR + "{%- if m.role == 'tool' %}"
    "{%- for c in messages[loop.index0 - 1].tool_calls %}{%- if c.id == m.tool_call_id %}{{- '<|im_start|>tool ' + c.function.name + '\n' }}{%- endif %}{%- endfor %}"
    "{{- m.content + '<|im_end|>\n' }}{%- else %}" + _CALLS + "{%- endif %}" + END + _PROMPT,
    FOR + "{%- if m.role == 'tool' %}"
    "{{- '<|im_start|>tool\n<' + messages[loop.index0 - 1].tool_calls[0].function.name + '>' }}"
    "{{- m.content + '<|im_end|>\n' }}{%- else %}" + _CALLS + "{%- endif %}" + END + _PROMPT,
    "{%- set ns = namespace(name='') %}" + FOR + "{%- if m.role == 'tool' %}"
    "{{- '<|im_start|>tool\n{}:'.format(ns.name) }}{{- m.content + '<|im_end|>\n' }}{%- else %}" + _CALLS
    + "{%- for c in m.tool_calls or [] %}{%- set ns.name = c.function.name %}{%- endfor %}{%- endif %}" + END + _PROMPT,
]  # fmt: skip

# A loop over the calls of the message before prints the tool message.
INSIDE_CALL_LOOP = [
    FOR + "{%- if m.role == 'tool' %}"
    "{%- for c in messages[loop.index0 - 1].tool_calls %}{%- if c.id == m.tool_call_id %}"
    "{{- '<|im_start|>tool ' + c.function.name + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- else %}" + _CALLS + "{%- endif %}" + END + _PROMPT,
    FOR + "{%- if m.role == 'tool' %}"
    "{%- for c in messages[loop.index0 - 1].tool_calls %}{{- '<|im_start|>tool\n' }}{{- m.content }}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- else %}" + _CALLS + "{%- endif %}" + END + _PROMPT,
    "{%- macro shown(text) %}{{- '<|im_start|>tool\n' }}{{- text }}{{- '<|im_end|>\n' }}{%- endmacro %}"
    + FOR + "{%- if m.role == 'tool' %}"
    "{%- for c in (messages[loop.index0 - 1].tool_calls | selectattr('id', 'equalto', m.tool_call_id)) %}{{- shown(m.content) }}{%- endfor %}"
    "{%- else %}" + _CALLS + "{%- endif %}" + END + _PROMPT,
]  # fmt: skip

# A loop over numbers.
OVER_RANGE = [
    "{%- for i in range(messages | length) %}{%- set m = messages[i] %}"
    "{%- if m.role == 'user' %}{{- '<|im_start|>user: ' }}{%- else %}{{- '<|im_start|>assistant: ' }}{%- endif %}"
    "{{- m.content }}{{- '<|im_end|>' }}" + END + ASK + "{{- '<|im_start|>assistant: ' }}{%- endif %}",
    "{%- for i in range(messages | length) %}{{- '<|im_start|>' }}{{- 'user: ' if messages[i].role == 'user' else 'assistant: ' }}"
    "{{- messages[i].content }}{{- '<|im_end|>' }}" + END + ASK + "{{- '<|im_start|>assistant: ' }}{%- endif %}",
    "{%- set turns = messages[:] %}{%- for i in range(0, turns | length) %}{%- set before = turns[i - 1] %}{%- set m = turns[i] %}"
    "{{- '<|im_start|>' }}{{- 'user: ' if m.role == 'user' else 'assistant: ' }}{%- if m.content %}{{- m.content }}{%- endif %}"
    "{{- '<|im_end|>' }}" + END + ASK + "{{- '<|im_start|>assistant: ' }}{%- endif %}",
]  # fmt: skip

# A greeting has no header of its own.
GREETING_FIRST = [
    "{{- '<|endoftext|>' }}{%- set ns = namespace(after_user=false) %}" + FOR
    + "{%- if m.role == 'user' %}{%- set ns.after_user = true %}{{- 'User: ' + m.content + '\n' }}"
    "{%- else %}{%- if ns.after_user %}{{- 'Assistant:\n' }}{%- endif %}{%- set ns.after_user = false %}{{- m.content + '<|im_end|>' }}{%- endif %}" + END
    + "{%- if add_generation_prompt and ns.after_user %}{{- 'Assistant:\n' }}{%- endif %}",
    "{{- '<|endoftext|>Be kind.\n' }}" + FOR
    + "{{- '<|im_start|>' + m.content + '\n' if m.role == 'user' else m.content + '<|im_end|>' }}" + END,
    "{{- '<|endoftext|>' }}" + FOR
    + "{%- if m.role == 'user' %}{{- '[' + m.content + ']\n' }}{%- else %}{{- m.content + '<|im_end|>' }}{%- endif %}" + END,
]  # fmt: skip

NOON = ["<tool_call>clock</tool_call><|im_end|>", "Noon.<|im_end|>"]
CASES: dict[str, tuple[list[str], list[dict[str, Any]], list[str]]] = {
    "prompt spelled otherwise": (SPELLED_OTHERWISE, CHAT, ["Nine miles.<|im_end|>", "Nine more.<|im_end|>"]),
    "prompt in the loop, newline": (IN_LOOP_NEWLINE, ONE, ["Nine miles.<|im_end|>"]),
    "prompt in the loop": (IN_LOOP, ONE, ["Nine miles.<|im_end|>"]),
    "text in a namespace": (IN_NAMESPACE, ONE, [" Nine miles.\n\n<|im_end|>"]),
    "tool header from the call": (HEADER_FROM_CALL, AGENT, NOON),
    "tool message inside a loop over calls": (INSIDE_CALL_LOOP, AGENT, NOON),
    "loop over a range": (OVER_RANGE, CHAT, [" miles.<|im_end|>", " more.<|im_end|>"]),
    "greeting first": (GREETING_FIRST, GREETING, ["Welcome!<|im_end|>", "Yes?<|im_end|>"]),
}
ALL = [(kind, k) for kind in CASES for k in range(3)]


def render(
    qwen3: Path, template: str, messages: list[dict[str, Any]], *, ask: bool = False
) -> tuple[Renderer, RenderedTokens]:
    renderer = template_renderer(qwen3, template).with_generation_prompt(ask)
    return renderer, renderer.render(Conversation(messages))


def text_of(renderer: Renderer, tokens: RenderedTokens, chosen: np.ndarray[Any, Any]) -> str:
    return str(renderer.tokenizer.hf.decode(tokens.token_ids[chosen]))


@pytest.mark.parametrize(("kind", "k"), ALL)
@pytest.mark.parametrize("ask", [False, True])
def test_exactly_what_a_model_wrote_is_sampled(qwen3: Path, kind: str, k: int, ask: bool) -> None:
    templates, messages, expected = CASES[kind]
    renderer, tokens = render(qwen3, templates[k], messages, ask=ask)
    assert [message.unknown_reason for message in tokens.messages] == [None] * len(messages)
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    sampled = tokens.sampled_mask == 1
    assert [text_of(renderer, tokens, sampled & (tokens.message_indices == i)) for i in answers] == expected
    assert not sampled[~np.isin(tokens.message_indices, answers)].any()


@pytest.mark.parametrize(("kind", "k"), ALL)
def test_the_generation_prompt_belongs_to_no_message(qwen3: Path, kind: str, k: int) -> None:
    templates, messages, _ = CASES[kind]
    asked = messages if messages[-1]["role"] == "user" else messages[:-1]
    _, without = render(qwen3, templates[k], asked)
    _, prompted = render(qwen3, templates[k], asked, ask=True)
    assert without.text is not None
    assert prompted.text is not None
    assert prompted.text.startswith(without.text)
    behind = prompted.char_starts >= len(without.text)
    assert set(prompted.message_indices[behind].tolist()) <= {-1}


@pytest.mark.parametrize("k", range(3))
@pytest.mark.parametrize("kind", ["tool header from the call", "tool message inside a loop over calls"])
def test_a_tool_message_owns_its_header(qwen3: Path, kind: str, k: int) -> None:
    templates, messages, _ = CASES[kind]
    renderer, tokens = render(qwen3, templates[k], messages)
    owned = text_of(renderer, tokens, tokens.message_indices == 2)
    assert owned.startswith("<|im_start|>tool")
    assert owned.endswith("noon<|im_end|>\n")
    assert set(tokens.message_indices[tokens.message_indices.tolist().index(2) :].tolist()) == {2, 3}
    said = text_of(renderer, tokens, tokens.is_content & (tokens.message_indices == 2))
    assert "clock" not in said or "tool clock" in said  # one token may hold the space and the name


@pytest.mark.parametrize("k", range(3))
def test_scaffold_collected_in_a_namespace_belongs_to_its_message(qwen3: Path, k: int) -> None:
    renderer, tokens = render(qwen3, IN_NAMESPACE[k], ONE)
    owned = [text_of(renderer, tokens, tokens.message_indices == i) for i in range(2)]
    assert owned[0] in ("human: How far?<|im_end|>", "user: How far?<|im_end|>")
    assert owned[1] == "assistant: Nine miles.\n\n<|im_end|>"
    assert text_of(renderer, tokens, tokens.message_indices == -1) in ("", "<|endoftext|>Be nice.<|im_end|>")


PREAMBLES = [
    FOR + "{%- if loop.first and m.role != 'system' %}{{- '<|im_start|>system\nBe nice.<|im_end|>\n' }}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}" + END + _PROMPT,
    FOR + "{%- set text = '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' %}"
    "{%- if loop.first %}{%- set text = '<|endoftext|>' + text %}{%- endif %}{{- text }}" + END + _PROMPT,
    FOR + "{%- if loop.index0 == 0 %}{{- '<|im_start|>tools\nnone<|im_end|>\n' }}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' }}{{- m.content }}{{- '<|im_end|>\n' }}" + END + _PROMPT,
]  # fmt: skip


@pytest.mark.parametrize("messages", [CHAT, GREETING])
@pytest.mark.parametrize("k", range(3))
def test_what_the_loop_prints_before_the_first_message_belongs_to_none(
    qwen3: Path, k: int, messages: list[dict[str, Any]]
) -> None:
    renderer, tokens = render(qwen3, PREAMBLES[k], messages)
    role = messages[0]["role"]
    expected = f"<|im_start|>{role}\n{messages[0]['content']}<|im_end|>\n"
    assert text_of(renderer, tokens, tokens.message_indices == 0) == expected
    assert tokens.message_indices[0] == -1
    assert not (tokens.sampled_mask[tokens.message_indices == -1]).any()


SECOND_HEADER = [
    FOR + "{%- if m.role == 'tool' %}{{- '<|im_start|>tool\n' + m.content + '<|im_end|>\n' }}{%- else %}"
    "{%- for c in m.tool_calls or [] %}{{- '<|im_start|>assistant\n' + c.function.name + '<|im_end|>\n' }}{%- endfor %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}" + END + _PROMPT,
    FOR + "{{- '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- for c in m.tool_calls or [] %}{{- '\n<|im_start|>assistant\n' + c.function.name }}{%- endfor %}{{- '<|im_end|>\n' }}" + END + _PROMPT,
    FOR + "{{- 'Human: ' + m.content if m.role != 'assistant' else '\nAI: ' + m.content + ''.join([]) }}"
    "{%- for c in m.tool_calls or [] %}{{- '\nAI: ' + c.function.name }}{%- endfor %}{{- '<|im_end|>' }}" + END
    + ASK + "{{- '\nAI:' }}{%- endif %}",
]  # fmt: skip


@pytest.mark.parametrize("k", range(3))
def test_a_turn_that_the_template_opens_twice_is_unknown(qwen3: Path, k: int) -> None:
    messages = [AGENT[0], {**AGENT[1], "content": "Wait."}, *AGENT[2:]]
    _, tokens = render(qwen3, SECOND_HEADER[k], messages)
    assert tokens.messages[1].unknown_reason == UNCONFIRMED
    assert MessageFlag.UNCONFIRMED in tokens.messages[1].flags
    assert set(tokens.sampled_mask[tokens.message_indices == 1].tolist()) == {-1}
    assert (tokens.sampled_mask[tokens.message_indices == 3] == 1).any()


def test_an_opener_that_no_prompt_supplies_is_not_taken_for_an_answer(qwen3: Path) -> None:
    template = (
        FOR
        + "{{- ('<|im_start|>ai\n' if m.role == 'assistant' else '<|im_start|>human\n') + m.content + '<|im_end|>\n' }}"
        + END
    )
    template += ASK + "{{- '<|im_start|>bot\n' }}{%- endif %}"
    _, tokens = render(qwen3, template, [system("Be nice."), *CHAT])
    reasons = {message.unknown_reason for message in tokens.messages if message.role == "assistant"}
    assert reasons == {"its turn opens with template text that no generation prompt supplies"}


# The end of a turn is printed only where something follows; a prompt that is asked for ends the turn before it too.
ENDS_WHERE_FOLLOWED = [
    FOR + "{{- '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- if (loop.last and add_generation_prompt) or not loop.last %}{{- '<|im_end|>\n' }}{%- endif %}" + END
    + "{%- if add_generation_prompt and messages[-1].role != 'assistant' %}{{- '<|im_start|>assistant\n' }}{%- endif %}",
    FOR + "{{- m.role + ':\n' + m.content }}{%- if add_generation_prompt or not loop.last %}{{- '<|im_end|>' }}{%- endif %}" + END
    + ASK + "{{- 'assistant:\n' }}{%- endif %}",
    FOR + "{%- if m.role == 'user' %}{{- '[' + m.content + ']' }}{%- else %}{{- '\nAI:\n' + m.content }}{%- endif %}"
    "{%- if not loop.last or (add_generation_prompt and m.role == 'assistant') %}{{- '<|im_end|>' }}{%- endif %}" + END
    + "{%- if add_generation_prompt and messages[-1].role == 'user' %}{{- '<|im_end|>\nAI:\n' }}{%- endif %}",
]  # fmt: skip
# Nothing ends a turn, and text that no answer at the end of a conversation has separates it from what follows.
SEPARATED = [
    FOR + "{{- m.role + ':\n' + m.content }}{%- if (loop.last and add_generation_prompt) or not loop.last %}{{- '\n' }}{%- endif %}" + END
    + "{%- if add_generation_prompt and messages[-1].role != 'assistant' %}{{- 'assistant:\n' }}{%- endif %}",
    FOR + "{%- if m.role == 'user' %}{{- '### Question:\n' + m.content + '\n' }}{%- else %}{{- '### Answer:\n' + m.content }}"
    "{%- if not loop.last %}{{- '\n\n----\n' }}{%- endif %}{%- endif %}" + END + ASK + "{{- '### Answer:\n' }}{%- endif %}",
    FOR + "{{- '\n<|im_start|>' + m.role + '\n' }}{{- m.content }}{%- if loop.nextitem is defined %}{{- '\n\n\n' }}{%- endif %}" + END
    + ASK + "{{- '\n<|im_start|>assistant\n' }}{%- endif %}",
]  # fmt: skip


@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize(
    ("template", "stop"),
    [*((each, "<|im_end|>") for each in ENDS_WHERE_FOLLOWED), *((each, "") for each in SEPARATED)],
)
def test_what_is_printed_only_where_a_message_follows_is_sampled_only_if_it_is_a_stop(
    qwen3: Path, template: str, stop: str, ask: bool
) -> None:
    messages = [
        user("How far?"),
        assistant("Nine miles"),
        user("And back?"),
        assistant("Nine more"),
        user("Sure?"),
    ]
    renderer, tokens = render(qwen3, template, messages, ask=ask)
    sampled = tokens.sampled_mask == 1
    found = [text_of(renderer, tokens, sampled & (tokens.message_indices == i)) for i in (1, 3)]
    assert found == ["Nine miles" + stop, "Nine more" + stop]
    assert text_of(renderer, tokens, sampled) == "".join(found)


_CLOSED = "{{- m.content + '<|im_end|>\n' }}"
# The header names who speaks, or counts the turns; the prompt says otherwise.
OPENED_BY_NAME_OR_NUMBER = [
    FOR + "{{- '<|im_start|>' + m.role + ' ' + (m.name or 'nobody') + '<|im_sep|>' }}" + _CLOSED + END
    + ASK + "{{- '<|im_start|>assistant nobody<|im_sep|>' }}{%- endif %}",
    FOR + "{{- '<|im_start|>' ~ m.role ~ ' #' ~ loop.index ~ '<|im_sep|>\n' }}" + _CLOSED + END
    + ASK + "{{- '<|im_start|>assistant #' ~ (messages | length + 1) ~ '<|im_sep|>\n' }}{%- endif %}",
    "{%- set ns = namespace(n=0) %}" + FOR + "{%- if m.role == 'user' %}{%- set ns.n = ns.n + 1 %}{{- '<|im_start|>' }}"
    "{%- else %}{{- '<|im_sep|>' ~ (m.name or 'bot') ~ ' ' ~ ns.n ~ '<|im_sep|>' }}{%- endif %}" + _CLOSED + END
    + ASK + "{{- '<|im_sep|>bot ' ~ ns.n ~ '<|im_sep|>' }}{%- endif %}",
]  # fmt: skip
# The same without a control token behind it.
OPENED_BY_WORDS = [
    FOR + "{{- (m.role | capitalize) + (' (' + m.name + ')' if m.name else '') + ': ' }}" + _CLOSED + END
    + ASK + "{{- 'Assistant: ' }}{%- endif %}",
    FOR + "{{- ('Answer ' if m.role == 'assistant' else 'Question ') ~ loop.index ~ ': ' }}" + _CLOSED + END
    + ASK + "{{- 'Answer ' ~ (messages | length + 1) ~ ': ' }}{%- endif %}",
    FOR + "{{- m.role ~ ' no. ' ~ loop.index ~ '\n' }}" + _CLOSED + END
    + ASK + "{{- 'assistant no. ' ~ (messages | length + 1) ~ '\n' }}{%- endif %}",
]  # fmt: skip
NAMED = [CHAT[0], {**CHAT[1], "name": "Ada"}, CHAT[2], {**CHAT[3], "name": "Bob"}]


@pytest.fixture(scope="module")
def separated(qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with one more control token."""
    tokenizer = ChatTokenizer(str(qwen3)).hf
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_sep|>"]})
    folder = tmp_path_factory.mktemp("separated")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("template", OPENED_BY_NAME_OR_NUMBER)
def test_a_header_whose_name_or_number_differs_from_the_prompt_is_not_sampled(
    separated: Path, template: str, ask: bool
) -> None:
    renderer, tokens = render(separated, template, NAMED, ask=ask)
    sampled = tokens.sampled_mask == 1
    found = [text_of(renderer, tokens, sampled & (tokens.message_indices == i)) for i in (1, 3)]
    assert found == ["Nine miles.<|im_end|>", "Nine more.<|im_end|>"]
    assert text_of(renderer, tokens, sampled) == "".join(found)


@pytest.mark.parametrize("template", OPENED_BY_WORDS)
def test_a_header_of_which_no_prompt_tells_the_end_is_unknown(qwen3: Path, template: str) -> None:
    messages = [*NAMED, user("Sure?"), {**assistant("Quite."), "name": "Cy"}]
    renderer, tokens = render(qwen3, template, messages)
    assert tokens.messages[5].unknown_reason == UNCONFIRMED
    sampled = tokens.sampled_mask == 1
    for message, text in ((1, "Nine miles."), (3, "Nine more.")):
        found = text_of(renderer, tokens, sampled & (tokens.message_indices == message))
        assert not found or f"{text}<|im_end|>".endswith(found.lstrip())


# The prompt opens a think block that recorded answers lack; the answer's own white space merges with that of the header.
@pytest.mark.parametrize("prefill", ["<think>\n", "<think>\n\n</think>\n\n", "Sure: "])
def test_a_token_of_header_and_answer_is_not_sampled_though_the_prompt_goes_on(
    qwen3: Path, prefill: str
) -> None:
    template = FOR + "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}" + END
    template += ASK + "{{- '<|im_start|>assistant\n" + prefill.replace("\n", "\\n") + "' }}{%- endif %}"
    renderer, tokens = render(qwen3, template, [user("How far?"), assistant("\n\nNine miles.")])
    assert text_of(renderer, tokens, tokens.sampled_mask == 1) == "Nine miles.<|im_end|>"
    assert MessageFlag.HEADER_STRADDLED in tokens.messages[1].flags


# Only the last answer has a stop; text takes its place in the others.
@pytest.mark.parametrize("between", ["\n\n", "\n----\n", " \n"])
@pytest.mark.parametrize("ask", [False, True])
def test_what_takes_the_place_of_the_stop_before_a_message_is_not_sampled(
    qwen3: Path, between: str, ask: bool
) -> None:
    template = (
        FOR + "{{- '### ' + m.role + '\n' + m.content }}"
        "{{- '<|im_end|>' if loop.last and m.role == 'assistant' else '"
        + between.replace("\n", "\\n") + "' }}" + END + ASK + "{{- '### assistant\n' }}{%- endif %}"
    )  # fmt: skip
    messages = [user("How far?"), assistant("Nine miles"), user("And back?"), assistant("Nine more")]
    renderer, tokens = render(qwen3, template, messages, ask=ask)
    assert text_of(renderer, tokens, tokens.sampled_mask == 1) == "Nine milesNine more<|im_end|>"
