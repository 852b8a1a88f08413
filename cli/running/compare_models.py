"""The two sides of `tokscore diff`: datasets as they are, or models that first score conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from tokscore.cli.options import shared
from tokscore.cli.options.settings import Only
from tokscore.cli.printing.console import note
from tokscore.cli.printing.progress import ProgressLine
from tokscore.cli.running.runs import note_conversations, open_tokens
from tokscore.dataset.choices import OnError, SummaryForm
from tokscore.dataset.settings import Usual
from tokscore.rendering.attribution.settings import RenderSettings
from tokscore.scoring.engines.registry import AUTO
from tokscore.scoring.engines.settings import EngineSettings

if TYPE_CHECKING:
    from tokscore.analytics.comparison.diff import DiffReport
    from tokscore.analytics.exact.report import ExactReport
    from tokscore.analytics.exact.run import CompareTokens
    from tokscore.dataset.manifest import Manifest
    from tokscore.scoring.engines.contract import TokenSequence
    from tokscore.scoring.engines.spec import EngineSpec

_COMPARING = "comparing over the whole vocabulary"

On = Annotated[
    list[str] | None,
    shared.option(
        "--on",
        metavar="INPUT",
        help="Conversations, or a token dataset, to compare two models on; may be given several times.",
    ),
]
Rendering = Annotated[
    RenderSettings, Only(("template", "trust_remote_code", "input_format", "chunk", "stride", "context"))
]
Engine = Annotated[
    EngineSettings,
    Only(
        ("engine", "top_k", "dtype"),
        {
            "engine": "With --on, what scores: as in logprobs. With --exact, vllm runs both models, one "
            "after the other; else transformers does, both at once.",
            "top_k": "With --on, most likely ids to keep of each token; if left out, all of a vocabulary "
            "that has fewer.",
            "dtype": "With --on, type to compute in; auto is each model's own.",
        },
        # Five times the ids of logprobs: intervals are what they are for here, and half as wide.
        {"top_k": Usual(100)},
    ),
]
Exact = Annotated[
    bool,
    shared.option(
        "--exact",
        help="Add the values over the whole vocabulary, with both models run by transformers, or by vLLM "
        "with --engine vllm.",
    ),
]
Summary = Annotated[
    SummaryForm | None,
    shared.option(
        "--summary",
        help="Print only the table by which quantised models are judged, TEACHER being the base: what "
        "llama.cpp prints with --kl-divergence. Needs what --exact needs.",
    ),
]
TeacherModel = Annotated[
    str | None,
    shared.option("--teacher-model", metavar="MODEL", help="For --exact, the model that scored TEACHER."),
]
StudentModel = Annotated[
    str | None,
    shared.option("--student-model", metavar="MODEL", help="For --exact, the model that scored STUDENT."),
]


class Sides(NamedTuple):
    """Two score datasets, and the models that scored them where they are known.

    Attributes:
        teacher: Score dataset.
        student: Score dataset.
        teacher_model: Directory or hub id, None where only the dataset was given.
        student_model: Likewise.
    """

    teacher: Path
    student: Path
    teacher_model: str | None
    student_model: str | None


class OnOptions(NamedTuple):
    """How the conversations of `--on` are rendered and scored.

    Attributes:
        rendering: The options of the same names.
        engine: Likewise.
        intervals: Whether they are used, and worth a second run of the first model to be narrow.
    """

    rendering: RenderSettings
    engine: EngineSettings
    intervals: bool


def open_sides(
    teacher: str, student: str, on: Sequence[str], options: OnOptions, check_tokens: Callable[[Path], None]
) -> Sides:
    """The datasets behind the two arguments of diff; models score the conversations of `on` first.

    A directory with manifest.json is a dataset, one with config.json a model, and what is no directory a
    model on the hub. The conversations are rendered once, with the student's template. All of it lands in
    `cache_directory` and is used again. `check_tokens` is called with the rendered tokens before a model is
    loaded.

    Raises:
        UsageError: `on` is missing or out of place, or one is a dataset and the other a model.
        InputError: Neither, or the models' vocabularies differ.
    """
    from tokscore.dataset.errors import UsageError
    from tokscore.dataset.files import location
    from tokscore.dataset.settings import names_given

    are_datasets = [_is_dataset(name) for name in (teacher, student)]
    if all(are_datasets):
        if on:
            raise UsageError(f"{teacher} and {student} are scored already; --on is for models. Leave it out.")
        unused = [f"`{name}`" for name in names_given(options.rendering) if name != "trust_remote_code"]
        if unused:
            raise UsageError(
                f"{teacher} and {student} are scored already; {' and '.join(unused)} cannot change them. "
                "Leave them out."
            )
        return Sides(location(teacher), location(student), None, None)
    if any(are_datasets):
        dataset, model = (teacher, student) if are_datasets[0] else (student, teacher)
        raise UsageError(
            f"{dataset} is a dataset and {model} is none; expected two score datasets, or two models with "
            "--on. Score the model first: tokscore logprobs."
        )
    if not on:
        raise UsageError(
            f"{teacher} and {student} are models; give the conversations to compare them on: "
            "--on convs.jsonl."
        )
    return _score_both(teacher, student, on, options, check_tokens)


def _is_dataset(name: str) -> bool:
    """Whether a directory holds a dataset.

    Raises:
        InputError: It is there, and neither dataset nor model.
    """
    from tokscore.dataset.errors import InputError
    from tokscore.dataset.files import location
    from tokscore.dataset.manifest import MANIFEST_NAME

    path = location(name)
    if (path / MANIFEST_NAME).is_file():
        return True
    if path.exists() and not (path / "config.json").is_file():
        raise InputError(
            f"{name} has neither {MANIFEST_NAME} nor config.json; expected a score dataset, "
            "or a model with --on."
        )
    return False


def _score_both(
    teacher: str, student: str, on: Sequence[str], options: OnOptions, check_tokens: Callable[[Path], None]
) -> Sides:
    from tokscore.scoring import plan_engine

    tokens = _rendered(student, on, options)
    check_tokens(tokens)
    trusts = options.rendering.trust_remote_code
    specs = [plan_engine(model, options.engine, trust_remote_code=trusts) for model in (teacher, student)]
    first = _scored(tokens, teacher, specs[0])
    if specs[0].identity == specs[1].identity or not options.engine.top_k or not options.intervals:
        return Sides(first, _scored(tokens, student, specs[1]), teacher, student)
    # Each at the ids that the other lists; that takes a second run of the teacher.
    second = _scored(tokens, student, specs[1], at=first)
    return Sides(_scored(tokens, teacher, specs[0], at=second), second, teacher, student)


def _rendered(student: str, on: Sequence[str], options: OnOptions) -> Path:
    """The token dataset of the conversations, from the cache where it is there."""
    from tokscore.dataset.files import location
    from tokscore.dataset.reading import Dataset
    from tokscore.rendering.executors.devices import all_cores
    from tokscore.rendering.inputs import open_source
    from tokscore.rendering.run import render_source
    from tokscore.rendering.source import ConversationSource

    source = open_source(list(on), student, options.rendering)
    if not isinstance(source, ConversationSource):
        return location(on[0])
    out = _place("tokens", [source.tokenizer, source.settings, list(source.inputs)])
    with ProgressLine("rendering", source.n_conversations, "conversations") as line:
        render_source(source, out, workers=all_cores(), progress=line.update)
    note_conversations(source, Dataset(out))
    return out


def _scored(tokens: Path, model: str, spec: EngineSpec, *, at: Path | None = None) -> Path:
    """The score dataset of one model, from the cache where it is there; `at` the ids that another lists."""
    from tokscore.scoring.listed_ids import ListedIds
    from tokscore.scoring.run import score, score_manifest
    from tokscore.scoring.selection import default_selection

    source = open_tokens(tokens, model, trust_remote_code=spec.model.trust_remote_code)
    selection = default_selection(source.settings)
    listed = None if at is None else ListedIds(at)
    out = _place("scores", score_manifest(source, spec, selection, listed=listed).plan_hash)
    beside = "" if at is None else ", at the other's ids too"
    note(f"{spec.identity.name}: {spec.identity.engine}, {spec.identity.dtype}{beside}, in {out}")
    with ProgressLine("scoring", None, "tokens") as line:
        score(
            source,
            out,
            spec,
            selection=selection,
            listed=listed,
            progress=lambda done, total: line.update(done, done, total),
        )
    return out


def _place(kind: str, key: object) -> Path:
    """Where the cache keeps what `key` describes."""
    from hashlib import sha256

    import msgspec

    from tokscore.rendering.libraries.remembered import cache_directory

    digest = sha256(msgspec.json.encode(key, order="deterministic")).hexdigest()
    return cache_directory() / "diff" / f"{kind}-{digest[:32]}"


def exact(
    sides: Sides,
    report: DiffReport,
    *,
    engine: str = AUTO,
    on_error: OnError = OnError.FAIL,
    trust_remote_code: bool = False,
    noise_floor: Path | None = None,
) -> ExactReport:
    """The values over the whole vocabulary, computed with both models as far as the cache lacks them.

    Args:
        sides: Both datasets, and their models.
        report: Of the same datasets: its groups and alphas are taken, and what it skipped is left out.
        engine: What scored: vllm runs both models here too, in the place of any other transformers does.
        on_error: What a conversation does whose tokens differ or are out of order.
        trust_remote_code: Whether code that comes with the models may run.
        noise_floor: JSON of `tokscore selfcheck`, where an engine differs by more than usual.

    Raises:
        UsageError: A model is not known.
        InputError: A model is not the one that scored its dataset, or gives other logprobs.
        EngineError: The engine is not installed, or a model failed.
    """
    from tokscore.analytics.exact.columns import exact_schema
    from tokscore.analytics.exact.report import exact_report
    from tokscore.analytics.exact.run import ExactRun
    from tokscore.dataset.reading import Dataset

    engine = engine if engine == "vllm" else "transformers"
    datasets = [Dataset(path) for path in (sides.teacher, sides.student)]
    without = sorted((each.conversation_id, each.branch) for each in report.skipped)
    key = [
        # What failed may be whole again in the next run, of the same plan.
        *((each.manifest.plan_hash, each.n_conversations(), each.n_with_tokens) for each in datasets),
        list(report.alphas),
        exact_schema(report.alphas).names,
        without,
        *([] if engine == "transformers" else [engine]),
    ]
    folder = _place("exact", key)
    with ExitStack() as stack:
        line: ProgressLine | None = None

        @contextmanager
        def start(ahead: Iterable[TokenSequence]) -> Iterator[CompareTokens]:
            nonlocal line
            # No bar moves while torch is imported.
            from tokscore.scoring.exact.measuring import measuring

            models = (sides.teacher_model, sides.student_model)
            specs = [
                _spec(side, model, dataset.manifest, engine, trust_remote_code=trust_remote_code)
                for side, model, dataset in zip(("teacher", "student"), models, datasets, strict=True)
            ]
            names = " with ".join(spec.identity.name for spec in specs)
            note(f"comparing {names} over the whole vocabulary")
            line = stack.enter_context(ProgressLine(_COMPARING, None, "tokens"))
            with measuring(
                *(specs[0], specs[1], ahead), alphas=report.alphas, folder=folder, keeping=keeping
            ) as measure:
                yield measure

        def keeping(n_done: int, total: int) -> None:
            if line is not None and not n_done:
                line.turn_to("running the first model", total, "tokens")
            elif line is not None and n_done == total:
                line.turn_to(_COMPARING, None, "tokens")
            elif line is not None:
                line.update(n_done, n_done, total)

        def progress(n_done: int, total: int, n_run: int) -> None:
            if line is None:
                return
            if not n_run:
                line.turn_to(_COMPARING, total, "tokens")
            line.update(n_done, n_run, total)

        run = ExactRun(
            folder,
            sides.teacher,
            sides.student,
            start,
            alphas=report.alphas,
            columns=report.by.token_columns,
            on_error=on_error,
            without=without,
            noise_floor=noise_floor,
            progress=progress,
        )
        found = exact_report(run, by=report.by.names)
    note(f"exact values of every token: {run.parts.folder}")
    for side, gap in (("teacher", found.teacher_stored), ("student", found.student_stored)):
        if gap.mean is not None:
            note(
                f"the {side}'s stored logprobs differ from these by {gap.mean:.2g} on average, {gap.max:.2g} "
                "at most."
            )
    return found


def _spec(
    side: str, model: str | None, manifest: Manifest, engine: str, *, trust_remote_code: bool
) -> EngineSpec:
    """An engine with the model, dtype and temperature of a dataset."""
    from tokscore.dataset.errors import InputError, UsageError
    from tokscore.scoring import plan_engine

    identity = manifest.model
    if identity is None:
        raise InputError(f"the {side}'s dataset holds no scores; expected a score dataset.")
    if model is None:
        raise UsageError(
            f"--exact runs the models again, and a dataset does not say where {identity.name} is. "
            f"Give it: --{side}-model DIR."
        )
    spec = plan_engine(
        model,
        engine=engine,
        dtype=identity.dtype,
        temperature=float(manifest.settings.get("temperature") or 1.0),
        top_k=0,
        trust_remote_code=trust_remote_code,
    )
    if identity.sha256 and spec.identity.sha256 and identity.sha256 != spec.identity.sha256:
        raise InputError(
            f"{model} is not the model that scored the {side}'s dataset: its sha256 is "
            f"{spec.identity.sha256[:12]}, {identity.name} has {identity.sha256[:12]}."
        )
    return spec
