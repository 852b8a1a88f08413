"""Values that are possible alone but not together, in datasets without checksums."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.rewriting import rewrite
from tokscore.dataset.errors import InputError
from tokscore.dataset.reading import Dataset
from tokscore.rendering import render

RECORDS = [{"id": name, "messages": [{"role": "user", "content": f"Hi {name}"}]} for name in ("a", "b")]


@pytest.fixture
def root(tiny_model: Path, tmp_path: Path) -> Path:
    render(RECORDS, tiny_model, out=tmp_path / "out")
    return tmp_path / "out"


def change(root: Path, table: str, name: str, values: Callable[[list[object]], list[object]]) -> None:
    path = root / table / "part-00000.parquet"
    found = pq.read_table(path)
    index = found.column_names.index(name)
    field = found.schema.field(index)
    column = pa.array(values(found[name].to_pylist()), field.type)
    rewrite(found.set_column(index, field, column).replace_schema_metadata(found.schema.metadata), path)


def test_messages_have_the_tokens_of_their_conversation(root: Path) -> None:
    change(root, "messages", "n_tokens", lambda values: [values[0], values[1] + 1])  # type: ignore[operator]
    with pytest.raises(InputError, match="conversation 'b': its messages have"):
        list(Dataset(root).stored(0))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (lambda roles: [None] * len(roles), "has role None and message_index 0 in row 0"),
        (lambda roles: [each or "user" for each in roles], "has role user and message_index -1"),
    ],
)
def test_tokens_have_a_role_where_they_have_a_message(
    root: Path, values: Callable[[list[object]], list[object]], found: str
) -> None:
    if "-1" in found:
        change(root, "tokens", "message_index", lambda indices: [*indices[:-1], -1])
    change(root, "tokens", "role", values)
    dataset = Dataset(root)
    rows = dataset.token_rows(["position", "message_index", "role"])
    places = list(dataset.places())
    starts = [0, places[0].n_tokens, places[0].n_tokens + places[1].n_tokens]
    with pytest.raises(InputError, match=found):
        rows.read_checked(places, np.array(starts))
    with pytest.raises(InputError, match=found), dataset.open_part("tokens", 0, encoded=["role"]) as file:
        file.read(["role"])


def test_columns_that_were_not_asked_for_are_not_given(root: Path) -> None:
    with Dataset(root).open_part("tokens", 0) as file:
        assert file.read(["role"]).column_names == ["role"]


def test_parts_of_which_one_encodes_its_texts_are_read_together(tiny_model: Path, tmp_path: Path) -> None:
    for record in RECORDS:
        (tmp_path / f"{record['id']}.jsonl").write_text(json.dumps(record) + "\n")
    out = tmp_path / "out"
    render([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")], tiny_model, out=out)
    path = out / "tokens" / "part-00000.parquet"
    found = pq.read_table(path)
    at = found.column_names.index("source")
    plain = found.set_column(at, "source", found["source"].cast(pa.string()))
    rewrite(plain.replace_schema_metadata(found.schema.metadata), path)
    dataset = Dataset(out)
    table = dataset.token_rows(["source", "token_id"]).read_all(list(dataset.places()))
    assert table["source"].to_pylist()[: found.num_rows] == found["source"].to_pylist()
    assert table.num_rows > found.num_rows
