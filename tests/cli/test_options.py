from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_type_hints

import pytest

from tokscore.cli import app
from tokscore.cli.printing.option_names import as_options
from tokscore.dataset.errors import ConversationError
from tokscore.rendering import RenderSettings, render
from tokscore.rendering.attribution.settings import RenderKeywords
from tokscore.rendering.conversations.conversation import parse_conversation
from tokscore.rendering.templates.limits import DEFAULT_LIMITS, TemplateLimits
from tokscore.rendering.templates.render import render_template
from tokscore.scoring import EngineSettings, score


def test_the_limits_on_templates_are_those_of_the_room() -> None:
    settings = RenderSettings()
    assert TemplateLimits(settings.template_timeout, settings.template_characters) == DEFAULT_LIMITS


def test_type_checkers_are_told_every_setting_of_rendering() -> None:
    assert list(get_type_hints(RenderKeywords)) == [field.name for field in fields(RenderSettings)]


@pytest.mark.parametrize(
    ("call", "command", "kinds"),
    [
        (render, app.render.render, [RenderSettings]),
        (score, app.logprobs.logprobs, [EngineSettings, RenderSettings]),
    ],
)
def test_a_setting_is_a_keyword_and_an_option(call: object, command: object, kinds: list[type]) -> None:
    keywords, shown = inspect.signature(call).parameters, inspect.signature(command).parameters
    for field in (field for kind in kinds for field in fields(kind)):
        assert field.name in keywords
        assert field.name in shown
        assert f"    {field.name}: " in (call.__doc__ or "")


def test_an_unknown_setting_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'tempalte'"):
        render([{"messages": []}], "model", tempalte="x")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`top_k` is -1; expected at least 0.", "--top-k is -1; expected at least 0."),
        ("drop such lines with `on_error='skip'`.", "drop such lines with --on-error skip."),
        ("say so: `engine_arg` max_model_len=N.", "say so: --engine-arg max_model_len=N."),
        ("the field `unheard_of` is no argument", "the field `unheard_of` is no argument"),
    ],
)
def test_messages_of_the_library_name_options_on_the_command_line(message: str, shown: str) -> None:
    assert as_options(message) == shown


def test_an_error_of_a_template_is_shown_in_its_own_words() -> None:
    template = "{{ raise_exception('give `tools` and `top_k=5`') }}"
    with pytest.raises(ConversationError) as caught:
        render_template(template, [{"role": "`model`", "content": "hi"}])
    shown = as_options(str(caught.value))
    assert "give 'tools' and 'top_k=5'" in shown
    assert "`model`" not in shown
    assert "--model" not in shown
    assert "with --on-error skip" in shown


def test_a_value_of_a_record_is_shown_in_its_own_words() -> None:
    with pytest.raises(ConversationError) as caught:
        parse_conversation(b'{"messages": [{"role": ["`tools`"], "content": "hi"}]}')
    assert "'tools'" in as_options(str(caught.value))
