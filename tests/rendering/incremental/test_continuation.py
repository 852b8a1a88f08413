"""Conversations that grow turn by turn, over real templates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rendering.samples import (
    CHATML_TOOLS,
    NO_TOOLS,
    REAL_TEMPLATES,
    assistant,
    byte_renderer,
    call,
    conversations,
    template_renderer,
    tool,
    user,
)
from tests.sweeps import sweep
from tokscore.dataset.tokens import MessageFlag
from tokscore.rendering import (
    Continuation,
    Conversation,
    NotContinued,
    RenderedTokens,
    Renderer,
    UsageError,
    add_answer,
    continue_with,
)

SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATIONS = {
    "plain": [
        user("Hi"),
        assistant("Yo\n"),
        user("more 🎉"),
        assistant("ok then"),
        user("bye"),
        assistant("x"),
    ],
    "system": [SYSTEM, user("Hi"), assistant("Yo"), user("more"), assistant("ok then"), user("bye")],
    "reasoning": [
        user("Hi"),
        assistant("Yo", reasoning_content="r1"),
        user("more"),
        assistant("ok", reasoning_content="r2"),
    ],
    "tools": [
        user("Hi"),
        assistant("", tool_calls=[call({"p": "x"})]),
        tool("res"),
        assistant("ok then"),
        user("x"),
        assistant("y"),
    ],
}
# Template, tokenizer (None: one of bytes with its control tokens), shapes whose turns all append.
TEMPLATES: dict[str, tuple[str | None, list[str]]] = {
    "chatml_tools": ("qwen3", ["plain", "system", "reasoning", "tools"]),
    "qwen2_5": ("qwen3", ["plain", "system", "reasoning", "tools"]),
    "qwen3": ("qwen3", []),  # prints an empty think block in the last turn only
    "qwen3_instruct_2507": ("qwen3", ["plain", "system", "reasoning", "tools"]),
    "qwen3_training": ("qwen3", ["plain", "system", "reasoning", "tools"]),  # with generation tags
    "llama3": ("llama3_1", ["plain", "system", "reasoning", "tools"]),
    "llama3_1": ("llama3_1", ["plain", "system", "reasoning", "tools"]),
    "gemma": ("gemma3", ["plain", "reasoning"]),
    "gemma3": ("gemma3", ["plain", "system", "reasoning"]),
    "deepseekv3": ("deepseek_v3", []),  # its prompt opens a think block that no finished turn has
    "gptoss": ("gptoss", []),  # ends the last turn otherwise than earlier ones
    "glm4moe": (None, ["plain", "system", "tools"]),
    "phi3_5": (None, ["plain", "system", "reasoning", "tools"]),  # without prompt it prints an end
}
# Conversations that the template itself refuses.
REFUSED = {("gemma", "system"), ("gemma", "tools"), ("gemma3", "tools"), ("deepseekv3", "tools")}


Load = Callable[[str], Renderer]


@pytest.fixture(scope="session")
def load(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """The renderer of one of TEMPLATES."""
    folder = tmp_path_factory.mktemp("tokenizers")

    def load(template: str) -> Renderer:
        tokenizer = TEMPLATES[template][0]
        if tokenizer is None:
            return byte_renderer(folder, assets, template)
        path = assets / "trl" / "chat_templates" / f"{template}.jinja"
        source = CHATML_TOOLS if template == "chatml_tools" else path
        return template_renderer(assets / "tokenizers" / tokenizer, source.read_text())

    return load


def prompt(renderer: Renderer, messages: list[dict[str, Any]]) -> tuple[Conversation, RenderedTokens]:
    conversation = Conversation(messages)
    return conversation, renderer.with_generation_prompt(True).render(conversation)


def finished(renderer: Renderer, messages: list[dict[str, Any]]) -> tuple[Conversation, RenderedTokens]:
    conversation = Conversation(messages)
    return conversation, renderer.with_generation_prompt(False).render(conversation)


def ids(renderer: Renderer, text: str) -> list[int]:
    return renderer.tokenizer.encode(text).token_ids.tolist()


def texts(renderer: Renderer, tokens: RenderedTokens) -> list[str]:
    return [str(renderer.tokenizer.hf.decode([i])) for i in tokens.token_ids]


def continued(result: Continuation | NotContinued) -> Continuation:
    assert isinstance(result, Continuation), result
    return result


def refused(result: Continuation | NotContinued) -> str:
    assert isinstance(result, NotContinued)
    return result.reason


def attribution(tokens: RenderedTokens) -> list[tuple[object, ...]]:
    """Attribution of each token, in a form that does not depend on the order of the sources."""
    columns = (tokens.token_ids, tokens.message_indices, tokens.sampled_mask, tokens.is_content)
    sources = [tokens.sources[code] for code in tokens.source_codes]
    return list(zip(*(column.tolist() for column in columns), sources, strict=True))


@pytest.mark.parametrize("has_prompt", [True, False])
@pytest.mark.parametrize(
    ("template", "shape"),
    [(name, shape) for name in TEMPLATES for shape in CONVERSATIONS if (name, shape) not in REFUSED],
)
@pytest.mark.slow
def test_chained_turns_equal_one_whole_rendering(
    load: Load, template: str, shape: str, has_prompt: bool
) -> None:
    messages, renderer = CONVERSATIONS[shape], load(template)

    def opened(n_messages: int) -> bool:
        following = [message["role"] for message in messages[n_messages : n_messages + 1]]
        return has_prompt and following in ([], ["assistant"])

    def whole(n_messages: int) -> RenderedTokens:
        render = prompt if opened(n_messages) else finished
        return render(renderer, messages[:n_messages])[1]

    begin = 2 if shape == "system" else 1
    tokens, n_continued = whole(begin), 0
    for n in range(begin, len(messages)):
        expected = whole(n + 1)
        result = continue_with(
            renderer,
            Conversation(messages[:n]),
            tokens,
            messages[n : n + 1],
            add_generation_prompt=opened(n + 1),
        )
        if isinstance(result, Continuation):
            n_continued += 1
            assert result.tokens == expected
            assert result.tokens.token_ids[: len(tokens)].tolist() == tokens.token_ids.tolist()
            tokens = result.tokens
        else:
            tokens = expected
    if shape in TEMPLATES[template][1] and template != "phi3_5":
        assert n_continued == len(messages) - begin


@pytest.mark.parametrize(
    ("template", "shape"), [(name, shape) for name, (_, shapes) in TEMPLATES.items() for shape in shapes]
)
def test_answers_of_an_engine_equal_one_whole_rendering(load: Load, template: str, shape: str) -> None:
    messages, renderer = CONVERSATIONS[shape], load(template)
    messages = messages if messages[-1]["role"] != "assistant" else messages[:-1]
    begin = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
    _, whole = prompt(renderer, messages)
    conversation, tokens = prompt(renderer, messages[:begin])
    for i in range(begin, len(messages), 2):
        # What an engine samples: from the prompt on, up to the stop.
        stop = len(tokens) + int(np.argmin(whole.sampled_mask[len(tokens) :] == 1))
        answer = whole.token_ids[len(tokens) : stop]
        answered = add_answer(renderer, conversation, tokens, messages[i], answer)
        assert answered.tokens.token_ids.tolist() == [*tokens.token_ids.tolist(), *answer.tolist()]
        assert (answered.new_tokens.sampled_mask == 1).all()
        assert MessageFlag.RECORDED in answered.tokens.messages[i].flags
        result = continued(
            continue_with(renderer, answered.conversation, answered.tokens, messages[i + 1 : i + 2])
        )
        conversation, tokens = result.conversation, result.tokens
    assert attribution(tokens) == attribution(whole)
    assert tokens.text == whole.text


@pytest.fixture(scope="session")
def load_bytes(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """A renderer of REAL_TEMPLATES with a byte tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizers")
    return lambda template: byte_renderer(folder, assets, template)


@pytest.mark.parametrize("template", sweep(REAL_TEMPLATES, quick=["glm4moe"]))
@settings(max_examples=30, derandomize=True, deadline=None)
@given(data=st.data(), openers=st.tuples(st.booleans(), st.booleans()))
def test_any_continuation_keeps_the_ids_and_equals_the_whole(
    load_bytes: Load, template: str, data: st.DataObject, openers: tuple[bool, bool]
) -> None:
    before, after = (load_bytes(template).with_generation_prompt(prompt) for prompt in openers)
    messages = data.draw(conversations(has_tools=template not in NO_TOOLS))
    first = 2 if messages[0]["role"] == "system" else 1  # a system message alone may render to nothing
    conversation = Conversation(messages[: data.draw(st.integers(first, len(messages)))])
    tokens = before.render(conversation)
    new = messages[len(conversation.messages) :]
    result = continue_with(before, conversation, tokens, new, add_generation_prompt=openers[1])
    whole = after.render(Conversation(messages))
    begins_alike = whole.token_ids[: len(tokens)].tolist() == tokens.token_ids.tolist()
    assert isinstance(result, Continuation) == begins_alike
    if isinstance(result, Continuation):
        assert result.tokens == whole
        assert result.n_prior_tokens == len(tokens)
        assert len(result.relative()) == len(whole) - len(tokens)


@pytest.mark.parametrize("template", sweep(REAL_TEMPLATES, quick=["glm4moe"]))
@settings(max_examples=30, derandomize=True, deadline=None)
@given(data=st.data())
def test_any_answer_is_kept_and_followed_by_what_the_template_prints(
    load_bytes: Load, template: str, data: st.DataObject
) -> None:
    renderer = load_bytes(template)
    messages = data.draw(conversations(has_tools=template not in NO_TOOLS))
    index = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), None)
    if index is None:
        return
    conversation, tokens = prompt(renderer, messages[:index])
    answer = data.draw(st.lists(st.integers(0, 255), max_size=8))
    answered = add_answer(renderer, conversation, tokens, messages[index], answer)
    assert answered.tokens.token_ids.tolist() == [*tokens.token_ids.tolist(), *answer]
    result = continue_with(renderer, answered.conversation, answered.tokens, messages[index + 1 :])
    if isinstance(result, Continuation):
        assert result.tokens[: len(answered.tokens)].token_ids.tolist() == answered.tokens.token_ids.tolist()
        _, whole = prompt(renderer, messages)
        n_new = len(result.new_tokens)
        assert result.new_tokens.token_ids.tolist() == whole.token_ids[len(whole) - n_new :].tolist()
        assert result.tokens.text is not None
        assert result.tokens.text.endswith((whole.text or "")[whole.char_span(len(whole) - n_new).start :])


def test_ids_that_tokenise_otherwise_are_kept_and_attributed(load: Load) -> None:
    renderer = load("qwen2_5")
    messages = [user("Hi"), assistant("Hello there", reasoning_content="r"), user("more")]
    answer = [token_id for letter in "Hello there" for token_id in ids(renderer, letter)]
    conversation, tokens = prompt(renderer, messages[:1])
    answered = add_answer(
        renderer, conversation, tokens, messages[1], [*answer, *ids(renderer, "<|im_end|>")]
    )
    assert answered.new_tokens.token_ids[:-1].tolist() == answer
    assert answered.new_tokens.is_content.tolist() == [True] * len(answer) + [False]
    assert {answered.tokens.sources[code] for code in answered.new_tokens.source_codes[:-1]} == {"content"}
    result = continued(continue_with(renderer, answered.conversation, answered.tokens, messages[2:]))
    _, whole = prompt(renderer, messages)
    behind = whole.token_ids.tolist().index(ids(renderer, "<|im_end|>")[0], len(tokens)) + 1
    assert attribution(result.new_tokens) == attribution(whole[behind:])
    assert result.tokens.text == whole.text
    assert [result.tokens.char_span(i) for i in range(result.n_prior_tokens, len(result.tokens))] == [
        whole.char_span(i) for i in range(behind, len(whole))
    ]


def test_ids_of_another_text_than_the_template_prints_are_kept_as_recorded(load: Load) -> None:
    renderer = load("llama3")
    messages = [user("Hi"), assistant("Hello"), user("more")]
    conversation, tokens = prompt(renderer, messages[:1])
    answer = ids(renderer, "\n\n  Hello  \n<|eot_id|>")
    answered = add_answer(renderer, conversation, tokens, messages[1], answer)
    assert answered.new_tokens.message_indices.tolist() == [1] * len(answer)
    assert answered.new_tokens.is_content.tolist() == [True] * (len(answer) - 1) + [False]
    assert {answered.tokens.sources[code] for code in answered.new_tokens.source_codes} == {"recorded"}
    result = continued(continue_with(renderer, answered.conversation, answered.tokens, messages[2:]))
    _, whole = prompt(renderer, messages)
    last = len(result.new_tokens)
    assert attribution(result.new_tokens) == attribution(whole[-last:])
    assert result.tokens.token_ids[: result.n_prior_tokens].tolist() == [*tokens.token_ids.tolist(), *answer]
    assert result.tokens.text == renderer.tokenizer.hf.decode(result.tokens.token_ids)
    start, stop = result.tokens.char_span(len(result.tokens) - last)
    assert result.tokens.text[start:stop] == texts(renderer, result.new_tokens)[0]


def test_what_the_template_prints_behind_the_stop_belongs_to_the_answer_and_is_not_sampled(
    load: Load,
) -> None:
    renderer = load("qwen2_5")
    conversation, tokens = prompt(renderer, [user("Hi")])
    answered = add_answer(renderer, conversation, tokens, assistant("Yo"), ids(renderer, "Yo<|im_end|>"))
    result = continued(continue_with(renderer, answered.conversation, answered.tokens, [user("x")]))
    assert texts(renderer, result.new_tokens)[:3] == ["\n", "<|im_start|>", "user"]
    assert result.new_tokens.message_indices[:3].tolist() == [1, 2, 2]
    assert result.new_tokens.sampled_mask[0] == 0
    relative = result.relative()
    assert relative.message_roles == ("user",)
    assert relative.message_indices[:3].tolist() == [-1, 0, 0]
    assert relative.tokens_by_role()["user"] + relative.tokens_by_role()[None] == len(result.new_tokens)


@pytest.mark.parametrize("template", ["qwen2_5", "qwen3_training", "llama3", "gemma3", "phi3_5", "glm4moe"])
def test_a_stop_that_the_engine_did_not_sample_is_added_as_not_sampled(load: Load, template: str) -> None:
    renderer = load(template)
    messages = [user("Hi"), assistant("Hello there"), user("more")]
    _, whole = prompt(renderer, messages)
    conversation, tokens = prompt(renderer, messages[:1])
    stop = len(tokens) + int(np.argmin(whole.sampled_mask[len(tokens) :] == 1)) - 1
    stop -= template == "qwen3_training"  # its generation tags enclose the newline behind the stop
    answered = add_answer(renderer, conversation, tokens, messages[1], whole.token_ids[len(tokens) : stop])
    result = continued(continue_with(renderer, answered.conversation, answered.tokens, messages[2:]))
    assert result.tokens.token_ids.tolist() == whole.token_ids.tolist()
    assert whole.sampled_mask[stop] == 1
    assert (result.new_tokens.sampled_mask == 0).all()


def test_an_answer_cut_in_other_tokens_than_the_template_gets_its_stop(load: Load) -> None:
    renderer = load("qwen2_5")
    conversation, tokens = prompt(renderer, [user("Hi")])
    cut = [token_id for letter in "Hello the" for token_id in ids(renderer, letter)]
    answered = add_answer(renderer, conversation, tokens, assistant("Hello the"), cut)
    result = continued(continue_with(renderer, answered.conversation, answered.tokens, [user("x")]))
    assert texts(renderer, result.new_tokens)[:3] == ["<|im_end|>", "\n", "<|im_start|>"]
    assert result.new_tokens.sampled_mask[0] == 0
    assert result.new_tokens.message_indices[0] == 1


@pytest.mark.parametrize("template", ["chatml_tools", "qwen2_5", "llama3", "gemma3", "glm4moe", "phi3_5"])
def test_recorded_answers_stay_over_many_turns(load: Load, template: str) -> None:
    """The first has another text than the template prints, the second lacks its stop, the third is whole."""
    renderer = load(template)
    answers = [assistant("Hello"), assistant("there"), assistant("you")]
    messages = [user("1"), *(message for answer in answers for message in (answer, user("and")))]
    conversation, tokens = prompt(renderer, messages[:1])
    sampled: list[int] = []
    for i in (1, 3, 5):
        _, whole = prompt(renderer, messages[: i + 2])
        own = np.flatnonzero((whole.sampled_mask == 1) & (whole.message_indices == i))
        follows = int(whole.sampled_mask[own[-1] + 1] == 1)  # GLM's stop, of the next message
        answer = whole.token_ids[own[0] : own[-1] + 1 + follows].tolist()
        answer = {1: [*ids(renderer, " \n "), *answer], 3: answer[:-1], 5: answer}[i]
        answered = add_answer(renderer, conversation, tokens, messages[i], answer)
        result = continued(
            continue_with(renderer, answered.conversation, answered.tokens, messages[i + 1 : i + 2])
        )
        assert result.tokens.token_ids[: len(answered.tokens)].tolist() == answered.tokens.token_ids.tolist()
        last = len(result.new_tokens) - (i == 3)
        assert attribution(result.new_tokens[-last:]) == attribution(whole[-last:])
        sampled += answer
        conversation, tokens = result.conversation, result.tokens
    assert tokens.token_ids[tokens.sampled_mask == 1].tolist() == sampled
    assert tokens.tokens_by_role().keys() == {"user", "assistant", None}


def test_a_prior_of_another_conversation_is_not_continued(load: Load) -> None:
    renderer = load("qwen2_5")
    _, tokens = finished(renderer, [user("Hi"), assistant("Yo")])
    other = Conversation([user("Hi"), assistant("No")])
    reason = refused(continue_with(renderer, other, tokens, [user("x")]))
    assert reason.startswith("the prior holds 'Yo")
    assert "where the template prints 'No" in reason


def test_a_stop_that_opens_the_next_message_is_not_printed_twice(load: Load) -> None:
    renderer = load("glm4moe")
    conversation, tokens = prompt(renderer, [user("Hi")])
    answer = ids(renderer, "\n<think></think>\nYo<|user|>")
    answered = add_answer(renderer, conversation, tokens, assistant("Yo"), answer)
    result = continued(continue_with(renderer, answered.conversation, answered.tokens, [user("x")]))
    assert texts(renderer, result.new_tokens)[0] == "\n"
    assert attribution(result.tokens) == attribution(
        prompt(renderer, [user("Hi"), assistant("Yo"), user("x")])[1]
    )
    reason = refused(continue_with(renderer, answered.conversation, answered.tokens, [tool("r")]))
    assert reason == "the prior ends with '<|user|>', but the template ends that turn with '<|observation|>'"


def test_a_template_that_drops_earlier_reasoning_is_not_continued(load: Load) -> None:
    renderer = load("qwen3")
    messages = [user("Hi"), assistant("Yo", reasoning_content="why")]
    reason = "the template prints earlier messages otherwise once the new ones follow: from token "
    conversation, tokens = finished(renderer, messages)
    assert refused(continue_with(renderer, conversation, tokens, [user("x")])).startswith(reason)
    conversation, tokens = prompt(renderer, messages[:1])
    answer = ids(renderer, "<think>\nwhy\n</think>\n\nYo<|im_end|>")
    answered = add_answer(renderer, conversation, tokens, messages[1], answer)
    refusal = refused(continue_with(renderer, answered.conversation, answered.tokens, [user("x")]))
    assert refusal.startswith(reason)
    assert "why" in refusal
    continued(continue_with(renderer, answered.conversation, answered.tokens, [tool("r")]))


def test_an_opener_is_only_followed_by_an_answer(load: Load) -> None:
    renderer = load("llama3")
    conversation, tokens = prompt(renderer, [user("Hi")])
    reason = refused(continue_with(renderer, conversation, tokens, [user("x")]))
    assert reason == "the prior ends with a generation prompt, but the first new message is of role user"


def test_a_prompt_that_no_finished_turn_has_is_not_continued(load: Load) -> None:
    renderer = load("deepseekv3")
    conversation, tokens = prompt(renderer, [user("Hi")])
    answered = add_answer(
        renderer, conversation, tokens, assistant("Yo"), ids(renderer, "w</think>Yo<｜end▁of▁sentence｜>")
    )
    reason = refused(continue_with(renderer, answered.conversation, answered.tokens, [user("x")]))
    assert reason.startswith("the prior holds '<think>\\n' where the template prints")


def test_another_stop_than_the_template_prints_is_not_continued(load: Load) -> None:
    renderer = load("qwen2_5")
    conversation, tokens = prompt(renderer, [user("Hi")])
    answered = add_answer(renderer, conversation, tokens, assistant("Yo"), ids(renderer, "Yo<|endoftext|>"))
    reason = refused(continue_with(renderer, answered.conversation, answered.tokens, [user("x")]))
    assert reason == "the prior ends with '<|endoftext|>', but the template ends that turn with '<|im_end|>'"


def test_tokens_that_merge_across_the_boundary_are_not_continued(qwen3: Path) -> None:
    renderer = template_renderer(qwen3, "{% for m in messages %}{{ m.content }}{% endfor %}")
    conversation, tokens = finished(renderer, [user("an app")])
    reason = refused(
        continue_with(renderer, conversation, tokens, [user("le a day")], add_generation_prompt=False)
    )
    assert reason == "tokens at the end of the earlier messages merge with what follows"


def test_the_opener_alone_can_be_appended(load: Load) -> None:
    renderer = load("chatml_tools")
    conversation, tokens = finished(renderer, [user("Hi")])
    result = continued(continue_with(renderer, conversation, tokens, []))
    assert result.tokens == prompt(renderer, [user("Hi")])[1]
    assert result.new_tokens.message_indices.tolist() == [-1] * len(result.new_tokens)


def test_tokens_of_a_dataset_are_continued_without_text(load: Load) -> None:
    renderer = load("llama3")
    conversation, tokens = finished(renderer, [user("Hi"), assistant("Yo")])
    bare = replace(tokens, text=None, char_starts=None, char_stops=None)
    result = continued(continue_with(renderer, conversation, bare, [user("x")]))
    assert result.tokens.text is None
    assert attribution(result.tokens) == attribution(
        prompt(renderer, [user("Hi"), assistant("Yo"), user("x")])[1]
    )


def test_tokens_of_other_messages_are_refused(load: Load) -> None:
    renderer = load("llama3")
    _, tokens = finished(renderer, [user("Hi"), assistant("Yo")])
    with pytest.raises(
        UsageError, match="the tokens are of messages user, assistant, the conversation has user"
    ):
        continue_with(renderer, Conversation([user("Hi")]), tokens, [user("x")])


def test_an_id_that_the_tokenizer_lacks_is_refused(load: Load) -> None:
    renderer = load("llama3")
    conversation, tokens = prompt(renderer, [user("Hi")])
    with pytest.raises(UsageError, match="the answer holds ids from 5 to 999999"):
        add_answer(renderer, conversation, tokens, assistant("Yo"), [5, 999999])
