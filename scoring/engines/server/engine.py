"""The engine behind an address: requests to served models, and their answers as scores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from tokscore.dataset.errors import ConversationError, EngineError, UsageError
from tokscore.scoring.engines.contract import SequenceScores, TokenSequence
from tokscore.scoring.engines.row_checks import check_scores
from tokscore.scoring.engines.server.addresses import RETRY, SECONDS, TIMEOUT
from tokscore.scoring.engines.server.check import check_server, probe
from tokscore.scoring.engines.server.connection import Connection, FailedTryError, Loop, encoded
from tokscore.scoring.engines.server.dialects.dialect import AnswerError, Question, Rows
from tokscore.scoring.engines.server.identity import allowed, describe, difference, fingerprint
from tokscore.scoring.engines.server.limit import AdaptiveLimit
from tokscore.scoring.engines.server.tries import until_answered

if TYPE_CHECKING:
    from tokscore.dataset.manifest import ModelIdentity, Setting
    from tokscore.scoring.engines.server.identity import Served
    from tokscore.scoring.engines.spec import EngineSpec


# Answers to one question that no distribution can have are taken for an accident so many times.
MAX_IMPOSSIBLE = 3


class _Replica:
    """One of the servers of a model.

    Attributes:
        connection: To it.
        served: What it is.
        limit: Requests that it is given at once.
        n_running: Requests that it has.
        fingerprint: Of its logprobs at start.
    """

    def __init__(self, connection: Connection, served: Served, most: int) -> None:
        self.connection = connection
        self.served = served
        self.limit = AdaptiveLimit(most)
        self.n_running = 0
        self.fingerprint = ""


class ServerEngine:
    """Scores through servers that have one model.

    Attributes:
        identity: What the manifest says of model and server.
        max_length: Most tokens of one sequence.
        vocab_size: Ids that the model has.
        details: The kind of server, and what the check at start found.
    """

    def __init__(self, spec: EngineSpec, longest: int) -> None:
        """Ask the servers what they are, and check them.

        Raises:
            EngineError: One does not answer, speaks no known dialect, or gives wrong logprobs.
        """
        settings = spec.settings
        self.identity: ModelIdentity = spec.identity
        self.max_length = spec.model.max_length
        self.vocab_size = spec.model.vocab_size
        self._top_k = settings.top_k
        self._longest = min(longest, self.max_length)
        self._retry_s = float(settings.engine_arg.get(RETRY, SECONDS[RETRY]))
        timeout_s = float(settings.engine_arg.get(TIMEOUT, SECONDS[TIMEOUT]))
        self._concurrency = settings.concurrency
        self._loop = Loop()
        self._noise = 0.0
        self._replicas: list[_Replica] = []
        connections = [Connection(url, self._concurrency, timeout_s) for url in settings.url]
        self._connections = connections
        try:
            for connection in connections:
                served = self._loop.run(
                    describe(connection, settings.server_kind, settings.server_model, self._retry_s)
                )
                self._add(_Replica(connection, served, self._concurrency))
        except BaseException:
            self.close()
            raise
        first = self._replicas[0]
        self.details: Mapping[str, Setting] = {
            "server_kind": first.served.dialect.name,
            "noise": round(self._noise, 7),
            "fingerprint": first.fingerprint,
        }

    def _add(self, replica: _Replica) -> None:
        """Take a server that passes the check and has the same model as the others."""
        url = replica.connection.url

        def ask(questions: Sequence[Question]) -> Sequence[Rows]:
            return self._loop.run(self._all(questions, replica))

        found = check_server(ask, url, self.vocab_size, self.max_length, self._top_k)
        replica.fingerprint = found.fingerprint
        self._noise = max(self._noise, found.noise)
        if self._replicas:
            first = self._replicas[0]
            apart = difference(first.fingerprint, replica.fingerprint)
            if apart > allowed(self._noise):
                raise EngineError(
                    f"{url} has another model than {first.connection.url}: logprobs of the same tokens "
                    f"differ by {apart:.3g} nats. Give addresses of one model."
                )
        self._replicas.append(replica)

    async def _all(self, questions: Sequence[Question], replica: _Replica) -> list[Rows]:
        return list(await asyncio.gather(*(self._answer(question, [replica]) for question in questions)))

    async def _answer(self, question: Question, replicas: Sequence[_Replica]) -> Rows:
        """The rows of one question; tries go from one replica to the next."""
        n_impossible = 0

        async def once(n_tries: int) -> Rows:
            nonlocal n_impossible
            by_load = sorted(replicas, key=lambda each: each.n_running / each.limit.value)
            replica = by_load[n_tries % len(by_load)]
            dialect, started = replica.served.dialect, monotonic()
            body = encoded(dialect.request(replica.served.model, question))
            replica.n_running += 1
            try:
                answer = await replica.connection.post(dialect.path, body)
            except FailedTryError as error:
                if error.is_refusal:
                    replica.limit.refused()
                raise
            finally:
                replica.n_running -= 1
            replica.limit.answered(len(question.token_ids), monotonic() - started)
            rows = dialect.read(answer, question)
            if n_impossible < MAX_IMPOSSIBLE:
                n_impossible += 1
                _check(rows, question)
            return rows

        return await until_answered(once, self._retry_s)

    def score(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, SequenceScores]]:
        """Key and scores of every sequence, as they are answered.

        Raises:
            EngineError: A server does not answer, refuses a request, answers another one, or has another
                model than at the start.
            UsageError: Logprobs are wanted at given ids.
        """
        remaining = iter(sequences)
        running: dict[Future[Rows], tuple[TokenSequence, Question]] = {}
        is_drawn = False
        n_sequences = 0
        try:
            while True:
                while not is_drawn and len(running) < sum(each.limit.value for each in self._replicas):
                    sequence = next(remaining, None)
                    if sequence is None:
                        is_drawn = True
                    elif sequence.at_ids is not None:
                        raise UsageError(
                            "servers give logprobs at the ids of their own lists alone; leave out `at`, or "
                            "load the model with another `engine`."
                        )
                    elif sequence.n_rows == 0:
                        yield sequence.key, _scores(_no_rows(self._top_k))
                    else:
                        question = _question(sequence, self._top_k)
                        running[self._loop.start(self._answer(question, self._replicas))] = sequence, question
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    sequence, question = running.pop(future)
                    n_sequences += 1
                    yield sequence.key, _scores(_wanted(self._result(future), sequence, question))
        finally:
            for future in running:
                future.cancel()
        if n_sequences:
            self._check_models()

    def _result(self, future: Future[Rows]) -> Rows:
        try:
            return future.result()
        except AnswerError as error:
            urls = ", ".join(each.connection.url for each in self._replicas)
            raise EngineError(f"an answer of {urls} cannot be used: {error}.") from error

    def _check_models(self) -> None:
        """Refuse rows of a model that was exchanged meanwhile."""
        question = Question(probe(self.vocab_size, self.max_length), min(self._top_k, 1))
        for each in self._replicas:
            try:
                [rows] = self._loop.run(self._all([question], each))
            except AnswerError as error:
                raise EngineError(f"an answer of {each.connection.url} cannot be used: {error}.") from error
            apart = difference(each.fingerprint, fingerprint(rows.logprobs))
            if apart > allowed(self._noise):
                raise EngineError(
                    f"{each.connection.url} has another model than when this run began: logprobs of the same "
                    f"tokens differ by {apart:.3g} nats. The last part was not written."
                )

    def close(self) -> None:
        """End the connections."""
        for connection in self._connections:
            self._loop.run(connection.close())
        self._loop.stop()


def _check(rows: Rows, question: Question) -> None:
    """Raise an `AnswerError` where no distribution has these numbers."""
    try:
        check_scores(_scores(rows), len(question.targets), question.top_k, "", question.targets)
    except ConversationError as error:
        raise AnswerError(f"it returns impossible rows: {error}") from error


def _question(sequence: TokenSequence, top_k: int) -> Question:
    """What has to be asked for the wanted rows: nothing behind the last, and no rows before the first."""
    if sequence.wanted is None:
        return Question(sequence.token_ids, top_k)
    wanted = np.flatnonzero(sequence.wanted)
    return Question(sequence.token_ids[: wanted[-1] + 2], top_k, int(wanted[0]))


def _wanted(rows: Rows, sequence: TokenSequence, question: Question) -> Rows:
    if sequence.wanted is None:
        return rows
    at = sequence.wanted[question.first_row : len(question.token_ids) - 1]
    ranks = None if rows.ranks is None else rows.ranks[at]
    return Rows(rows.logprobs[at], ranks, rows.top_ids[at], rows.top_logprobs[at])


def _no_rows(top_k: int) -> Rows:
    return Rows(
        np.empty(0, np.float32),
        None,
        np.empty((0, top_k), np.int32),
        np.empty((0, top_k), np.float32),
    )


def _scores(rows: Rows) -> SequenceScores:
    return SequenceScores(*rows, entropy=None)
