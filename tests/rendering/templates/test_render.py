from __future__ import annotations

import jinja2
import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.templates.origins import UNTRACKED
from tokscore.rendering.templates.render import (
    TEMPLATE_FAILURES,
    RenderedText,
    has_generation_tags,
    prepare_messages,
    render_template,
)

MESSAGES = [
    {"role": "system", "content": " be brief "},
    {"role": "user", "content": "Hi <b>"},
    {
        "role": "assistant",
        "content": "Yo",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": True}}}],
    },
]


def owners(rendered: RenderedText) -> list[tuple[str, int | None, int | None]]:
    """Text, message it came from, message that wrote it."""
    found, position = [], 0
    for run in rendered.runs:
        message = None if run.origin is None else run.origin.message
        found.append((rendered.text[position : position + run.length], message, run.writer))
        position += run.length
    return found


def test_text_written_in_a_message_loop_knows_the_message() -> None:
    template = "{{ 'B' }}{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    assert owners(render_template(template, MESSAGES))[:4] == [
        ("B", None, None),
        ("[", None, 0),
        ("be brief", 0, 0),
        ("]", None, 0),
    ]


def test_text_of_a_macro_that_is_given_a_block_knows_the_message() -> None:
    template = (
        "{% macro turn(role) %}<{{ role }}>{{ caller() }};{% endmacro %}"
        "{% for m in messages[1:] %}{% call turn('u') %}{{ m.content }}!{% endcall %}{% endfor %}"
    )
    found = owners(render_template(template, MESSAGES))
    assert [(text, message) for text, message, _ in found if message is not None] == [
        ("Hi <b>", 1),
        ("Yo", 2),
    ]
    assert {writer for _, _, writer in found} == {1, 2}
    assert "".join(text for text, _, writer in found if writer == 1) == "<u>Hi <b>!;"


def test_text_of_a_message_keeps_its_origin_where_another_message_prints_it() -> None:
    template = (
        "{% set system = messages[0].content %}{% for m in messages[1:] %}"
        "{% if loop.last %}{{ system }}{% endif %}{{ m.content }};{% endfor %}"
    )
    assert (" be brief ", 0, 2) in owners(render_template(template, MESSAGES))


@pytest.mark.parametrize(
    "template",
    [
        "{% macro show(m) %}<{{ m.content }}>{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}",
        "{% for m in messages %}{% set text %}<{{ m.content }}>{% endset %}{{ text }}{% endfor %}",
        "{% for m in messages %}{% set ns = namespace(t='<') %}{% set ns.t = ns.t + m.content %}{{ ns.t ~ '>' }}{% endfor %}",
        "{% for m in messages %}{{ '<%s>' % m.content }}{% endfor %}",
        "{% for m in messages %}{{ '<{}>'.format(m.content) }}{% endfor %}",
        "{% for m in messages %}{{ '<' ~ m['content'] ~ '>' }}{% endfor %}",
        "{% for m in messages %}{{ ['<', m.content, '>'] | join }}{% endfor %}",
        "{% for m in messages %}{% filter trim %} <{{ m.content }}> {% endfilter %}{% endfor %}",
        "{% for m in messages if m.role != 'x' %}{% if loop.index > 9 %}{% break %}{% endif %}<{{ m.content }}>{% endfor %}",
        "{% for m in messages %}{% generation %}<{{ m.content }}>{% endgeneration %}{% endfor %}",
    ],
)
def test_a_construct_keeps_the_origin_of_content(template: str) -> None:
    rendered = render_template(template, MESSAGES)
    assert rendered.text == "< be brief ><Hi <b>><Yo>"
    content = [(text, message) for text, message, _ in owners(rendered) if message is not None]
    assert content == [(" be brief ", 0), ("Hi <b>", 1), ("Yo", 2)]


def test_generation_blocks_are_marked() -> None:
    template = "{% for m in messages %}{% if m.role == 'assistant' %}H{% generation %}{{ m.content }}E{% endgeneration %}{% endif %}{% endfor %}"
    rendered = render_template(template, MESSAGES)
    assert [(run.length, run.generated) for run in rendered.runs] == [(1, False), (2, True), (1, True)]


def test_truth_values_of_the_input_behave_like_truth_values() -> None:
    template = (
        "{% set a = messages[2].tool_calls[0].function.arguments %}{{ a.a }} {{ a.a is true }} {{ a.a is boolean }} "
        "{{ a.a == true }} {{ a.a is integer }} {{ a | tojson }} {{ a.a | string | lower }} {{ not a.a }}"
    )
    assert render_template(template, MESSAGES).text == 'True True True True False {"a": true} true False'


def test_what_loses_its_origin_is_marked_untracked() -> None:
    rendered = render_template("{{ messages[1].content | urlencode }}", MESSAGES)
    assert [run.origin for run in rendered.runs] == [UNTRACKED]


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages[0].content.format.__globals__ }}",
        "{{ messages[0].content._runs }}",
        "{{ messages[0].content.replace.__func__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{% set ns = namespace(_x=1) %}",
        "{{ messages | attr('__class__') }}",
        "{{ [messages] | map(attribute='__class__') | list | first }}",
        "{{ [messages] | map('attr', '__class__') | first }}",
        "{{ [messages] | selectattr('__class__') | list | first }}",
        "{{ [messages] | groupby('__class__') | first | first }}",
        "{{ [messages] | sum(attribute='__class__.__name__.__len__', start='') }}",
        "{{ [messages] | join(attribute='__class__') }}",
        "{{ messages['__class__'] }}",
        "{{ '{0[0].content.__class__}'.format(messages) }}",
        "{{ '{a.__class__}'.format(a=messages) }}",
        "{{ '{a.__class__}'.format_map({'a': messages}) }}",
        "{{ messages[0].content.format_map.__self__ }}",
        "{{ ('{0.__cla' ~ 'ss__}').format('') }}",
        "{{ '{0.__class__}'.encode().decode().format('') }}",
        "{{ (['{0.__class__}'] | map(attribute='format') | first)('') }}",
        "{{ {'a': '__class__'} | xmlattr | attr('__class__') }}",
        "{{ dict | attr('__init__') }}",
        "{{ dict.mro() }}",
        "{{ dict.__call__.__globals__ }}",
        "{{ dict.fromkeys.__func__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set ns = namespace() %}{{ ns.__dict__ }}",
        "{% set ns = namespace({'__class__': 1}) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{% set ns = namespace() %}{{ ns._Namespace__attrs }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ cycler('a').reset.__func__ }}",
        "{{ joiner.__init__.__globals__ }}",
        "{{ lipsum.__globals__ }}",
        "{{ lipsum.__wrapped__ }}",
        "{{ range.__self__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
        "{{ (messages | map('length')).gi_frame }}",
        "{{ (messages | map('length')).gi_code }}",
        "{{ (messages | map('length')).gi_yieldfrom.gi_frame }}",
        "{{ (messages | batch(1)).gi_frame.f_globals }}",
        "{{ (messages | select).cr_frame }}",
        "{{ (messages | select).ag_frame }}",
        "{{ self.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ loop.__class__ }}{% for m in messages %}{{ loop._iterable }}{% endfor %}",
        "{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
        "{% macro f() %}{% endmacro %}{{ f._environment }}",
        "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
        "{{ caller.__globals__ }}",
        "{{ undefined_name.__class__ }}",
        "{{ undefined_name._undefined_exception }}",
        "{{ messages[0].content.encode().fromhex('00') }}",
        "{{ messages[0].content.encode().join([]) }}",
        "{{ messages.__reduce_ex__(2) }}",
        "{{ messages._origin }}",
        "{{ messages.sort() }}",
        "{{ messages[0].setdefault('x', 1) }}",
        "{{ messages[0].pop('role') }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
        "{% extends '/etc/passwd' %}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(template: str) -> None:
    try:
        text = render_template(template, MESSAGES).text
    except ConversationError:
        return
    assert text == ""


def test_a_template_that_raises_names_its_reason() -> None:
    with pytest.raises(ConversationError, match="refuses the conversation: no bots here"):
        render_template("{{ raise_exception('no bots here') }}", MESSAGES)


TYPES = {
    "text": "hi",
    "long text": "x" * 100_000,
    "number": 3,
    "fraction": 1.5,
    "truth value": True,
    "list": [1],
    "object": {"a": 1},
}


@pytest.mark.parametrize("value", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(
    "expression",
    [
        "v.absent.key", "v()", "none + v", "v < none", "v.__class__.x", "range(v) + 1", "namespace(a=v)()",
        "dict + v", "v.append(1)", "v.islower(2)", "'%d' % v", "v | round('x')", "', '.join([v])",
    ],
)  # fmt: skip
def test_an_error_of_a_template_names_types_as_transformers_does(expression: str, value: object) -> None:
    template = f"{{% for message in messages %}}{{% set v = message.v %}}{{{{ {expression} }}}}{{% endfor %}}"
    messages = [{"role": "user", "v": value}]
    expected = ""
    try:
        _compile_jinja_template(template).render(messages=messages)
    except (jinja2.TemplateError, *TEMPLATE_FAILURES) as error:
        expected = str(error)
    found = ""
    try:
        render_template(template, messages)
    except ConversationError as error:
        found = str(error)
    assert expected in found
    assert bool(expected) == bool(found)


@pytest.mark.parametrize(
    "expression",
    [
        "'<b>'|safe + text", "text + '<b>'|safe", "text|safe + text", "text|e", "text|e + text", "text|e|e", "text|e|forceescape",
        "('<b>'|safe) ~ text", "('<b> '|safe).strip() + text", "('<i>'|safe).join([text, '&'])", "[text, '&']|join('<i>'|safe)",
        "('<%s>'|safe) % text", "('<%s>'|safe) % (text,)", "('a b'|safe).split()[0] + text", "('<x>'|safe).replace('x', text)",
        "'<x>'|safe|replace('x', text)", "text|safe|upper + text", "text|safe|trim + '&' + text", "text|safe|indent + text",
        "('<b>'|safe)[0] + text", "('<b>'|safe * 2) + text", "'x'|safe + {'a': text}|tojson", "text|safe|string + text",
        "text|safe|title + text", "text|safe|lower|capitalize + text", "('<b>'|safe)[:2] + text + ('&'|safe) + '&'",
    ],
)  # fmt: skip
def test_text_added_to_safe_text_is_escaped_as_in_transformers(expression: str) -> None:
    messages = [{"role": "user", "content": "a <b>\n& \"c\" 'd'"}]
    template = f"{{% for m in messages %}}{{% set text = m.content %}}{{{{ {expression} }}}}{{% endfor %}}"
    rendered = render_template(template, messages)
    assert rendered.text == _compile_jinja_template(template).render(messages=messages)
    assert sum(run.length for run in rendered.runs) == len(rendered.text)


def test_escaped_text_keeps_its_message() -> None:
    rendered = render_template(
        "{% for m in messages %}{{ 'Said: '|safe + m.content }}\n{% endfor %}", MESSAGES
    )
    assert "".join(text for text, message, _ in owners(rendered) if message == 1) == "Hi &lt;b&gt;"


def test_messages_are_prepared_as_transformers_does() -> None:
    prepared = prepare_messages([{"role": "assistant", "content": None, "reasoning": "r"}])
    assert prepared[0]["reasoning_content"] == "r"
    assert "content" not in prepared[0]


def test_only_tags_are_taken_for_generation_tags() -> None:
    assert has_generation_tags("{%- generation -%}x{%- endgeneration -%}")
    assert not has_generation_tags("{% if add_generation_prompt %}x{% endif %}{# {% generation %} #}")
