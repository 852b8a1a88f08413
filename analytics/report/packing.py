"""A conversation as compact JSON that the page decodes when it is opened.

Its numbers travel as one compressed block: columns one after the other, each as planes of bytes (all lowest
bytes, then all second ones, and so on), which compress better than numbers do. Floats keep 12 bits behind the
point, four digits; limits are rounded outwards, so that intervals still contain the value.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.divergence.topk import PADDING, FloatArray
from tokscore.analytics.report.conversation.scored import ModelScores, ScoredConversation
from tokscore.dataset.tokens import run_starts

_DROPPED_BITS = 12
_KEPT_MASS = 0.99
_KEPT_IDS = 8


class Packed(NamedTuple):
    """One conversation for the page.

    Attributes:
        json: Text for a script element; holds no "<".
        token_ids: Ids whose text the page needs, int64.
    """

    json: str
    token_ids: NDArray[np.int64]


def script_json(value: object) -> str:
    """JSON that may stand inside a script element: "<" can begin no tag in it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def pack(conversation: ScoredConversation) -> Packed:
    """The conversation for the page."""
    # Runs of tokens with one message, source and flags.
    starts = run_starts(
        conversation.message_indices, conversation.source_codes, conversation.is_content, conversation.sampled
    )
    runs = [
        starts.tolist(),
        conversation.message_indices[starts].tolist(),
        conversation.source_codes[starts].tolist(),
        conversation.is_content[starts].astype(int).tolist(),
        conversation.sampled[starts].tolist(),
    ]
    listed = _listed_ids(conversation)
    columns = _columns(conversation) | _list_columns(conversation, listed)
    block = b"".join(_planes(column) for column in columns.values())
    value = {
        "id": conversation.conversation_id,
        "branch": conversation.branch,
        "place": f"{conversation.source_file}:{conversation.source_line}",
        "status": conversation.status,
        "messages": [message._asdict() for message in conversation.messages],
        "sources": conversation.sources,
        "runs": runs,
        "columns": [[name, column.dtype.str[1:], len(column)] for name, column in columns.items()],
        "block": base64.b64encode(zlib.compress(block, 6)).decode(),
    }
    ids = np.concatenate([conversation.token_ids, listed[listed != PADDING]])
    return Packed(script_json(value), np.unique(ids).astype(np.int64))


def _columns(conversation: ScoredConversation) -> dict[str, NDArray[np.generic]]:
    teacher, student, gjs = conversation.teacher, conversation.student, conversation.gjs
    columns: dict[str, NDArray[np.generic]] = {"ids": conversation.token_ids.astype("<u4")}
    for prefix, side in (("", teacher), ("student_", student)):
        if side is not None:
            columns[f"{prefix}logprob"] = _short(side.logprobs)
            columns[f"{prefix}rank"] = np.nan_to_num(side.ranks).astype("<u4")
            columns[f"{prefix}entropy"] = _short(side.entropies)
            columns[f"{prefix}cap"] = _short_up(_caps(side))
    if conversation.recorded is not None:
        columns["recorded"] = _short(conversation.recorded)
    if gjs is not None:
        columns["gjs_lower"] = _short_down(gjs.lower)
        columns["gjs_upper"] = _short_up(gjs.upper)
    if conversation.exact is not None:
        columns["kl"] = _short(conversation.exact["kl_teacher_student"])
    return columns


def _caps(side: ModelScores) -> FloatArray:
    """Logprob of the least likely id of each list; none outside is more likely. NaN without a list."""
    least = np.where(side.top_ids == PADDING, np.inf, side.top_logprobs).min(axis=1, initial=np.inf)
    return np.where(np.isinf(least), np.nan, least)


def _listed_ids(conversation: ScoredConversation) -> NDArray[np.int32]:
    """Ids to show with each token: the realised one and the most likely of both models, each once, or -1."""
    candidates = [conversation.token_ids[:, None]]
    for side in (conversation.teacher, conversation.student):
        if side is not None and side.top_ids.shape[1]:
            ids, logprobs = side.top_ids[:, :_KEPT_IDS], side.top_logprobs[:, :_KEPT_IDS]
            mass = np.where(ids == PADDING, 0.0, np.exp(logprobs.astype(np.float64)))
            before = np.cumsum(mass, axis=1) - mass
            candidates.append(np.where((before < _KEPT_MASS) | (np.arange(ids.shape[1]) < 2), ids, PADDING))
    found = np.sort(np.concatenate(candidates, axis=1), axis=1)
    found[:, 1:][found[:, 1:] == found[:, :-1]] = PADDING
    # Only the realised token stands beside one without lists.
    return found.astype(np.int32)


def _list_columns(
    conversation: ScoredConversation, listed: NDArray[np.int32]
) -> dict[str, NDArray[np.generic]]:
    is_there = listed != PADDING
    columns: dict[str, NDArray[np.generic]] = {
        "n_listed": is_there.sum(axis=1).astype("u1"),
        "listed_ids": listed[is_there].astype("<u4"),
    }
    for prefix, side in (("", conversation.teacher), ("student_", conversation.student)):
        if side is not None:
            values = _logprobs_of(side, listed, conversation.token_ids)
            columns[f"{prefix}listed"] = _short(values[is_there])
    return columns


def _logprobs_of(side: ModelScores, wanted: NDArray[np.int32], token_ids: NDArray[np.int32]) -> FloatArray:
    """Logprob of each wanted id by one model, NaN where its list does not hold it."""
    found = np.full(wanted.shape, np.nan)
    for column in range(side.top_ids.shape[1]):
        at = (wanted == side.top_ids[:, column, None]) & (wanted != PADDING)
        found = np.where(at, side.top_logprobs[:, column, None].astype(np.float64), found)
    is_realised = (wanted == token_ids[:, None]) & ~np.isnan(side.logprobs)[:, None]
    return np.where(is_realised, side.logprobs[:, None], found)


def _short(values: FloatArray) -> NDArray[np.generic]:
    """float32 with its lowest bits rounded away."""
    bits = values.astype("<f4").view("<u4") + np.uint32(1 << (_DROPPED_BITS - 1))
    return _masked(bits)


def _short_down(values: FloatArray) -> NDArray[np.generic]:
    """The same, never above the value; for values of at least 0."""
    near = values.astype("<f4")
    near = np.where(near > values, np.nextafter(near, np.float32(-np.inf)), near).astype("<f4")
    return _masked(near.view("<u4"))


def _short_up(values: FloatArray) -> NDArray[np.generic]:
    """The same, never below the value."""
    near = values.astype("<f4")
    near = np.where(near < values, np.nextafter(near, np.float32(np.inf)), near).astype("<f4")
    away = np.where(near > 0, np.uint32((1 << _DROPPED_BITS) - 1), np.uint32(0))
    return _masked(near.view("<u4") + away)


def _masked(bits: NDArray[np.uint32]) -> NDArray[np.generic]:
    return (bits & ~np.uint32((1 << _DROPPED_BITS) - 1)).astype("<u4").view("<f4")


def _planes(column: NDArray[np.generic]) -> bytes:
    width = column.dtype.itemsize
    return column.view(np.uint8).reshape(-1, width).T.tobytes()
