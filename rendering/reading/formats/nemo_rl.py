"""`nemo-rl`: train_data_stepN.jsonl of NeMo RL, one sample of a batch a line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tokscore.dataset.errors import ConversationError, counted
from tokscore.rendering.conversations.trace import IdPlace, NodeTokens, Trace
from tokscore.rendering.conversations.values import kind_of
from tokscore.rendering.reading.fields.mask_nodes import mask_nodes
from tokscore.rendering.reading.fields.values import flag_array, id_array, logprob_array, metadata_text
from tokscore.rendering.reading.formats.format import Format, Place

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP = re.compile(r"train_data_step(\d+)")
_METADATA = (
    "rewards",
    "filtered_rewards",
    "advantages",
    "sample_loss_mask",
    "agent_ref",
    "idx",
)


def _matches(record: Mapping[str, Any]) -> bool:
    return all(isinstance(record.get(key), list) for key in ("token_ids", "token_loss_mask"))


def _parse(record: Mapping[str, Any], place: Place) -> Trace:
    ids = _sample(record, "token_ids", "a list of token ids")
    n = _length(record, len(ids))
    token_ids = id_array(ids[:n], "$.token_ids[0]")
    if not n:
        raise ConversationError("is empty; expected at least one token id.", path="$.token_ids[0]")
    mask = _sample(record, "token_loss_mask", "a list of 1 and 0")
    _check_length(mask, ids, "$.token_loss_mask[0]")
    sampled = flag_array(
        [int(flag) if flag in (0, 1) else flag for flag in mask[:n]], n, "$.token_loss_mask[0]"
    )
    tokens = NodeTokens(
        token_ids,
        sampled.astype(np.int8),
        logprobs=_logprobs(record, "generation_logprobs", ids, sampled),
        places=(IdPlace("$.token_ids[0]", 0, n),),
        trainer_logprobs=_logprobs(record, "prev_logprobs", ids, sampled),
    )
    step = _STEP.fullmatch(place.path.name.partition(".")[0])
    metadata = metadata_text(record, _METADATA, step=int(step[1]) if step else None)
    return Trace(mask_nodes(tokens, None), metadata=metadata)


def _sample(record: Mapping[str, Any], key: str, words: str) -> Sequence[Any]:
    """The values of the one sample of the line: the logger writes batches of one."""
    given = record.get(key)
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list):
        found: list[Any] = given[0]
        return found
    if isinstance(given, list) and not any(isinstance(each, list) for each in given):
        return given
    found_words = f"a list of {len(given)}" if isinstance(given, list) else kind_of(given)
    raise ConversationError(f"is {found_words}; expected {words}, inside a list of one.", path=f"$.{key}")


def _length(record: Mapping[str, Any], n_ids: int) -> int:
    """Ids without the padding behind them."""
    given = record.get("input_lengths")
    length = given[0] if isinstance(given, list) and len(given) == 1 else given
    if length is None:
        return n_ids
    if type(length) is not int or not 0 <= length <= n_ids:
        raise ConversationError(
            f"is {length!r}; expected a whole number of at most {n_ids}, the token ids.",
            path="$.input_lengths",
        )
    return length


def _check_length(values: Sequence[Any], ids: Sequence[Any], path: str) -> None:
    if len(values) != len(ids):
        raise ConversationError(
            f"has {counted(len(values), 'value')} for {counted(len(ids), 'token id')}.", path=path
        )


def _logprobs(
    record: Mapping[str, Any], key: str, ids: Sequence[Any], sampled: NDArray[np.bool_]
) -> NDArray[np.float32] | None:
    if record.get(key) is None:
        return None
    path = f"$.{key}[0]"
    given = _sample(record, key, "a list of numbers")
    _check_length(given, ids, path)
    values = logprob_array(given[: len(sampled)], path)
    # The logger fills what no model sampled with zeros.
    values[~sampled & (values == 0)] = np.nan
    return values


FORMAT = Format(
    name="nemo-rl",
    fields="token_ids[[…]], token_loss_mask, input_lengths, generation_logprobs, prev_logprobs, advantages, "
    "rewards, sample_loss_mask, idx, each a batch of one sample; the padding behind input_lengths is cut off",
    has_logprobs=True,
    has_branches=False,
    example='{"idx": 0, "rewards": [1.0], "input_lengths": [13], '
    '"token_ids": [[1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198, 19556, 17, 2]], '
    '"token_loss_mask": [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]], '
    '"generation_logprobs": [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.5, -0.25, -0.125]]}',
    matches=_matches,
    parse=_parse,
    is_served=True,
    holds_ids=_matches,
    token_id_keys=frozenset({"token_ids"}),
)
