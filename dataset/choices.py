"""Closed sets of strings that several rooms and the command line share; importing them costs nothing."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from tokscore.dataset.errors import UsageError

Choice = TypeVar("Choice", bound=StrEnum)


def choose(choices: type[Choice], value: str, name: str) -> Choice:
    """The member of `choices` called `value`.

    Args:
        choices: All that may be chosen.
        value: A member, or its text.
        name: Of the setting, for the message.

    Raises:
        UsageError: There is no such member.
    """
    try:
        return choices(value)
    except ValueError:
        raise UsageError(f"`{name}` is {value!r}; expected {', '.join(choices)}.") from None


class OnError(StrEnum):
    """The effect of one bad conversation on a run."""

    FAIL = "fail"  # ends it
    SKIP = "skip"  # is listed in errors/


class Executor(StrEnum):
    """Where the parts of a run are worked on."""

    LOCAL = "local"  # processes of this machine
    RAY = "ray"  # actors of a Ray cluster
    SLURM = "slurm"  # tasks of a job array


class Align(StrEnum):
    """Which tokens of a conversation are compared."""

    TOKENS = "tokens"
    CONTENT = "content"
    TEXT = "text"


class Sampler(StrEnum):
    """The model that sampled the tokens."""

    TEACHER = "teacher"
    STUDENT = "student"


class RecordedAgainst(StrEnum):
    """Whose logprobs those that an input carried are held against."""

    SCORED = "scored"  # of the model that scored the dataset
    TRAINER = "trainer"  # that the input carried too


class GroupBy(StrEnum):
    """Properties of tokens that make groups; `metadata.X` of the conversation does too."""

    ROLE = "role"
    MESSAGE_INDEX = "message_index"
    BRANCH = "branch"
    SOURCE = "source"
    IS_CONTENT = "is_content"
    IS_SAMPLED = "is_sampled"
    POSITION = "position"
    POSITION_IN_MESSAGE = "position_in_message"  # in bins that double
    ANSWER_POSITION = "answer_position"  # likewise
    CONVERSATION_ID = "conversation_id"


class SummaryForm(StrEnum):
    """A short table of two models over the whole vocabulary, in the terms of another tool."""

    LLAMA = "llama"  # llama.cpp's perplexity tool with --kl-divergence


class Metric(StrEnum):
    """The values that a token strip shows."""

    LOGPROB = "logprob"
    RANK = "rank"
    ENTROPY = "entropy"
    GJS = "gjs"
    KL = "kl"
    DELTA = "delta"
    RECORDED = "recorded"


class LimitCount(StrEnum):
    """How tokens that branches share are counted."""

    UNIQUE = "unique"  # once
    BRANCHES = "branches"  # once a branch, as older trainers did


class MessageForm(StrEnum):
    """How messages are shown to a template."""

    AUTO = "auto"  # as they are, as servers do where the template refuses them or a server recorded them
    SERVER = "server"  # as servers do
    AS_IS = "as-is"  # as they are


class Targets(StrEnum):
    """Which targets a file has.

    Attributes:
        LABELS: Ids alone.
        TOPK: Also the logprobs of the teacher, and its most likely ids.
        ADVANTAGES: Also log p of the teacher less log q of the student, and both.
    """

    LABELS = "labels"
    TOPK = "topk"
    ADVANTAGES = "advantages"


class Weighting(StrEnum):
    """What the weights of a conversation add up to.

    Attributes:
        TOKENS: The number of its targets: every token counts alike.
        CONVERSATIONS: One: every conversation counts alike.
    """

    TOKENS = "tokens"
    CONVERSATIONS = "conversations"


class TokenizerLibrary(StrEnum):
    """The library that makes ids of texts; they are the same with each."""

    AUTO = "auto"  # fastokens for long inputs, where it is proven to give the same ids
    FASTOKENS = "fastokens"
    TOKENIZERS = "tokenizers"
