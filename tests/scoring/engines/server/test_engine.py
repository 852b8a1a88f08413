"""The contract of engines over HTTP, for every kind of server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scoring.engines.server.served import Model, Served
from tests.scoring.samples import random_ids, scores_of
from tokscore.dataset.errors import EngineError, UsageError
from tokscore.scoring import Engine, TokenSequence, plan_engine
from tokscore.scoring.engines.row_checks import check_scores
from tokscore.scoring.engines.server.addresses import KEY_VARIABLE

Serve = Callable[..., tuple[Served, str]]
Connect = Callable[..., Engine]
ATOL = 1e-6
KINDS = ("vllm", "vllm-tokens", "sglang", "echo")
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_rows_are_those_of_the_model(kind: str, serve: Serve, connect: Connect, tiny_logprobs: Model) -> None:
    _, url = serve(kind)
    engine = connect(url)
    assert engine.details["server_kind"] == kind
    sequences = [random_ids(seed, 2 + 29 * seed) for seed in range(6)]
    for ids, scores in zip(sequences, scores_of(engine, sequences), strict=True):
        expected = tiny_logprobs(ids.tolist())[:-1]
        check_scores(scores, len(ids) - 1, 5, kind, ids[1:])
        realised = expected[np.arange(len(ids) - 1), ids[1:]]
        np.testing.assert_allclose(scores.logprobs, realised, atol=ATOL)
        order = np.argsort(-expected, axis=1, kind="stable")[:, :5]
        np.testing.assert_array_equal(scores.top_ids, order)
        np.testing.assert_allclose(scores.top_logprobs, np.take_along_axis(expected, order, 1), atol=ATOL)
        if kind.startswith("vllm"):
            assert scores.ranks is not None
            np.testing.assert_array_equal(scores.ranks, (expected >= realised[:, None]).sum(1))
        else:
            assert scores.ranks is None
        assert scores.entropy is None


@every_kind
@pytest.mark.slow
def test_wanted_rows_are_those_of_a_whole_run(kind: str, serve: Serve, connect: Connect) -> None:
    served, url = serve(kind)
    engine = connect(url)
    ids = random_ids(9, 150)
    wanted = np.random.default_rng(0).random(149) < 0.3
    wanted[:20] = wanted[140:] = False
    served.prompts.clear()
    served.starts.clear()
    sequences = [TokenSequence(0, ids), TokenSequence(1, ids, wanted), TokenSequence(2, ids, wanted & False)]
    found = dict(engine.score(sequences))
    assert len(found[1]) == sequences[1].n_rows == wanted.sum()
    assert len(found[2]) == 0
    for column in ("logprobs", "top_logprobs", "top_ids"):
        np.testing.assert_allclose(getattr(found[1], column), getattr(found[0], column)[wanted], atol=ATOL)
    # Nothing behind the last wanted token travels, and with SGLang no row before the first comes back.
    assert sorted(map(len, served.prompts[:2])) == [np.flatnonzero(wanted)[-1] + 2, 150]
    if kind == "sglang":
        assert sorted(served.starts[:2]) == [0, np.flatnonzero(wanted)[0]]


@every_kind
@pytest.mark.slow
def test_logprobs_need_no_lists(kind: str, serve: Serve, connect: Connect) -> None:
    _, url = serve(kind)
    ids = random_ids(4, 40)
    [with_lists] = scores_of(connect(url), [ids])
    [without] = scores_of(connect(url, top_k=0), [ids])
    assert without.top_ids.shape == (39, 0)
    np.testing.assert_array_equal(with_lists.logprobs, without.logprobs)


@pytest.mark.slow
def test_a_server_that_names_tokens_by_text_gives_logprobs_alone(serve: Serve, connect: Connect) -> None:
    _, url = serve("echo of texts")
    options = {"server_kind": "echo", "engine_arg": {"max_model_len": 512}}
    with pytest.raises(EngineError, match=r"names tokens by their text.*ask for none: `top_k=0`"):
        connect(url, **options)
    ids = random_ids(4, 40)
    [scores] = scores_of(connect(url, top_k=0, **options), [ids])
    assert scores.ranks is None
    np.testing.assert_array_equal(scores.logprobs, scores_of(connect(serve("vllm")[1]), [ids])[0].logprobs)


def test_one_token_has_no_rows(serve: Serve, connect: Connect) -> None:
    lone, pair = scores_of(connect(serve()[1]), [random_ids(3, 1), random_ids(3, 2)])
    check_scores(lone, 0, 5, "lone")
    check_scores(pair, 1, 5, "pair")


def test_the_manifest_names_server_and_model(serve: Serve, model_files: Path) -> None:
    _, url = serve("sglang")
    spec = plan_engine(str(model_files), url=url)
    assert spec.identity.engine == "server"
    assert (spec.identity.name, spec.identity.engine_version) == ("tiny", "sglang 1.2.3")
    assert (spec.identity.sha256, spec.identity.dtype) == (None, "unknown")
    assert url not in str(spec.recorded())


def test_the_manifest_names_no_folder_of_the_server(serve: Serve, model_files: Path) -> None:
    _, url = serve(names=["/data/models/teacher-7b/"])
    assert plan_engine(str(model_files), url=url).identity.name == "teacher-7b"
    _, url = serve(names=["org/teacher-7b"])
    assert plan_engine(str(model_files), url=url).identity.name == "org/teacher-7b"


def test_a_prompt_leaves_room_for_the_token_that_vllm_generates(serve: Serve, model_files: Path) -> None:
    assert plan_engine(str(model_files), url=serve("vllm")[1]).model.max_length == 1_023
    assert plan_engine(str(model_files), url=serve("sglang")[1]).model.max_length == 1_024


def test_logprobs_at_given_ids_are_refused(serve: Serve, connect: Connect) -> None:
    sequence = TokenSequence(0, random_ids(0, 9), at_ids=np.zeros((8, 1), np.int32))
    with pytest.raises(UsageError, match="at the ids of their own lists alone; leave out `at`"):
        list(connect(serve()[1]).score([sequence]))


def test_replicas_share_the_work(serve: Serve, connect: Connect) -> None:
    one, first = serve()
    two, second = serve()
    engine = connect(first, second)
    one.prompts.clear()
    two.prompts.clear()
    scores_of(engine, [random_ids(seed, 20) for seed in range(40)])
    assert min(len(one.prompts), len(two.prompts)) >= 10
    assert len(one.prompts) + len(two.prompts) == 42


def test_replicas_of_two_models_are_refused(serve: Serve, connect: Connect, tiny_logprobs: Model) -> None:
    _, first = serve()
    _, second = serve(model=lambda ids: np.roll(tiny_logprobs(ids), 1, axis=1))
    with pytest.raises(EngineError, match=f"{second} has another model than {first}"):
        connect(first, second)


def test_a_model_exchanged_meanwhile_ends_the_run(
    serve: Serve, connect: Connect, tiny_logprobs: Model
) -> None:
    served, url = serve()
    engine = connect(url)
    served.model = lambda ids: np.roll(tiny_logprobs(ids), 1, axis=1)
    with pytest.raises(EngineError, match="has another model than when this run began"):
        scores_of(engine, [random_ids(0, 9)])


def test_a_list_longer_than_the_server_gives_is_told_in_its_words(serve: Serve, connect: Connect) -> None:
    _, url = serve(max_logprobs=3)
    with pytest.raises(EngineError, match="greater than max allowed: 3"):
        connect(url)


def test_a_server_of_another_kind_is_told_what_it_answers(serve: Serve, connect: Connect) -> None:
    _, url = serve("nothing")
    with pytest.raises(EngineError, match=r"gives no logprobs of prompts[^§]*sglang: [^§]*vllm: [^§]*echo: "):
        connect(url)


def test_no_more_requests_than_allowed_run_at_once(serve: Serve, connect: Connect) -> None:
    served, url = serve()
    engine = connect(url, concurrency=3)
    served.most_running = 0
    scores_of(engine, [random_ids(seed, 60) for seed in range(30)])
    assert served.most_running <= 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": ()}, r"needs an address: `url`"),
        ({"url": "localhost:8000"}, "`url` 'localhost:8000' is no address"),
        ({"url": "http://me:secret@host"}, "`url` for host has more than an address"),
        ({"url": "http://host/?key=secret"}, "`url` for host has more than an address"),
        ({"url": "http://h", "dtype": "float32"}, "`dtype` is for engines that load the model"),
        ({"url": "http://h", "temperature": 0.5}, "`temperature` is for engines that load the model"),
        ({"url": "http://h", "batch_tokens": 9}, "`batch_tokens` is for vllm and transformers"),
        (
            {"url": "http://h", "engine_arg": {"x": 1}},
            "`engine_arg` x is nothing that the server engine takes",
        ),
        (
            {"url": "http://h", "engine_arg": {"retry_s": 0}},
            "`engine_arg` retry_s is 0; expected seconds above 0",
        ),
        ({"url": "http://h", "engine": "transformers"}, "`url` is for server; the engine is transformers"),
    ],
)
def test_settings_that_no_server_takes_are_wrong_usage(
    settings: dict[str, Any], message: str, model_files: Path
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        plan_engine(str(model_files), **{"engine": "server", **settings})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["sec\nret", "sec\x1bret", "s\u00e9cret"])
def test_a_key_that_no_header_takes_is_refused_and_not_shown(
    key: str, model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(UsageError, match=f"{KEY_VARIABLE} has a character that no header can have") as caught:
        plan_engine(str(model_files), url=["http://127.0.0.1:9"])
    assert "cret" not in str(caught.value)


def test_a_key_from_a_file_has_no_line_break(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = serve(key="secret")
    monkeypatch.setenv(KEY_VARIABLE, "secret\n")
    assert connect(url).details["server_kind"] == "vllm"


def test_one_of_several_models_is_named(serve: Serve, model_files: Path) -> None:
    _, url = serve(names=["a", "b"])
    with pytest.raises(UsageError, match=r"serves several models: a, b. Choose one with `server_model`"):
        plan_engine(str(model_files), url=url)
    with pytest.raises(UsageError, match="serves no model c; it has a, b"):
        plan_engine(str(model_files), url=url, server_model="c")
    assert plan_engine(str(model_files), url=url, server_model="b").identity.name == "b"


@pytest.mark.slow
def test_a_path_that_is_forbidden_does_not_end_the_search(serve: Serve, connect: Connect) -> None:
    _, url = serve("echo", status_elsewhere=403)
    assert connect(url).details["server_kind"] == "echo"
