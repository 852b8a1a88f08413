"""Columns of training targets, one list a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokscore.analytics.divergence.advantages import token_advantages
from tokscore.dataset.choices import Targets, Weighting
from tokscore.dataset.errors import InputError
from tokscore.dataset.token_rows import Place, conversation_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

IGNORED = -100
NO_ID = -1


class Counts(NamedTuple):
    """What was written.

    Attributes:
        n_conversations: Rows, one a conversation (or branch).
        n_tokens: Ids.
        n_targets: Those with a label.
        n_unknown: Tokens of which it cannot be told whether a model generated them; no targets.
        n_unscored: Targets without a logprob, whose weight is 0.
    """

    n_conversations: int = 0
    n_tokens: int = 0
    n_targets: int = 0
    n_unknown: int = 0
    n_unscored: int = 0

    def __add__(self, other: object) -> Counts:
        assert isinstance(other, Counts)
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


def _field(name: str, dtype: pa.DataType, description: str, unit: str = "") -> pa.Field:
    metadata = {"description": description} | ({"unit": unit} if unit else {})
    return pa.field(name, dtype, nullable=False, metadata=metadata)


def target_schema(targets: Targets) -> pa.Schema:
    """The columns of a file; lists have an entry for each token, at the place of the token itself."""
    int32, float32 = pa.int32(), pa.float32()
    fields = [
        _field("conversation_id", pa.string(), "Of the conversation."),
        _field("branch", int32, "Branch of the record, from 0."),
        _field("input_ids", pa.list_(int32), "Ids of its tokens."),
        _field("labels", pa.list_(int32), f"The same where a model generated it, {IGNORED} elsewhere."),
        _field("weights", pa.list_(float32), "Weight in the loss; 0 where there is no target."),
    ]
    if targets is not Targets.LABELS:
        fields.append(
            _field("logprobs", pa.list_(float32), "ln p of the teacher; 0 where weights is.", "nats")
        )
    if targets is Targets.TOPK:
        fields += [
            _field(
                "top_ids",
                pa.list_(pa.list_(int32)),
                f"The teacher's k most likely ids in the place of the token; {NO_ID} where there are none.",
            ),
            _field(
                "top_logprobs",
                pa.list_(pa.list_(float32)),
                "Their logprobs; -inf for no id.",
                "nats",
            ),
        ]
    if targets is Targets.ADVANTAGES:
        fields += [
            _field("student_logprobs", pa.list_(float32), "ln q of the student; 0 where weights is.", "nats"),
            _field("advantages", pa.list_(float32), "ln p - ln q; 0 where weights is.", "nats"),
        ]
    return pa.schema(fields)


def columns_of(targets: Targets) -> list[str]:
    """Token columns that the targets are made of."""
    scores = {
        Targets.LABELS: [],
        Targets.TOPK: ["logprob", "top_ids", "top_logprobs"],
        Targets.ADVANTAGES: ["logprob"],
    }
    return ["position", "token_id", "is_sampled", "role", *scores[targets]]


def target_table(
    targets: Targets,
    places: Sequence[Place],
    starts: NDArray[np.int64],
    rows: pa.Table,
    student: pa.Table | None = None,
    *,
    top_k: int = 0,
    role: str | None = None,
    weighting: Weighting = Weighting.TOKENS,
) -> tuple[pa.Table, Counts]:
    """A row for each conversation.

    Args:
        targets: Which columns.
        places: The conversations.
        starts: First row of each, and the number of all rows.
        rows: Their token rows, with `columns_of`.
        student: For advantages, the same tokens with the student's logprobs.
        top_k: Length of the lists.
        role: Only tokens of this role are targets.
        weighting: What weights add up to.

    Raises:
        InputError: An advantage is infinite.
    """
    sampled = rows["is_sampled"]
    is_target = pc.fill_null(sampled, False).to_numpy()
    if role is not None:
        is_target = is_target & pc.fill_null(pc.equal(rows["role"], role), False).to_numpy()
    token_ids = rows["token_id"].to_numpy()
    values: dict[str, pa.Array | NDArray[np.generic]] = {
        "input_ids": token_ids,
        "labels": np.where(is_target, token_ids, np.int32(IGNORED)),
    }
    is_used = is_target
    sides = {"logprobs": rows} | ({} if student is None else {"student_logprobs": student})
    logprobs: list[NDArray[np.float32]] = []
    if targets is not Targets.LABELS:
        for table in sides.values():
            is_used = is_used & table["logprob"].is_valid().to_numpy()
        for name, table in sides.items():
            found = pc.fill_null(table["logprob"], 0.0).to_numpy()
            logprobs.append(np.where(is_used, found, np.float32(0)))
            values[name] = logprobs[-1]
    if targets is Targets.TOPK:
        for name, empty in (("top_ids", np.int32(NO_ID)), ("top_logprobs", np.float32(-np.inf))):
            values[name] = _lists(rows[name], is_used, top_k, empty)
    if student is not None:
        values["advantages"] = _advantages(places, starts, logprobs[0], logprobs[1], is_used)
    values["weights"] = _weights(starts, is_used, weighting)
    schema = target_schema(targets)
    offsets = pa.array(starts.astype(np.int32))
    columns = {
        "conversation_id": pa.array([place.conversation_id for place in places], pa.string()),
        "branch": pa.array([place.branch for place in places], pa.int32()),
        **{
            name: pa.ListArray.from_arrays(offsets, pa.array(found).cast(schema.field(name).type.value_type))
            for name, found in values.items()
        },
    }
    n_targets, n_used = int(is_target.sum()), int(is_used.sum())
    counts = Counts(len(places), len(token_ids), n_targets, sampled.null_count, n_targets - n_used)
    return pa.table(columns, schema=schema), counts


def _lists(
    column: pa.ChunkedArray, is_used: NDArray[np.bool_], top_k: int, empty: np.int32 | np.float32
) -> pa.Array:
    """Lists of `top_k` entries, the first of each row; `empty` where there are fewer."""
    array = column.combine_chunks()
    found = array.values.to_numpy()
    starts, stops = array.offsets.to_numpy()[:-1], array.offsets.to_numpy()[1:]
    filled = np.full((len(array), top_k), empty)
    lengths = np.where(is_used, np.minimum(stops - starts, top_k), 0)
    rank = np.arange(top_k)
    is_there = rank < lengths[:, None]
    filled[is_there] = found[(starts[:, None] + rank)[is_there]]
    offsets = pa.array(np.arange(0, filled.size + 1, max(top_k, 1), dtype=np.int32)[: len(array) + 1])
    return pa.ListArray.from_arrays(offsets, pa.array(filled.ravel()))


def _advantages(
    places: Sequence[Place],
    starts: NDArray[np.int64],
    teacher: NDArray[np.float32],
    student: NDArray[np.float32],
    is_used: NDArray[np.bool_],
) -> NDArray[np.float32]:
    found = token_advantages(teacher, student)
    infinite = np.flatnonzero(~np.isfinite(found) & is_used)
    if len(infinite):
        row = int(infinite[0])
        place = int(np.searchsorted(starts, row, side="right")) - 1
        raise InputError(
            f"{conversation_name(*places[place].key)}, position {row - starts[place]}: its advantage is "
            f"{found[row]:g}, since a model rules the token out; expected a finite number."
        )
    return np.where(is_used, found, 0.0).astype(np.float32)


def _weights(
    starts: NDArray[np.int64], is_used: NDArray[np.bool_], weighting: Weighting
) -> NDArray[np.float32]:
    weights = is_used.astype(np.float32)
    if weighting is Weighting.CONVERSATIONS:
        counts = np.add.reduceat(np.append(is_used, False).astype(np.int64), starts[:-1])
        counts[np.diff(starts) == 0] = 0
        weights /= np.maximum(np.repeat(counts, np.diff(starts)), 1)
    return weights
