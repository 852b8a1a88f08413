"""Hostile templates: each is stopped with one error."""

from __future__ import annotations

import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.sweeps import sweep
from tokscore.dataset.errors import ConversationError, InputError
from tokscore.rendering.templates.limits import TemplateLimitError, TemplateLimits
from tokscore.rendering.templates.render import check_template, render_template

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
TIGHT = TemplateLimits(cpu_s=0.3, n_characters=2**20)

ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loop with output": "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}{% endfor %}",
    "macros that call each other": (
        "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set b = f(n - 1) %}{% endif %}{% endmacro %}{{ f(99) }}"
    ),
    "recursive loop": "{% for a in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 99 }}{% endfor %}",
    "filter inside a filter": "{{ range(99999) | select('in', range(99999, 199998) | list) | list | length }}",
    "tests": "{% for a in range(99999) %}{{ range(99999) | select('odd') | first }}{{ range(99999) | map('abs') | sum }}{% endfor %}",
    "slices": "{{ 'x' | slice(999999999) | list }}",
    "sum of lists": "{% set l = range(9999) | list %}{{ ([l, l] * 9999) | sum(start=[]) }}",
    "power": "{{ 10 ** 9999999999 }}",
    "power of the input": "{% set n = messages | length %}{{ (n + 8) ** (n ** 30) }}",
    "product": "{% set ns = namespace(n=7 ** 99) %}{% for a in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n % 7 }}",
    "division": "{{ ('f' * 999999) | int(0, 16) // (('f' * 500000) | int(0, 16)) }}",
    "rounding": "{{ 5 | round(-999999999) }}",
    "rounding down": "{{ 5.5 | round(999999999, 'floor') }}",
    "search from the right": "{{ ('a' * 900000).rfind('b' + 'a' * 90000) }}",
    "equal lists": (
        "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
        "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}"
    ),
}
ENORMOUS = {
    "times": "{{ 'a' * n }}",
    "times of content": "{{ messages[0].content * n }}",
    "times from the left": "{{ n * 'a' }}",
    "list times": "{{ ([1] * n) | length }}",
    "ljust": "{{ 'a'.ljust(n) }}",
    "rjust": "{{ messages[0].content.rjust(n, '*') }}",
    "center": "{{ 'a'.center(n) }}",
    "zfill": "{{ 'a'.zfill(n) }}",
    "expandtabs": "{{ '\t'.expandtabs(n) }}",
    "center filter": "{{ 'a' | center(n) }}",
    "center of a plain string": "{{ 'a'.encode().decode() | center(n) }}",
    "ljust of a plain string": "{{ 'a'.encode().decode().ljust(n) }}",
    "map center": "{{ ['a'] | map('center', n) | list }}",
    "indent": "{{ 'a\nb' | indent(n) }}",
    "indent first": "{{ 'a' | indent(width=n, first=true) }}",
    "percent width": "{{ '%999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (n, 1) }}",
    "percent precision": "{{ '%.999999999f' % 1 }}",
    "format filter": "{{ '%999999999s' | format('a') }}",
    "format filter with a star": "{{ '%*s' | format(n, 'a') }}",
    "format width": "{{ '{:999999999}'.format('a') }}",
    "format nested width": "{{ '{:{}}'.format('a', n) }}",
    "format_map": "{{ '{a:999999999}'.format_map({'a': 1}) }}",
    "format of many fields": "{{ ('{0}' * 99999).format('a' * 99999) }}",
    "format method of a plain string": "{{ ('{0}' * 99999).encode().decode().format('a' * 99999) }}",
    "percent of many fields": "{{ ('%(a)s' * 99999) % {'a': 'a' * 99999} }}",
    "replace": "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
    "replace nothing": "{{ ('a' * 99999).replace('', 'b' * 99999) }}",
    "translate": "{{ ('a' * 99999).translate({97: 'b' * 99999}) }}",
    "join": "{{ (['a' * 99999] * 9999) | join }}",
    "join with a separator": "{{ range(99999) | join('a' * 99999) }}",
    "join of a plain string": "{{ ('a' * 99999).encode().decode().join(range(99999) | map('string')) }}",
    "doubling": "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubling by plus": "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling a list": "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling by escaping": "{% set ns = namespace(s='\"') %}{% for i in range(99) %}{% set ns.s = ns.s | tojson %}{% endfor %}",
    "output": "{% set a = 'a' * 99999 %}{% for i in range(99999) %}{{ a }}{% endfor %}",
    "literal output": "{% for i in range(99999) %}" + "a" * 999 + "{% endfor %}",
    "block set": "{% set x %}{% for i in range(99999) %}" + "a" * 999 + "{% endfor %}{% endset %}",
    "list that holds itself": "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
    "the same as text": "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a | string | length }}",
    "the same as JSON": "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a | tojson }}",
    "the same printed": "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a | pprint }}",
    "the same formatted": "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ '%s' % (ns.a,) }}",
    "kept strings": "{% set ns = namespace(l=[]) %}{% set a = 'a' * 99999 %}{% for i in range(999) %}{% set ns.l = ns.l + [a ~ i] %}{% endfor %}",
    "kept slices": "{% set ns = namespace(l=[]) %}{% set a = range(99999) | list %}{% for i in range(999) %}{% set ns.l = [ns.l, a[1:]] %}{% endfor %}",
    "characters": "{{ ('a' * 999999) | list | length }}",
    "pieces": "{{ ('a' * 1040000).split('a') | length }}",
    "batch": "{{ [1] | batch(n, 2) | list }}",
    "JSON indent": "{{ messages | tojson(indent=n) }}",
    "JSON indent by position": "{{ messages | tojson(false, n) }}",
    "bytes of a number": "{{ (1).to_bytes(n, 'big') | length }}",
    "word wrap": "{{ ('a ' * 9999) | wordwrap(1, true, 'b' * 99999) }}",
}


def stopped(template: str, messages: Any = MESSAGES) -> ConversationError:
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(ConversationError) as caught:
            render_template(template, messages, variables={"n": 999_999_999}, limits=TIGHT)
        assert time.process_time() - started < 5
        assert tracemalloc.get_traced_memory()[1] < 300 * 2**20
    finally:
        tracemalloc.stop()
    return caught.value


@pytest.mark.parametrize("name", sweep(ENDLESS, quick=list(ENDLESS)[::4]))
def test_a_template_that_never_ends_is_stopped(name: str) -> None:
    assert isinstance(stopped(ENDLESS[name]), TemplateLimitError)


@pytest.mark.parametrize("name", sweep(ENORMOUS, quick=list(ENORMOUS)[::8]))
def test_a_template_that_builds_too_much_is_stopped(name: str) -> None:
    assert isinstance(stopped(ENORMOUS[name]), TemplateLimitError)


def test_the_message_names_the_limit_and_how_to_change_it() -> None:
    error = stopped(ENDLESS["nested loops"])
    assert "busy for more than 0.3 s" in error.reason
    assert "`template_timeout=S`" in error.hint
    error = stopped(ENORMOUS["times"])
    assert "more than 1,048,576 characters" in error.reason
    assert "`template_characters=N`" in error.hint


def test_limits_hold_in_threads() -> None:
    def render(name: str) -> str:
        with pytest.raises(TemplateLimitError) as caught:
            render_template(ENDLESS[name], MESSAGES, limits=TIGHT)
        return caught.value.reason

    with ThreadPoolExecutor(4) as pool:
        reasons = list(pool.map(render, ["nested loops"] * 4))
    assert len(set(reasons)) == 1


def test_a_long_conversation_may_cost_more_than_the_limit() -> None:
    messages = [{"role": "user", "content": "x" * 2**20}]
    text = render_template(
        "{% for m in messages %}{{ m.content | trim }}{% endfor %}", messages, limits=TIGHT
    ).text
    assert len(text) == 2**20


def test_a_text_that_grows_piece_by_piece_is_counted_once() -> None:
    template = "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.content %}{% endfor %}{{ ns.t }}"
    messages = [{"role": "user", "content": "x" * 1000}] * 2000
    text = render_template(template, messages, limits=TemplateLimits(n_characters=2**24)).text
    assert len(text) == 2_000_000


@pytest.mark.parametrize("template", ["{{ range(9) | random }}", "{{ lipsum() }}"])
def test_chance_is_refused(template: str) -> None:
    with pytest.raises(ConversationError, match="it asks for chance"):
        render_template(template, MESSAGES)


@pytest.mark.parametrize(
    "template",
    [
        "{% if false %}{{ 'a' * 9999999999 }}{% endif %}",
        "{% if false %}{{ 'a' | center(9999999999) }}{% endif %}",
        "{% if false %}{{ 10 ** 9999999999 }}{% endif %}",
        "{% if false %}{{ '%9999999999d' % 1 }}{% endif %}",
        "{% if false %}{{ ['a' * 99999] * 99999 }}{% endif %}",
    ],
)
def test_constants_too_large_to_write_out_are_refused_before_anything_runs(template: str) -> None:
    with pytest.raises(InputError, match="one of its constants"):
        check_template(template)


@pytest.mark.parametrize(
    "constant", ["1 .type + 1", "'a' + 1", "1 // 0", "1 .type ** 2", "-1 .type", "1 .type % 2"]
)
def test_a_constant_that_has_no_value_fails_where_it_is_printed(constant: str) -> None:
    unused = "{% if false %}{{ " + constant + " }}{% endif %}x"
    check_template(unused)
    assert render_template(unused, MESSAGES).text == "x"
    used = "{{ " + constant + " }}"
    check_template(used)
    with pytest.raises(ConversationError):
        render_template(used, MESSAGES)


@pytest.mark.parametrize(
    "template", ["(" * 5000, "{% if x %}" * 500 + "{% endif %}" * 500, "{{ " + "-" * 9999 + "1 }}"]
)
def test_a_template_nested_too_deeply_is_refused(template: str) -> None:
    source = template if "{" in template else "{{ " + template + "1" + ")" * 5000 + " }}"
    with pytest.raises(InputError, match=r"too deeply|does not parse"):
        check_template(source)
