"""Mutated records of every format: each is rendered or one error row, and none is lost."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from tests.fuzz.fuzzing import mutate_value, run_cases
from tokscore.dataset.errors import InputError
from tokscore.dataset.tokens import FailedConversation
from tokscore.rendering import ChatTokenizer
from tokscore.rendering.attribution.renderer import Renderer
from tokscore.rendering.reading.formats import FORMATS, all_formats
from tokscore.rendering.reading.formats.mapped import given_format
from tokscore.rendering.reading.plan import plan_files
from tokscore.rendering.reading.records import Records
from tokscore.rendering.source import ConversationSource

SAMPLES = Path(__file__).parents[1] / "data" / "formats"
RECORDS_A_FILE = 100


def samples() -> dict[str, list[dict[str, Any]]]:
    """Records of every format: its example, and those of the data of the tests."""
    found: dict[str, list[dict[str, Any]]] = {each.name: [json.loads(each.example)] for each in all_formats()}
    for path in sorted(SAMPLES.iterdir()):
        if path.suffix not in (".json", ".jsonl", ".traj"):
            continue
        text = path.read_text("utf-8")
        values = (
            [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
        )
        records = [
            each for each in (values if isinstance(values, list) else [values]) if isinstance(each, dict)
        ]
        name = next((each for each in FORMATS if path.name.startswith(each.replace("-", "_"))), None)
        if name is None:
            name = "openai-responses" if path.name.startswith("responses") else "openai"
        found[name] += records[:5]
    return found


def mutated_bytes(line: bytes, chance: random.Random) -> bytes:
    content = bytearray(line)
    for _ in range(chance.randint(1, 3)):
        where = chance.randrange(len(content) + 1)
        way = chance.random()
        if way < 0.4 and where < len(content):
            content[where] = chance.choice([byte for byte in range(256) if byte != 10])
        elif way < 0.7:
            content[where:where] = chance.choice(
                (b"\\", b'"', b"\xff", b"\0", b"1e999", b"\\ud800", b"[" * 2_000, b"null", b"{")
            )
        else:
            del content[where : where + chance.randint(1, 30)]
    return bytes(content).replace(b"\n", b" ")


def write_mutated(path: Path, records: list[dict[str, Any]], chance: random.Random) -> int:
    """A file of mutated records behind a good one; the number of its lines that are not blank."""
    lines = [json.dumps(records[0]).encode()]
    for _ in range(RECORDS_A_FILE - 1):
        value = copy.deepcopy(chance.choice(records))
        for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
            value = mutate_value(value, chance)
        line = json.dumps(value).encode()
        lines.append(mutated_bytes(line, chance) if chance.random() < 0.15 else line)
    lines = [line for line in lines if line.strip()]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return len(lines)


def test_every_mutated_record_is_rendered_or_one_error(tiny_model: Path, tmp_path: Path) -> None:
    by_format = samples()
    names = list(by_format)
    tokenizer = ChatTokenizer(str(tiny_model))
    n_rendered = n_failed = n_files_refused = 0

    def case(number: int, chance: random.Random) -> str:
        nonlocal n_rendered, n_failed, n_files_refused
        name = names[number % len(names)]
        path = tmp_path / "mutated.jsonl"
        n_lines = write_mutated(path, by_format[name], chance)
        chosen = given_format(name, None)
        try:
            plan = plan_files([str(path)], chosen)
            source = ConversationSource(plan, Renderer(tokenizer), records=Records(plan))
            items = [item for part in source.parts for item in source.read(part)]
        except InputError:
            # Outputs of a batch are one file: what cannot be joined is told for all.
            n_files_refused += n_lines
            return "refused as a whole"
        failures = [item for item in items if isinstance(item, FailedConversation)]
        assert all(each.reason for each in failures)
        lines = {
            item.source_line if isinstance(item, FailedConversation) else item.row.source_line
            for item in items
        }
        missing = {*range(1, n_lines + 1)} - lines
        assert not missing or name in JOINED, f"{name}: lines {sorted(missing)[:5]} of {n_lines} are lost"
        n_failed += len(failures)
        n_rendered += len(items) - len(failures)
        return name

    outcomes = run_cases(len(names), 10_000, case, limit_s=120.0)
    print(f"rendered {n_rendered:,}, failed {n_failed:,}, in files refused as a whole {n_files_refused:,}")
    assert outcomes["refused as a whole"] < sum(outcomes.values()) / 10
    assert n_rendered > 0
    assert n_failed > 0


# Of which several lines can make one conversation.
JOINED = frozenset({"openai-batch", "otel", "langfuse"})
