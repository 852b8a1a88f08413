"""`prime-rl`: token exports of a prime-rl trainer; its rollouts are of the format `verifiers`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tokscore.dataset.errors import ConversationError, counted
from tokscore.rendering.conversations.trace import IdPlace, NodeTokens, Trace
from tokscore.rendering.reading.fields.mask_nodes import mask_nodes
from tokscore.rendering.reading.fields.values import (
    flag_array,
    get,
    id_array,
    logprob_array,
    metadata_text,
    need,
    spread,
)
from tokscore.rendering.reading.formats.format import Format, Place
from tokscore.rendering.reading.formats.verifiers import step_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RANK = re.compile(r"rank_(\d+)")
_METADATA = (
    "sample_id",
    "run_id",
    "env_name",
    "export_step",
    "micro_step",
    "advantages",
    "rewards",
    "temperatures",
    "entropy",
)


def _matches(record: Mapping[str, Any]) -> bool:
    return all(isinstance(record.get(key), list) for key in ("token_ids", "loss_mask"))


def _parse(record: Mapping[str, Any], place: Place) -> Trace:
    token_ids = id_array(need(record, "token_ids", list, "$", "a list of token ids"), "$.token_ids")
    n = len(token_ids)
    if not n:
        raise ConversationError("is empty; expected at least one token id.", path="$.token_ids")
    flags = need(record, "loss_mask", list, "$", "a list of true and false, one a token id")
    mask = flag_array(flags, n, "$.loss_mask")
    tokens = NodeTokens(
        token_ids,
        mask.astype(np.int8),
        logprobs=_logprobs(record, mask),
        places=(IdPlace("$.token_ids", 0, n),),
        trainer_logprobs=_trainer_logprobs(record, n),
    )
    step = get(record, "step", int, "$", "a whole number")
    rank = get(record, "rank", int, "$", "a whole number")
    name = _RANK.fullmatch(place.path.name.partition(".")[0])
    metadata = metadata_text(
        record,
        _METADATA,
        step=step_of(place.path) if step is None else step,
        rank=int(name[1]) if rank is None and name else rank,
    )
    return Trace(mask_nodes(tokens, None), metadata=metadata)


def _logprobs(record: Mapping[str, Any], mask: NDArray[np.bool_]) -> NDArray[np.float32] | None:
    path = "$.inference_logprobs"
    given = get(record, "inference_logprobs", list, "$", "a list of numbers")
    if given is None:
        return None
    if len(given) not in (len(mask), n_sampled := int(mask.sum())):
        raise ConversationError(
            f"has {counted(len(given), 'value')}; expected {len(mask):,}, one a token id, or {n_sampled:,}, "
            "one where loss_mask is true.",
            path=path,
        )
    values = logprob_array(given, path)
    if len(values) < len(mask):
        return spread(values, mask, path)
    # The exporter fills what no model sampled with zeros.
    values[~mask & (values == 0)] = np.nan
    return values


def _trainer_logprobs(record: Mapping[str, Any], n: int) -> NDArray[np.float32] | None:
    path = "$.trainer_logprobs"
    given = get(record, "trainer_logprobs", list, "$", "a list of numbers")
    if given is None:
        return None
    if len(given) != n:
        raise ConversationError(
            f"has {counted(len(given), 'value')}; expected {n:,}, one a token id.", path=path
        )
    values = logprob_array(given, path)
    # Of a packed batch, the first value is that of the end of the sample before.
    values[0] = np.nan
    return values


FORMAT = Format(
    name="prime-rl",
    fields="token_ids, loss_mask, inference_logprobs, trainer_logprobs, advantages, rewards, step, rank",
    has_logprobs=True,
    has_branches=False,
    example='{"step": 3, "rank": 0, '
    '"token_ids": [1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198, 19556, 17, 2], '
    '"loss_mask": [false, false, false, false, false, false, false, false, false, false, true, true, true], '
    '"inference_logprobs": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.5, -0.25, -0.125]}',
    matches=_matches,
    parse=_parse,
    holds_ids=_matches,
    token_id_keys=frozenset({"token_ids"}),
    is_served=True,
)
