"""The table with a row per token of `diff --recorded -o`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tokscore.analytics.comparison.tables import named_field
from tokscore.analytics.groups.grouping import Grouping
from tokscore.analytics.recorded.pairs import Pairs
from tokscore.dataset.choices import RecordedAgainst
from tokscore.dataset.schema import TOKENS

_WHOSE = {RecordedAgainst.SCORED: "the model that scored", RecordedAgainst.TRAINER: "the trainer"}


def token_schema(by: Grouping, against: RecordedAgainst) -> pa.Schema:
    """The columns of `token_table`: whose token it is, the columns of `by`, and both logprobs."""
    names = dict.fromkeys(
        ["conversation_id", "branch", "position", "token_id", "is_sampled", *by.token_columns]
    )
    return pa.schema(
        [
            *(TOKENS.field(name) for name in names),
            named_field("recorded_logprob", pa.float64(), "Logprob as the input said.", "nats"),
            named_field(f"{against}_logprob", pa.float64(), f"Logprob of {_WHOSE[against]}.", "nats"),
            named_field("log_ratio", pa.float64(), "The second less the first.", "nats"),
        ]
    )


def token_table(pairs: Pairs, by: Grouping, against: RecordedAgainst) -> pa.Table:
    """A row for each token with both logprobs, schema `token_schema`."""
    schema = token_schema(by, against)
    conversations = np.searchsorted(pairs.starts, pairs.rows, side="right") - 1
    keys = [place.key for place in pairs.places]
    columns: dict[str, Any] = {  # Any: arrays of several types
        "conversation_id": pa.array([key[0] for key in keys], pa.string()).take(pa.array(conversations)),
        "branch": pa.array(np.array([key[1] for key in keys], np.int32)[conversations]),
        "position": pa.array((pairs.rows - pairs.starts[conversations]).astype(np.int32)),
        "recorded_logprob": pairs.recorded,
        f"{against}_logprob": pairs.other,
        "log_ratio": pairs.other - pairs.recorded,
    }
    for name in schema.names:
        if name not in columns:
            columns[name] = pairs.table[name].take(pa.array(pairs.rows)).cast(schema.field(name).type)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)
