"""Templates that C code would keep busy: each is refused within its limits of time and memory."""

from __future__ import annotations

import os
import resource
import traceback

import pytest

from tokscore.dataset.errors import TokscoreError
from tokscore.rendering.templates.limits import TemplateLimits
from tokscore.rendering.templates.render import check_template, render_template

from .test_limits import ENDLESS, ENORMOUS, MESSAGES

LIMITS = TemplateLimits(cpu_s=1.0)
# Parsing, and what one operation may take before anybody looks at the clock.
BEYOND_S = 2.0
MAX_BYTES = 2**30

A = "{% set a = 'x' * (1000 * 1000 * messages | length) %}"  # no constant
MANY = "{% for i in range(99999) %}"
BUSY = {
    "separators of JSON": "{{ messages | tojson(separators=('a' * 1000000, 'b' * 1000000)) }}",
    "groups": "{{ (range(100000) | list * 100) | groupby('real') | list | length }}",
    "groups of no constant": "{{ (range(n - 999000000) | list) | groupby('real') | list | length }}",
    "sorted": "{{ (range(90000) | list * (50 * messages | length)) | sort | length }}",
    "sorted by an attribute": "{{ (range(90000) | list * (50 * messages | length)) | sort(attribute='real') | length }}",
    "unique": "{{ (range(90000) | list * (50 * messages | length)) | unique | list | length }}",
    "largest": "{{ (range(90000) | list * (50 * messages | length)) | max(attribute='real') }}",
    "sorted items": "{{ dict.fromkeys(range(n - 999000000)) | dictsort | length }}",
    "sum of lists": "{{ ([[1] * 1000] * 100000) | sum(start=[]) | length }}",
    "sum of lists of no constant": "{{ ([[1] * 1000] * (50000 * messages | length)) | sum(start=[]) | length }}",
    "found in a constant": "{{ ('a' * 10000000 + 'b') in ('a' * 100000000) }}",
    "found": A + "{{ (a[:500000] ~ 'b') in a }}",
    "not found": A + "{{ (a[:500000] ~ 'b') not in a }}",
    "found by a test": A + "{{ (a[:500000] ~ 'b') is in a }}",
    "found by a method": A + "{{ a.find(a[:500000] ~ 'b') }}",
    "found by the index": A + "{{ a.index(a[:500000] ~ 'b') }}",
    "counted in a constant": "{{ ('a' * 100000000).count('aa') }}",
    "counted": A + "{{ a.count(a[:500000] ~ 'b') }}",
    "counted often": A + MANY + "{% set b = a.count('xx') %}{% endfor %}",
    "replaced": A + "{{ a.replace(a[:500000] ~ 'b', '') | length }}",
    "split": A + "{{ a.split(a[:500000] ~ 'b') | length }}",
    "parts": A + "{{ a.partition(a[:500000] ~ 'b') | length }}",
    "equal": A + MANY + "{% if a == a ~ '' %}{% endif %}{% endfor %}",
    "equal by a test": A + MANY + "{% if a is eq(a ~ '') %}{% endif %}{% endfor %}",
    "less": A + MANY + "{% if a < a ~ 'x' %}{% endif %}{% endfor %}",
    "upper": A + MANY + "{% set b = a.upper() %}{% endfor %}",
    "upper by a filter": A + MANY + "{% set b = a | upper %}{% endfor %}",
    "title": A + MANY + "{% set b = a | title %}{% endfor %}",
    "is lower": A + MANY + "{% set b = a is lower %}{% endfor %}",
    "islower": A + MANY + "{% set b = a.islower() %}{% endfor %}",
    "isdigit": A + MANY + "{% set b = a.isalnum() %}{% endfor %}",
    "encoded": A + MANY + "{% set b = a.encode() %}{% endfor %}",
    "starts": A + MANY + "{% set b = (a ~ i).startswith(a ~ i) %}{% endfor %}",
    "hashed": A + MANY + "{% set b = {a ~ i: 1} %}{% endfor %}",
    "words": "{% set a = 'x ' * (900000 * messages | length) %}"
    + MANY
    + "{% set b = a | wordcount %}{% endfor %}",
    "a number": "{% set a = '9' * (90000 * messages | length) %}"
    + MANY
    + "{% set b = a | int %}{% endfor %}",
    "doubling": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x | length }}",
    "doubling content": "{% set ns = namespace(x=messages[0].content) %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x | length }}",
    "date of a constant": "{{ strftime_now('%Y' * 100000000) }}",
    "date": "{{ strftime_now('%Y' * (50000000 * messages | length)) }}",
    "joined": "{{ ('b' * 100000).join(['a'] * 100000) }}",
    "times": "{{ 'a' * 10 ** 10 }}",
    "word wrap": "{{ ('a' * 100000) | wordwrap(1) }}",
    "word wrap of no constant": "{{ ('a' * (50000 * messages | length)) | wordwrap(1) }}",
    "casefold": A + MANY + "{% set b = a.casefold() %}{% endfor %}",
    "stripped": A + "{{ a.strip(a[:500000]) | length }}",
    "trimmed": A + "{{ a | trim(a[:500000]) | length }}",
    "from the right": A + "{{ a.rsplit(a[:500000] ~ 'b') | length }}",
    "a chain": A + MANY + "{% if a <= a ~ '' <= a ~ 'x' %}{% endif %}{% endfor %}",
    "found in a chain": A + "{{ (a[:500000] ~ 'b') in a in [true] }}",
    "sliced": A + MANY + "{% set b = a[1:] %}{% endfor %}",
    "concatenated": A + MANY + "{% set b = a ~ i %}{% endfor %}",
    "quoted": A + MANY + "{% set b = a | tojson %}{% endfor %}",
    "escaped": A + MANY + "{% set b = a | urlencode %}{% endfor %}",
    "reversed": A + "{{ a | reverse | list | length }}",
    "found in a list": "{% set x = [0] * 1000000 %}"
    + MANY
    + "{% if "
    + "-1 in x or " * 50
    + "0 %}{% endif %}{% endfor %}",
    "text found in a list": "{% set a = 'a' * 200000 %}{{ (a ~ 'c') in [a ~ 'b'] * 300000 }}",
    "found in a range": MANY + "{% if " + "1.5 in range(99999) or " * 50 + "0 %}{% endif %}{% endfor %}",
    "counted in a list": "{% set x = [0] * 1000000 %}"
    + MANY
    + "{% set b = 0"
    + " + x.count(1)" * 50
    + " %}{% endfor %}",
    "much text": A + "{{ a }}",
}
ALL = ENDLESS | ENORMOUS | BUSY


REFUSED, RENDERED, BROKEN = range(3)


def usage_of(template: str) -> tuple[int, float, int]:
    """How a template ends, and the processor seconds and bytes that it takes a process of its own."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = os.fork()
    if not child:
        code = BROKEN
        try:
            check_template(template)
            render_template(template, MESSAGES, variables={"n": 999_999_999}, limits=LIMITS)
            code = RENDERED
        except TokscoreError:
            code = REFUSED
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        os._exit(code)
    _, status, used = os.wait4(child, 0)
    return (
        os.waitstatus_to_exitcode(status),
        used.ru_utime + used.ru_stime,
        1024 * (used.ru_maxrss - before),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", ALL)
def test_a_hostile_template_is_refused_within_its_limits(name: str) -> None:
    ending, used_s, n_bytes = usage_of(ALL[name])
    assert ending == REFUSED or (ending == RENDERED and name not in BUSY)
    assert used_s < LIMITS.cpu_s + BEYOND_S
    assert n_bytes < MAX_BYTES
