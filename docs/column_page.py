"""The reference of all columns and keys, from schemas and docstrings."""

from __future__ import annotations

import re
import types
import typing
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from page_text import NOTICE, UndocumentedError, attributes, table

from tokscore.analytics.aligned_text.rows import TextRow
from tokscore.analytics.aligned_text.tables import SPAN_SCHEMA
from tokscore.analytics.comparison.confidence import NamedConfidence
from tokscore.analytics.comparison.diff_rows import DiffRow, Estimate, Interval
from tokscore.analytics.comparison.tables import token_schema
from tokscore.analytics.divergence.measures import intervals, points
from tokscore.analytics.exact.columns import exact_measures, exact_schema
from tokscore.analytics.exact.moments import Moments
from tokscore.analytics.exact.rows import PREFIX, ExactRow
from tokscore.analytics.exact.summary import summarise
from tokscore.analytics.groups.grouping import parse_group_by
from tokscore.analytics.groups.stats import Percentiles, StatsRow
from tokscore.analytics.recorded.rows import MismatchKl, MismatchRow
from tokscore.analytics.recorded.tables import token_schema as recorded_schema
from tokscore.dataset import manifest
from tokscore.dataset import schema as tables
from tokscore.dataset.choices import RecordedAgainst
from tokscore.dataset.tokens import FailedConversation
from tokscore.dataset.writing import ERROR_FIELDS
from tokscore.scoring.agreement import Agreement
from tokscore.scoring.selfcheck import Line, NoiseFloor


class Row(NamedTuple):
    """One column or key.

    Attributes:
        name: Dotted where it is nested; A stands for an alpha.
        dtype: Type of the values.
        unit: Empty where there is none.
        is_nullable: Whether it may be null.
        description: A sentence or two.
    """

    name: str
    dtype: str
    unit: str
    is_nullable: bool
    description: str


def columns_page() -> str:
    """The reference of all columns and keys."""
    text = f"# Columns\n\n{NOTICE}{_INTRODUCTION}"
    for title, about, rows in sections():
        lines = [
            (
                f"`{row.name}`",
                row.dtype,
                row.unit or _unit_of(row.name, row.dtype),
                "yes" if row.is_nullable else "",
                row.description,
            )
            for row in rows
        ]
        text += f"\n## {title}\n\n{about}\n\n"
        text += table(("column", "type", "unit", "null", "meaning"), lines)
    return text


_INTRODUCTION = """
Everything is in natural logarithms: logprobs, log-ratios, divergences and entropies are in nats. Shares and
probabilities lie between 0 and 1, names with `n_` are counts, spans are half-open. Where *null* says yes, a
value may be null. The Parquet files of datasets and of `diff` hold descriptions and units in the metadata of
their fields. [attribution.md](attribution.md) has the rules behind the owners,
[divergence.md](divergence.md) the formulas.
"""


def sections() -> Iterator[tuple[str, str, Iterable[Row]]]:
    """Title, introduction and rows of every table."""
    written = "`render` and `logprobs` write it"
    scores = [column.field for column in tables.SCORE_COLUMNS]
    failures = (row for row in _described(FailedConversation) if row.name in ERROR_FIELDS)
    yield "tokens/part-*.parquet", "`render` writes it; one row per token.", _schema(tables.TOKENS)
    about = "`logprobs` writes it; one row per token, with the columns of `tokens/` and these:"
    yield "scores/part-*.parquet", about, _schema(scores)
    about = f"{written}; one row per contiguous run of tokens with one owner."
    yield "spans/part-*.parquet", about, _schema(tables.SPANS)
    yield "messages/part-*.parquet", f"{written}; one row per message.", _schema(tables.MESSAGES)
    about = f"{written}; one row per conversation, or branch of one."
    yield "conversations/part-*.parquet", about, _schema(tables.CONVERSATIONS)
    yield "vocab.parquet", f"{written}; one row per id of the vocabulary.", _schema(tables.VOCABULARY)
    about = f"{written}; one line per record that failed under `--on-error skip`."
    yield "errors/part-*.jsonl", about, failures
    yield "manifest.json", f"{written}; one object. Nothing of the machine is in it.", _manifest()
    about = (
        "`diff -o DIR` writes it; one row per token that both models scored, with the columns of `--by` "
        "(here `role`) and those of every `--alpha` A."
    )
    schema = token_schema(parse_group_by("role"), [_ANY_ALPHA], is_aligned=True)
    yield "tokens.parquet of diff", about, _schema(schema)
    about = (
        "`diff -o DIR` writes it; one row per group: the columns of `--by`, then these, means per token.\n"
        "`--format csv` has the same names, `--format json` nests what is dotted here. A is an alpha,\n"
        "MEASURE the name of a measure. `estimate` needs `--sampled-by`, `exact` needs `--exact`. Groups\n"
        "by position and conversation (`--by position`, `--by conversation_id`) have no `confidence`, nor\n"
        "have more than 200 groups; `--format json` and `csv` have that of all tokens under `total` or\n"
        "`(all)`."
    )
    yield "groups.parquet of diff", about, _groups()
    about = (
        "`diff --exact -o DIR` writes it; one row per token. The cache holds the same in parts, and `diff`\n"
        "prints where."
    )
    yield "exact.parquet of diff", about, _schema(exact_schema([_ANY_ALPHA]))
    about = (
        "`diff --summary llama --format json` prints it, and `diff --exact --format json` under\n"
        "`exact.summary`; [quantised.md](quantised.md) explains it. An object has `value`, `se_tokens` and\n"
        "`se_conversations`."
    )
    yield "summary of diff", about, _summary()
    about = (
        "`diff --recorded -o DIR` writes it; one row per token with both logprobs, with the columns of\n"
        "`--by` (here `role`); `trainer_logprob` instead of `scored_logprob` for those of the trainer."
    )
    schema = recorded_schema(parse_group_by("role"), RecordedAgainst.SCORED)
    yield "tokens.parquet of diff --recorded", about, _schema(schema)
    about = (
        "`diff --recorded -o DIR` writes it; one row per group, as groups.parquet of diff.\n"
        "[mismatch.md](mismatch.md) explains the numbers."
    )
    yield "groups.parquet of diff --recorded", about, _mismatch()
    about = "`diff --align text -o DIR` writes it; one row per span of text, scored or not."
    yield "spans.parquet of diff --align text", about, _schema(SPAN_SCHEMA)
    about = (
        "`diff --align text -o DIR` writes it; one row per group.\n"
        "[divergence.md](divergence.md#two-tokenizers) explains the numbers."
    )
    rows = (row for row in _described(TextRow) if row.name != "group")
    yield "groups.parquet of diff --align text", about, rows
    about = "`stats --format json` prints one object per group under `groups`, and one under `total`."
    yield "groups of stats", about, _stats()
    about = "`selfcheck --format json` prints it, `-o` writes it; [selfcheck.md](selfcheck.md) has all keys."
    yield "selfcheck", about, _selfcheck()


# Formatted as other alphas are; the page shows it as A.
_ANY_ALPHA = 0.123456


def _named(name: str) -> str:
    return name.replace(f"{_ANY_ALPHA:g}", "A")


_COUNTED = ("tokens", "conversations", "sequences", "messages", "spans", "bytes", "characters")
# Units follow from names; the first pattern that is found counts.
_UNITS = (
    (r"^(exact\.)?confidence.MEASURE", "as MEASURE"),
    (r"^confidence.NUMBER", "as NUMBER"),
    (r"unresolved|total_variation|delta_p", "probability"),
    (r"share|outside|clipped|overlap|agreement|effective_sample_size", "share"),
    (r"percentiles|logprob|log_ratio|kl_|gjs|_kl\.|entropy|sequence_(sum|mean)|estimate", "nats"),
    (r"^against_reference|^noise_floor|^lines", "nats"),
    (r"bits_per_byte", "bits/byte"),
    (r"tokens_per_message", "tokens"),
    (r"chi2|ratio|rank|perplexity", ""),
)


def _unit_of(name: str, dtype: str) -> str:
    """Of a key in JSON."""
    last = name.rpartition(".")[2]
    if last.startswith("n_"):
        counted = last.rpartition("_")[2]
        return counted if counted in _COUNTED else "tokens"
    if last.endswith("p_value"):
        return "probability"
    if dtype != "float":
        return "bytes" if last.endswith("_bytes") else ""
    for pattern, unit in _UNITS:
        if re.search(pattern, name):
            return unit
    raise UndocumentedError(f"nothing says what the unit of {name} is.")


def _schema(schema: Iterable[pa.Field]) -> Iterator[Row]:
    for field in schema:
        metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        if not metadata.get("description"):
            raise UndocumentedError(f"the column {field.name} has no description in its schema.")
        if pa.types.is_floating(field.type) and not metadata.get("unit"):
            raise UndocumentedError(f"the column {field.name} has no unit in its schema.")
        dtype = str(field.type).replace("<element: ", "<").replace("<item: ", "<").replace("float", "float32")
        dtype = dtype.replace("double", "float64")
        yield Row(
            _named(field.name), dtype, metadata.get("unit", ""), field.nullable, metadata["description"]
        )


def _described(cls: type, prefix: str = "") -> Iterator[Row]:
    """The fields of a class, as its docstring has them."""
    meanings = attributes(cls)
    for name, hint in typing.get_type_hints(cls).items():
        if name.startswith("_"):
            continue
        if name not in meanings:
            raise UndocumentedError(f"the docstring of {cls.__name__} does not describe {name}.")
        dtype, is_nullable = _type_of(hint)
        yield Row(prefix + name, dtype, "", is_nullable, meanings[name])


def _type_of(hint: Any) -> tuple[str, bool]:  # Any: an annotation
    """Name of a JSON type, and whether null is one of its values."""
    is_union = isinstance(hint, types.UnionType)
    kinds = [kind for kind in (typing.get_args(hint) if is_union else (hint,)) if kind is not type(None)]
    shown = []
    for kind in kinds:
        origin = typing.get_origin(kind) or kind
        plain = [
            name for name in (bool, int, float, str) if isinstance(origin, type) and issubclass(origin, name)
        ]
        is_list = origin in (list, tuple)
        shown.append(plain[0].__name__ if plain else "list" if is_list else "object")
    return " or ".join(dict.fromkeys(shown)), is_union and type(None) in typing.get_args(hint)


def _manifest() -> Iterator[Row]:
    nested: Mapping[str, tuple[str, type]] = {
        "tokenizer": ("tokenizer.", manifest.TokenizerIdentity),
        "model": ("model.", manifest.ModelIdentity),
        "inputs": ("inputs[].", manifest.InputFile),
        "parts": ("parts[].", manifest.Part),
    }
    for row in _described(manifest.Manifest):
        yield row
        if row.name == "settings":
            for name, meaning in manifest.SETTINGS.items():
                yield Row(f"settings.{name}", "scalar", "", " null" in meaning, meaning)
        elif row.name in nested:
            prefix, cls = nested[row.name]
            yield from _described(cls, prefix)


def _groups() -> Iterator[Row]:
    """The columns of `DiffRow.flat`: all numbers by dotted name."""
    hints = typing.get_type_hints(DiffRow)
    for row in _described(DiffRow):
        hint = hints[row.name]
        kinds = (hint, *typing.get_args(hint))
        if row.name == "points":
            yield from (
                Row(point.name, "float", point.unit, True, f"{point.meaning}.")
                for point in points([_ANY_ALPHA])
            )
        elif row.name == "intervals":
            for each in intervals([_ANY_ALPHA]):
                for number in _numbers(Interval, f"{_named(each.name)}.", f"{each.meaning}."):
                    yield number._replace(unit=each.unit if number.dtype == "float" else "")
            yield Row("unresolved_A", "float", "probability", True, _UNRESOLVED)
        elif Estimate in kinds:
            yield from _numbers(Estimate, "estimate.")
        elif NamedConfidence in kinds:
            yield from _numbers(NamedConfidence, "confidence.MEASURE.")
        elif row.dtype == "object":
            yield from _nested_numbers(hint, row)
        elif row.name not in ("group", "alphas"):
            yield row
    yield from _exact_groups()


def _exact_groups() -> Iterator[Row]:
    """The columns of `ExactRow.flat`."""
    for row in _described(ExactRow, PREFIX):
        name = row.name.removeprefix(PREFIX)
        if name == "values":
            for measure in exact_measures([_ANY_ALPHA]):
                text = f"{measure.meaning}, over the whole vocabulary; null where infinite."
                yield Row(f"{PREFIX}{_named(measure.name)}", "float", measure.unit, True, text)
        elif name == "n_infinite":
            text = "Tokens where this KL is infinite; it has no mean then."
            yield Row(f"{PREFIX}KL_n_infinite", "int", "tokens", True, text)
        elif name == "confidence":
            yield from _numbers(NamedConfidence, f"{PREFIX}confidence.MEASURE.")
        elif name != "group":
            yield row


def _summary() -> Iterator[Row]:
    """The keys of `Summary.to_dict`."""
    zeros: Mapping[Any, float] = defaultdict(float)
    for figure in summarise(Moments(1, 1, zeros, zeros, zeros), lambda _measure: [np.zeros(1)]).figures:
        unit = "share" if figure.is_share else "nats" if figure.name.endswith("kld") else ""
        unit = "probability" if figure.name.endswith("delta_p") else unit
        has_errors = figure.se_tokens is not None
        yield Row(figure.name, "object" if has_errors else "float", unit, True, f"{figure.label}.")


def _mismatch() -> Iterator[Row]:
    """The columns of `MismatchRow.flat`."""
    hints = typing.get_type_hints(MismatchRow)
    for row in _described(MismatchRow):
        if row.name == "other_logprob":
            yield row._replace(name="scored_logprob", description="Of the model that scored.")
            yield row._replace(name="trainer_logprob", description="Of the trainer, instead.")
        elif row.name == "mismatch_kl":
            yield from _numbers(MismatchKl, "mismatch_kl.")
        elif row.name == "confidence":
            yield from _numbers(NamedConfidence, "confidence.NUMBER.")
        elif row.dtype == "object":
            yield from _nested_numbers(hints[row.name], row)
        elif row.name not in ("group", "against"):
            yield row


_UNRESOLVED = "Mass of the mixture on ids that are not known on both sides."


def _nested_numbers(cls: type, outer: Row) -> Iterator[Row]:
    hints = typing.get_type_hints(cls)
    for row in _described(cls):
        name, text = f"{outer.name}.{row.name}", f"{outer.description} {row.description}"
        if row.dtype == "object":
            yield from _numbers(hints[row.name], f"{name}.", row.description)
        else:
            yield row._replace(name=name, description=text if len(hints) < 5 else row.description)


def _selfcheck() -> Iterator[Row]:
    yield from _described(Agreement, "against_reference.")
    yield from _described(NoiseFloor, "noise_floor.")
    yield from _described(Line, "lines[].")
    yield Row("lines[].passed", "bool", "", False, "Whether `found` is at most `limit`.")


def _stats() -> Iterator[Row]:
    for row in _described(StatsRow):
        yield row
        if row.name == "logprob_percentiles":
            yield from _described(Percentiles, "logprob_percentiles.")


def _numbers(cls: type, prefix: str, about: str = "") -> Iterator[Row]:
    for row in _described(cls, prefix):
        if row.dtype in ("int", "float", "bool"):
            yield row._replace(description=f"{about} {row.description}".strip())
