"""The table that a comparison by text writes: one row a span."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tokscore.analytics.aligned_text.spans import SideSpans, SpanBatch
from tokscore.analytics.comparison.tables import named_field
from tokscore.dataset.schema import TOKENS

SPANS_NAME = "spans.parquet"
_INT32, _FLOAT64 = pa.int32(), pa.float64()

# One row a span of text that both sides tokenize into whole tokens.
SPAN_SCHEMA = pa.schema(
    [
        *(TOKENS.field(name) for name in ("conversation_id", "branch", "message_index", "role", "source")),
        named_field("teacher_start", _INT32, "Position of the teacher's first token.", "tokens"),
        named_field("teacher_stop", _INT32, "Position behind its last one.", "tokens"),
        named_field("student_start", _INT32, "Position of the student's first token.", "tokens"),
        named_field("student_stop", _INT32, "Position behind its last one.", "tokens"),
        named_field("n_teacher_tokens", _INT32, "The teacher's tokens of the text.", "tokens"),
        named_field("n_student_tokens", _INT32, "The student's.", "tokens"),
        named_field("n_characters", _INT32, "Characters of the text.", "characters"),
        named_field("n_bytes", _INT32, "Its bytes in UTF-8.", "bytes"),
        named_field(
            "teacher_logprob",
            _FLOAT64,
            "Sum of the teacher's logprobs of its tokens; null where one has none.",
            "nats",
            nullable=True,
        ),
        named_field("student_logprob", _FLOAT64, "The student's.", "nats", nullable=True),
        named_field(
            "log_ratio",
            _FLOAT64,
            "Teacher's less student's logprob; null with either.",
            "nats",
            nullable=True,
        ),
    ]
)


def span_table(spans: SpanBatch) -> pa.Table:
    """A row for each span, scored or not, schema `SPAN_SCHEMA`."""
    batch, conversations = spans.batch, spans.conversations
    keys = [place.key for place in batch.places]
    columns: dict[str, Any] = {  # Any: arrays
        "conversation_id": pa.array([key[0] for key in keys], pa.string()).take(pa.array(conversations)),
        "branch": pa.array(np.array([key[1] for key in keys], np.int32)[conversations]),
    }
    for name in ("message_index", "role", "source"):
        column = batch.teacher[name].take(pa.array(spans.teacher.first))
        is_coded = pa.types.is_dictionary(column.type)
        columns[name] = column.cast(column.type.value_type) if is_coded else column
    columns |= _places("teacher", spans.teacher, batch.starts[conversations])
    columns |= _places("student", spans.student, batch.student_starts[conversations])
    columns |= {"n_characters": spans.n_characters, "n_bytes": spans.n_bytes}
    for name, values in (
        ("teacher_logprob", spans.teacher.logprobs),
        ("student_logprob", spans.student.logprobs),
    ):
        columns[name] = pa.array(values, mask=np.isnan(values))
    columns["log_ratio"] = pa.array(spans.log_ratios, mask=~spans.is_scored)
    return pa.table(
        {name: _as_type(columns[name], SPAN_SCHEMA.field(name).type) for name in SPAN_SCHEMA.names},
        schema=SPAN_SCHEMA,
    )


def _places(side: str, spans: SideSpans, starts: Any) -> dict[str, Any]:  # Any: arrays
    return {
        f"{side}_start": spans.first - starts,
        f"{side}_stop": spans.last + 1 - starts,
        f"n_{side}_tokens": spans.n_tokens,
    }


def _as_type(column: Any, dtype: pa.DataType) -> Any:  # Any: arrays
    return pa.array(column.astype(np.int32), dtype) if isinstance(column, np.ndarray) else column
