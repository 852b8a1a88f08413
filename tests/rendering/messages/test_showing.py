"""Messages that templates refuse, or leave out, are shown as servers show them, and the text is transformers'."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pytest

from tests.rendering.families import Families
from tests.rendering.mistral import mistral_templates
from tokscore.dataset.choices import MessageForm
from tokscore.dataset.errors import ConversationError
from tokscore.dataset.tokens import MessageFlag, RenderedTokens
from tokscore.rendering import Conversation, Renderer
from tokscore.rendering.attribution.renderer import Verify
from tokscore.rendering.templates.render import TEMPLATE_FAILURES

Message = dict[str, Any]
USER = {"role": "user", "content": "Is there rain in Oslo?"}
# Written as the templates of models are, each for one kind.
WRITTEN = {
    "qwen_sums": "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}",
    "qwen_types": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c['type'] + ':' + c['function']['name'] }}{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}",
    "qwen_strict": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "{% if c.type != 'function' %}{{ raise_exception('unknown type of call') }}{% endif %}"
    "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}",
    "qwen_one_tool": "{% if tools is not none %}{{ tools[0].function.name }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "qwen_some_tools": "{% if tools is defined and tools is not none and tools | length == 0 %}"
    "{{ raise_exception('no tools') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "qwen_first_tool": "{% if tools is not none %}{{ '# ' + (tools | first).function.name }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
}


def call(**more: object) -> Message:
    function = {"name": "weather", "arguments": {"city": "Oslo", "days": 2, **more}}
    return {"id": "call00001", "type": "function", "function": function}


def called(content: str | None, made: Message) -> list[Message]:
    return [
        USER,
        {"role": "assistant", "content": content, "tool_calls": [made]},
        {"role": "tool", "name": "weather", "tool_call_id": str(made["id"]), "content": "drizzle"},
        {"role": "assistant", "content": "Some drizzle."},
    ]


def parts(role: str) -> list[Message]:
    split = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    return {
        "system": [{"role": "system", "content": split}, USER],
        "user": [{"role": "user", "content": split}],
        "assistant": [USER, {"role": "assistant", "content": split}],
    }[role]


def with_text(made: Message) -> Message:
    return {**made, "function": {**made["function"], "arguments": json.dumps(made["function"]["arguments"])}}


class Case(NamedTuple):
    """Messages of one kind, what they are shown as, and the templates that need it."""

    flag: MessageFlag
    given: list[Message]
    shown: list[Message]
    templates: tuple[str, ...]


OLD = [
    USER,
    {
        "role": "assistant",
        "content": "",
        "function_call": {"name": "weather", "arguments": '{"city": "Oslo"}'},
    },
    {"role": "function", "name": "weather", "content": "drizzle"},
    {"role": "assistant", "content": "Some drizzle."},
]
NEW_CALL = {"id": "call00001", "type": "function", "function": OLD[1]["function_call"]}
NEW = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [NEW_CALL]},
    {"role": "tool", "name": "weather", "content": "drizzle", "tool_call_id": "call00001"},
    OLD[3],
]
UNTYPED = {key: value for key, value in call().items() if key != "type"}
NINE = called("", {**call(), "id": "1b2c3d4e5"})
CASES = [
    Case(
        MessageFlag.ARGUMENTS,
        called("", with_text(call())),
        called("", call()),
        ("glm4moe", "qwen3_5_think", "lfm2_2_5", "nemotron_3_nano"),
    ),
    Case(
        MessageFlag.EMPTY_CONTENT,
        called(None, with_text(call())),
        called("", with_text(call())),
        ("own_qwen3", "deepseekv3", "qwen_sums"),
    ),
    Case(
        MessageFlag.CALL_FORM,
        called("", with_text(UNTYPED)),
        called("", {"id": "call00001", "type": "function", "function": with_text(call())["function"]}),
        ("deepseekv3", "qwen_types", "qwen_strict"),
    ),
    Case(
        MessageFlag.CALL_IDS,
        called("", {**call(), "id": "call_a1b2c3d4e5"}),
        NINE,
        ("mistral_v3", "mistral_v7", "mistral_v11"),
    ),
    Case(MessageFlag.FUNCTION_CALL, OLD, NEW, ("qwen3", "llama3_1", "gemma4")),
    Case(
        MessageFlag.DEVELOPER,
        [{"role": "developer", "content": "Be brief."}, USER],
        [{"role": "system", "content": "Be brief."}, USER],
        ("qwen3", "glm4moe", "gemma3", "deepseekv3", "qwen3_5_think"),
    ),
    Case(
        MessageFlag.NO_CALLS,
        [USER, {"role": "assistant", "content": "No.", "tool_calls": []}],
        [USER, {"role": "assistant", "content": "No."}],
        ("llama3_1", "llama3_2", "gptoss", "deepseekv3"),
    ),
    *(
        Case(
            MessageFlag.PARTS,
            parts(role),
            [
                {**each, "content": "Be brief.\nBe kind."} if isinstance(each["content"], list) else each
                for each in parts(role)
            ],
            templates,
        )
        for role, templates in {
            "system": ("qwen2_5", "phi3", "nemotron_3_nano", "qwen3"),
            "user": ("qwen2_5", "phi3", "deepseekv3", "qwen3"),
            "assistant": ("qwen2_5", "phi3", "gptoss", "qwen3"),
        }.items()
    ),
]


@pytest.fixture(scope="module")
def rendering(families: Families, assets: Path) -> Callable[..., Renderer]:
    """A renderer for a fetched template, one that comes with a tokenizer (`own_…`) or one of WRITTEN."""
    mistral = mistral_templates(assets / "mistral")

    def make(template: str, **settings: Any) -> Renderer:
        if template.startswith("own_"):
            base = template.removeprefix("own_")
            return families.renderer(base, source=families.own_template(base), **settings)
        source = WRITTEN.get(template) or mistral.get(template)
        return families.renderer(template, source=source, **settings)

    return make


def text_by_transformers(renderer: Renderer, messages: list[Message]) -> str:
    text = renderer.tokenizer.hf.apply_chat_template(
        messages,
        chat_template=renderer.tokenizer.template,
        tokenize=False,
        **renderer.settings.template_kwargs,
    )
    assert isinstance(text, str)
    return text


def flags(tokens: RenderedTokens) -> set[str]:
    return {flag for message in tokens.messages for flag in message.flags}


@pytest.mark.parametrize(
    ("case", "template"),
    [
        pytest.param(case, name, id=f"{case.flag}-{name}-{i}")
        for i, case in enumerate(CASES)
        for name in case.templates
    ],
)
def test_what_a_template_does_not_take_is_shown_as_servers_do(
    rendering: Callable[..., Renderer], case: Case, template: str
) -> None:
    renderer = rendering(template, verify=Verify.FULL)
    tokens = renderer.render(Conversation(case.given))
    assert tokens.text == text_by_transformers(renderer, case.shown)
    differing = [i for i, (a, b) in enumerate(zip(case.given, case.shown, strict=True)) if a != b]
    assert [i for i, each in enumerate(tokens.messages) if case.flag in each.flags] == differing
    assert tokens.message_roles == tuple(each["role"] for each in case.given)


@pytest.mark.parametrize(
    ("case", "template"),
    [
        pytest.param(case, name, id=f"{case.flag}-{name}-{i}")
        for i, case in enumerate(CASES)
        for name in case.templates
    ],
)
def test_as_is_shows_nothing_otherwise(rendering: Callable[..., Renderer], case: Case, template: str) -> None:
    renderer = rendering(template, verify=Verify.FULL, messages=MessageForm.AS_IS)
    try:
        expected = text_by_transformers(renderer, case.given)
    except (jinja2.TemplateError, *TEMPLATE_FAILURES):
        with pytest.raises(ConversationError) as caught:
            renderer.render(Conversation(case.given))
        assert "`messages='auto'`" in caught.value.hint
        return
    tokens = renderer.render(Conversation(case.given))
    assert tokens.text == expected
    assert case.flag not in flags(tokens)


@pytest.mark.parametrize("template", ["qwen_one_tool", "qwen_some_tools", "qwen_first_tool"])
def test_an_empty_list_of_tools_that_a_template_refuses_is_left_out(
    rendering: Callable[..., Renderer], template: str
) -> None:
    renderer = rendering(template, verify=Verify.FULL)
    printed = renderer.print(Conversation([USER], tools=[]), 0)
    assert printed.rendered.text == text_by_transformers(renderer, [USER])
    assert printed.conversation.status == "empty_tools_left_out"
    with pytest.raises(ConversationError, match="tools"):
        rendering(template, messages=MessageForm.AS_IS).render(Conversation([USER], tools=[]))


def test_messages_that_a_template_takes_are_shown_as_they_are(rendering: Callable[..., Renderer]) -> None:
    given = called("", with_text(call()))
    tokens = rendering("qwen3").render(Conversation(given))
    assert '"arguments": {"city": "Oslo", "days": 2}' in str(tokens.text)
    assert MessageFlag.ARGUMENTS not in flags(tokens)


@pytest.mark.parametrize("is_served", [True, False])
def test_records_of_servers_are_shown_as_servers_do(
    rendering: Callable[..., Renderer], is_served: bool
) -> None:
    given = called("", {**call(), "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}})
    tokens = rendering("qwen3").render(Conversation(given, is_served=is_served))
    assert ('{"city": "Oslo"}' in str(tokens.text)) is is_served
    assert (MessageFlag.ARGUMENTS in flags(tokens)) is is_served


def test_the_setting_server_always_shows_them_so(rendering: Callable[..., Renderer]) -> None:
    given = called(None, {**call(), "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}})
    tokens = rendering("qwen3", messages=MessageForm.SERVER).render(Conversation(given))
    assert tokens.messages[1].flags[:2] == (MessageFlag.ARGUMENTS, MessageFlag.EMPTY_CONTENT)
    assert '{"city": "Oslo"}' in str(tokens.text)


def test_a_template_that_takes_text_alone_gets_text_though_servers_would_parse_it(
    rendering: Callable[..., Renderer],
) -> None:
    given = called(None, with_text(call()))
    tokens = rendering("deepseekv3").render(Conversation(given, is_served=True))
    assert '{"city": "Oslo", "days": 2}' in str(tokens.text)
    assert flags(tokens) & {MessageFlag.ARGUMENTS, MessageFlag.EMPTY_CONTENT} == {MessageFlag.EMPTY_CONTENT}


@pytest.mark.parametrize("template", ["glm4moe", "qwen3_5_think", "lfm2_2_5"])
def test_characters_of_a_parsed_argument_are_of_its_call(
    rendering: Callable[..., Renderer], template: str
) -> None:
    printed = rendering(template).print(Conversation(called("", with_text(call(note="läuft 🎉")))), 0)
    position, found = 0, {}
    for run in printed.rendered.runs:
        if run.origin is not None and run.start >= 0:
            text = printed.rendered.text[position : position + run.length]
            found.setdefault(run.origin.path, []).append(text)
        position += run.length
    base = ("messages", 1, "tool_calls", 0, "function", "arguments")
    assert found[(*base, "city")] == ["Oslo"]
    assert "".join(found[(*base, "note")]) in {"läuft 🎉", "läuft \\ud83c\\udf89"}


@pytest.mark.parametrize("template", ["own_qwen3", "own_deepseek_v3", "deepseekv3", "llama3_1", "glm4moe"])
def test_published_trajectories_render_whole(rendering: Callable[..., Renderer], template: str) -> None:
    lines = (Path(__file__).parents[2] / "data" / "tau_airline_sample.jsonl").read_text().splitlines()
    for line in lines:
        messages = json.loads(line)["messages"]
        assert any(message.get("tool_calls") and message["content"] is None for message in messages)
        tokens = rendering(template, verify=Verify.FULL).render(Conversation(messages))
        printed = {message for message in tokens.message_indices.tolist() if message >= 0}
        assert printed >= {i for i, each in enumerate(messages) if each["content"]}
