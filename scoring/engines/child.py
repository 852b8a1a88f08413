"""A model in a process of its own: what another engine has changed in this one does not reach it.

`python -m tokscore.scoring.engines.child` serves one parent over its standard input and output.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar

from tokscore.dataset.errors import EngineError
from tokscore.scoring.engines.contract import TokenSequence, windows

if TYPE_CHECKING:
    pass

# Tokens that are sent at once.
WINDOW_TOKENS = 32_768
# Seconds that it has to end after its input has.
CLOSE_S = 10

Row = TypeVar("Row")


class Child(Generic[Row]):
    """An object in a process of its own; one method takes sequences and gives keys and results."""

    def __init__(
        self,
        factory: str,
        method: str,
        *arguments: object,
        on_cpu: bool = False,
        environment: Mapping[str, str] = MappingProxyType({}),
        **named: object,
    ) -> None:
        """Start the process and make the object.

        Args:
            factory: "module:class" of it.
            method: Name of the method.
            *arguments: For the class.
            on_cpu: Whether it must leave accelerators alone.
            environment: Variables that it gets where this process has none of the name.
            **named: For the class, too.

        Raises:
            TokscoreError: What the class raised.
            EngineError: The process ended.
        """
        variables = {**environment, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if on_cpu:
            variables["CUDA_VISIBLE_DEVICES"] = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables,
        )
        try:
            self._send((factory, method, arguments, named))
            self._receive()
        except BaseException:
            self.close()
            raise

    def call(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, Row]]:
        """Key and result of every sequence, a window at a time.

        Raises:
            TokscoreError: What the method raised.
            EngineError: The process ended.
        """
        for window in windows(sequences, WINDOW_TOKENS):
            self._send(window)
            while (found := self._receive()) is not None:
                yield found

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error

    def _receive(self) -> Any:  # Any: what the method gives
        assert self._process.stdout is not None
        try:
            is_error, found = pickle.load(self._process.stdout)  # noqa: S301 (from our own child)
        except (EOFError, pickle.UnpicklingError) as error:
            raise self._ended() from error
        if is_error:
            raise found
        return found

    def _ended(self) -> EngineError:
        try:
            code: object = self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            code = "unknown"
        return EngineError(f"the process that held the model beside this one ended with exit code {code}.")

    def close(self) -> None:
        """End the process."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        try:
            process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer with pairs: whether it is an error, and it; None stands for the end of a window."""

    def answer(found: object, *, is_error: bool = False) -> None:
        pickle.dump((is_error, found), answers)
        answers.flush()

    try:
        factory, method, arguments, named = pickle.load(requests)  # noqa: S301 (from our own parent)
        module, name = factory.split(":")
        made = getattr(importlib.import_module(module), name)(*arguments, **named)
        answer(None)
        try:
            while True:
                for found in getattr(made, method)(pickle.load(requests)):  # noqa: S301 (likewise)
                    answer(found)
                answer(None)
        finally:
            made.close()
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 (the parent raises it)
        answer(error, is_error=True)


def main() -> None:
    """Serve the parent; what libraries print goes to stderr."""
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 (a device)
            os.dup2(nothing.fileno(), 0)
        _serve(requests, answers)


if __name__ == "__main__":
    main()
