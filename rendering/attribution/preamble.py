"""Text of no message that a template prints while it goes through the messages.

That is the generation prompt behind the last message, and what precedes the opener of the first: a default
system prompt, the tool list. BOS alone stays with the first message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokscore.dataset.tokens import NO_MESSAGE
from tokscore.rendering.attribution.owners import RunTable
from tokscore.rendering.attribution.prompts import Prompts


def without_owner(
    text: str,
    runs: RunTable,
    roles: Sequence[str],
    prompts: Prompts,
    *,
    bos: str,
    has_generation_prompt: bool,
) -> RunTable:
    """The runs, where preamble and generation prompt have neither owner nor writer.

    Args:
        text: The rendered text.
        runs: Its runs.
        roles: Role of every message.
        prompts: What the template prints before an answer.
        bos: What begins every text, "" without.
        has_generation_prompt: The text ends with the opener of the next answer.
    """
    n = len(runs.starts)
    if n and has_generation_prompt and runs.writer[-1] != NO_MESSAGE:
        for prompt in prompts.before(roles[-1]):
            start = len(text) - len(prompt.text)
            if text.endswith(prompt.text) and (runs.input_of[runs.stops > start] == NO_MESSAGE).all():
                runs = _disowned(runs, start, len(text))
                break
    opener = prompts.openers.get(roles[0], "")
    if opener.strip():
        first = int((runs.writer == 0).argmax())
        body = int((runs.input_of == 0).argmax())
        stop = int(runs.starts[body]) - len(opener) if len(runs.starts) else 0
        if (
            first < body
            and runs.writer[first] == 0
            and runs.input_of[body] == 0
            and runs.starts[first] < stop
            and text.startswith(opener, stop)
            and text[runs.starts[first] : stop].strip() != bos
        ):
            runs = _disowned(runs, int(runs.starts[first]), stop)
    return runs


def _disowned(runs: RunTable, start: int, stop: int) -> RunTable:
    """The runs, of which those from character `start` to `stop` are of no message."""
    cuts = np.array(
        [cut for cut in (start, stop) if cut not in runs.starts and cut < runs.stops[-1]], np.int64
    )
    starts = np.sort(np.concatenate([runs.starts, cuts]))
    held_by = np.searchsorted(runs.starts, starts, side="right") - 1
    inside = (starts >= start) & (starts < stop)
    return runs._replace(
        starts=starts,
        stops=np.concatenate([starts[1:], runs.stops[-1:]]),
        owner=np.where(inside, np.int32(NO_MESSAGE), runs.owner[held_by]),
        writer=np.where(inside, np.int32(NO_MESSAGE), runs.writer[held_by]),
        input_of=runs.input_of[held_by],
        is_body=runs.is_body[held_by],
        is_generated=runs.is_generated[held_by],
        source_codes=runs.source_codes[held_by],
    )
