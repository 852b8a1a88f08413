"""Where answers begin and end, told by renderings of transformers alone.

The prompt of an answer is the rendering of the messages before it with a generation prompt. What follows it in
the whole rendering is the answer, up to the stop behind its last words. Shares no code with the product.
"""

from __future__ import annotations

import copy
import datetime as dt
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

Message = Mapping[str, Any]
NOW = "2026-03-04T05:06:07"  # what templates that print the date take it to be


class _Clock(dt.datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> _Clock:
        return cls.fromisoformat(NOW).replace(tzinfo=tz)


class Expected(NamedTuple):
    """Tokens of one answer.

    Attributes:
        low: First token behind the words of the message before.
        start: First sampled one.
        stop: One past the last; at most `latest` where no stop is printed.
        latest: One past the last that may be sampled.
        high: First token of the words of the next message.
    """

    low: int
    start: int
    stop: int
    latest: int
    high: int


class Judge:
    """One template with its tokenizer."""

    def __init__(
        self,
        hf: Any,
        template: str,
        variables: Mapping[str, Any],
        eos: frozenset[int],
        special: frozenset[int],
    ) -> None:
        self.hf, self.template, self.variables, self.eos, self.special = hf, template, variables, eos, special
        self._rendered: dict[str, str | None] = {}

    def render(self, messages: Sequence[Message], tools: Any, *, prompted: bool) -> str | None:
        key = json.dumps([messages, tools, prompted])
        if key not in self._rendered:
            self._rendered[key] = self._render(messages, tools, prompted=prompted)
        return self._rendered[key]

    def _render(self, messages: Sequence[Message], tools: Any, *, prompted: bool) -> str | None:
        try:
            with mock.patch("transformers.utils.chat_template_utils.datetime", _Clock):
                return str(
                    self.hf.apply_chat_template(
                        copy.deepcopy(list(messages)),
                        tools=copy.deepcopy(tools),
                        chat_template=self.template,
                        tokenize=False,
                        add_generation_prompt=prompted,
                        **self.variables,
                    )
                )
        except Exception:  # noqa: BLE001  templates fail in many ways
            return None

    def answers(
        self, messages: Sequence[Message], tools: Any, *, prompted: bool
    ) -> dict[int, Expected | str]:
        """By message: its tokens, or why the renderings do not tell."""
        whole = self.render(messages, tools, prompted=prompted)
        if whole is None:
            return {}
        encoded = self.hf(whole, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        words = _places(messages, whole)
        found: dict[int, Expected | str] = {}
        last = -1
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            answer = self._answer(messages, tools, i, whole, ids, offsets, words)
            if isinstance(answer, Expected):
                if isinstance(before := found.get(last), Expected):
                    answer = answer._replace(low=max(answer.low, before.latest))
                    found[last] = before._replace(high=min(before.high, answer.start))
                last = i
            found[i] = answer
        return found

    def _answer(
        self,
        messages: Sequence[Message],
        tools: Any,
        i: int,
        whole: str,
        ids: list[int],
        offsets: list[tuple[int, int]],
        words: list[tuple[int, int] | None],
    ) -> Expected | str:
        mine = words[i]
        others = [place for j, place in enumerate(words) if place and j != i]
        before = [place for place in words[:i] if place]
        floor = max(
            (stop for _, stop in (before if mine is None else others) if not mine or stop <= mine[0]),
            default=0,
        )
        ceiling = min(
            (start for start, _ in others if start >= (floor if mine is None else mine[1])),
            default=len(whole),
        )
        prompt = self.render(messages[:i], tools, prompted=True)
        if prompt is not None and whole.startswith(prompt):
            begin = len(prompt)
            without = self.render(messages[:i], tools, prompted=False) or ""
            prints_none = not self._behind_end(prompt[_common(prompt, without) :]).strip()
            header = self._supplied().lstrip()  # some print no prompt behind a system message or an answer
            opening = len(whole) - len(whole[begin:].lstrip())
            if prints_none and header and whole.startswith(header, opening):
                begin = opening + len(header)
            elif (
                i
                and messages[i - 1]["role"] == "assistant"
                and mine
                and self._ends_turn(whole[begin : mine[0]])
            ):
                return "behind an answer no prompt is printed"
        elif mine is None:
            return "no words, and the prompt is no prefix"
        else:
            opened = self._opened(messages[:i], tools, prompt, whole[floor : mine[1]], mine[0] - floor)
            if isinstance(opened, str):
                return opened
            begin = floor + opened
        if mine is None or begin < floor:
            floor = begin
        last = begin if mine is None else max(mine[1], begin)
        with_answer = self.render(messages[: i + 1], tools, prompted=False)
        boundary = ceiling
        if with_answer is not None:
            common = _common(with_answer, whole)
            if last <= common <= ceiling:
                boundary = common
        tokens = range(len(ids))
        start = next((k for k in tokens if offsets[k][0] >= begin and offsets[k][1] > begin), len(ids))
        straddling = next((start for start, end in offsets if start < last < end), last)
        if mine and not any(map(str.isalnum, whole[straddling:last])):
            last = straddling  # a full stop may be one token with what the template prints behind it
        behind = [k for k in tokens if k >= start and last <= offsets[k][0] < boundary]
        up_to_next = (k for k in tokens if k >= start and last <= offsets[k][0] < ceiling)
        stop = next((k for k in up_to_next if ids[k] in self.eos), None)
        if stop is None:
            controls = [k for k in behind if ids[k] in self.special]
            if controls and with_answer is not None and whole.startswith(with_answer):
                stop = controls[-1]
        if offsets and (held := [k for k in tokens if offsets[k][0] < last and offsets[k][1] > ceiling]):
            last = offsets[held[0]][0]  # a token with words of the next message
        ends = max(behind, default=max((k for k in tokens if offsets[k][0] < last), default=-1)) + 1
        return Expected(
            low=next((k for k in tokens if offsets[k][0] >= floor), len(ids)),
            start=start,
            stop=max(start, (next((k for k in tokens if offsets[k][0] >= last), len(ids))))
            if stop is None
            else stop + 1,
            latest=max(start, ends) if stop is None else stop + 1,
            high=next((k for k in tokens if offsets[k][0] >= ceiling), len(ids)),
        )

    def _opened(
        self, before: Sequence[Message], tools: Any, prompt: str | None, region: str, body: int
    ) -> int | str:
        """How much of a region the prompt supplies, where the whole is no continuation of the prompt."""
        if prompt is None:
            return self._like_another(before, tools, region, body)
        without = self.render(before, tools, prompted=False) or ""
        supplied = prompt[_common(prompt, without) :]
        if not supplied:  # it is printed either way: all that follows the last words
            places = [place for place in _places(before, prompt) if place]
            behind = prompt[max((stop for _, stop in places), default=0) :]
            if not places:
                return "no prompt is in front of it"
            if region.startswith(behind):
                if self._ends_turn(region[len(behind) : body]):
                    return "no prompt is in front of it"
                header = self._supplied().lstrip()
                return len(behind) + (len(header) if region.startswith(header, len(behind)) else 0)
            supplied = behind
        for text in (supplied, supplied.lstrip()):
            if text.strip() and (at := region.rfind(text, 0, body + len(text) - 1)) >= 0:
                return at + len(text)
        if region[body:].startswith("<"):
            return "a think tag may be of the template or of the message"
        wanted = self.hf(supplied.lstrip(), add_special_tokens=False)["input_ids"]
        encoded = self.hf(region, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        best, stop, rest = 0, 0, ""
        for k in range(len(ids)):
            n = 0
            while (
                k + n < len(ids) and n < len(wanted) and ids[k + n] == wanted[n] and offsets[k + n][1] <= body
            ):
                n += 1
            # Of a prompt with control tokens, the dot before them says nothing.
            matched = self.special.isdisjoint(wanted) or not self.special.isdisjoint(ids[k : k + n])
            opened = region[offsets[k][0] : offsets[k + n - 1][1]] if n else ""
            if n > best and matched and opened.strip():
                best, stop, rest = n, offsets[k + n - 1][1], supplied.lstrip()[len(opened) :]
        if best:
            for token_id, (start, end) in zip(ids, offsets, strict=True):  # control tokens that both have
                if token_id in self.special and token_id in wanted[best:] and stop <= start and end <= body:
                    stop = end + _common(rest.rpartition(region[start:end])[2], region[end:])
                    rest = rest.rpartition(region[start:end])[2]
            blank = len(rest) - len(rest.lstrip())
            return stop + _common(rest[:blank], region[stop:])
        return self._like_another(before, tools, region, body)

    def _ends_turn(self, text: str) -> bool:
        return any(each in self.eos for each in self.hf(text, add_special_tokens=False)["input_ids"])

    def _behind_end(self, supplied: str) -> str:
        """What a prompt has behind the end of the turn before it, which some templates print with it."""
        encoded = self.hf(supplied, add_special_tokens=False, return_offsets_mapping=True)
        ends = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        return supplied[next((stop for token_id, (_, stop) in ends if token_id in self.eos), 0) :]

    def _supplied(self) -> str:
        """The prompt behind a plain question."""
        question = [{"role": "user", "content": "Wherefore"}]
        prompt, without = (self.render(question, None, prompted=wanted) for wanted in (True, False))
        if prompt is None or without is None:
            return ""
        supplied = prompt[_common(prompt, without) :]
        behind = self._behind_end(supplied)
        supplied = behind if behind.strip() else supplied
        return supplied if supplied.strip() else ""

    def _like_another(self, before: Sequence[Message], tools: Any, region: str, body: int) -> int | str:
        """The same by the prompt behind a plain question."""
        question = [{"role": "user", "content": "Wherefore"}]
        prompt, without = (self.render(question, tools, prompted=wanted) for wanted in (True, False))
        if prompt is None or without is None:
            return "the template takes no question"
        supplied = prompt[_common(prompt, without) :]
        if supplied.strip() and (at := region.rfind(supplied, 0, body + len(supplied) - 1)) >= 0:
            return at + len(supplied)
        if not supplied and not region[:body].strip():
            return body
        return "no prompt is in front of it"


def differences(expected: Expected, mask: Sequence[int]) -> list[str]:
    """In what a mask differs from the tokens of an answer."""
    found = []
    if any(mask[k] == 1 for k in range(expected.low, min(expected.start, expected.high))):
        found.append("header sampled")
    if any(mask[k] != 1 for k in range(expected.start, expected.stop)):
        first = next(k for k in range(expected.start, expected.stop) if mask[k] != 1)
        found.append("stop lost" if first == expected.stop - 1 else "answer not sampled")
    if any(mask[k] == 1 for k in range(expected.latest, expected.high)):
        found.append("sampled behind the stop")
    return found


def _places(messages: Sequence[Message], whole: str) -> list[tuple[int, int] | None]:
    """Where the words of each message lie."""
    places: list[tuple[int, int] | None] = []
    for message in messages:
        found = [(at, at + len(text)) for text in _words(message) if (at := whole.find(text)) >= 0]
        content = message.get("content")
        if found and isinstance(content, str) and (word := next(_words({"content": content}), "")):
            ahead = content[: content.find(word)]  # such as a think tag
            at = whole.find(word) - len(ahead)
            if ahead.strip() and at >= 0 and whole.startswith(ahead, at):
                found.append((at, at))
            *_, last = _words({"content": content})
            behind = content[content.rfind(last) + len(last) :].rstrip()  # such as a full stop
            end = whole.find(last) + len(last)
            if behind and end >= len(last) and whole.startswith(behind, end):
                found.append((end, end + len(behind)))
        places.append((min(a for a, _ in found), max(b for _, b in found)) if found else None)
    return places


def _words(message: Message) -> Iterator[str]:
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
    texts.append(message.get("reasoning_content") or "")
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        texts += (
            [value for value in arguments.values() if isinstance(value, str)]
            if isinstance(arguments, dict)
            else []
        )
        texts.append(call["function"]["name"] if call["function"]["name"] != "f" else "")
    # Templates strip, split at think tags and escape: a run of letters stays what it is.
    for text in texts:
        for is_word, letters in itertools.groupby(text, key=str.isalnum):
            word = "".join(letters)
            if is_word and len(word) >= 6:
                yield word


def _common(left: str, right: str) -> int:
    n = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        n += 1
    return n
