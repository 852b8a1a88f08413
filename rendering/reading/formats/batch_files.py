"""Batches of requests joined with the file of their outputs, which holds no messages of its own."""

from __future__ import annotations

import codecs
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec
import numpy as np

from tokscore.dataset.errors import ConversationError, InputError
from tokscore.dataset.files import temporary_copy
from tokscore.rendering.conversations.conversation import decode_record

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NULL = msgspec.Raw(b"null")
_ANY = msgspec.json.Decoder(msgspec.Raw)
_NO_OUTPUT = msgspec.Raw(b'{"message": "no output for this request"}')


class _BatchLine(msgspec.Struct):
    """A line of a batch: a request has a body, an output a response or an error, their join a request.

    The join also says in `output` where the output was read, as `file:line`.
    """

    custom_id: str
    request: msgspec.Raw = _NULL
    body: msgspec.Raw = _NULL
    response: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    output: str | None = None

    @property
    def is_request(self) -> bool:
        """Whether it is a request alone."""
        return self.body != _NULL

    @property
    def is_output(self) -> bool:
        """Whether it is an output alone."""
        return self.body == self.request == _NULL


_BATCH_LINE = msgspec.json.Decoder(_BatchLine)


class Source(NamedTuple):
    """A file to read.

    Attributes:
        path: Of the file, or of a temporary copy.
        input_index: Of the given file that it is named after.
    """

    path: Path
    input_index: int


def batch_pairs(paths: Sequence[Path], names: Sequence[str]) -> list[Source]:
    """The files to read, with every batch of requests joined with its outputs.

    Outputs belong to the requests that hold the first `custom_id` of theirs that any hold. Files of other
    formats, requests without outputs, and outputs of which no requests are given stay as they are; but of one
    file of requests, outputs that belong to none are told to be unusable.

    Args:
        paths: One record a line.
        names: Of each, as the user knows it.

    Raises:
        InputError: Outputs belong to several files of requests; or as `joined`.
    """
    firsts = [_first_batch_line(path) for path in paths]
    requests = [i for i, first in enumerate(firsts) if first is not None and first.is_request]
    outputs = [i for i, first in enumerate(firsts) if first is not None and first.is_output]
    if not requests or not outputs:
        return [Source(path, i) for i, path in enumerate(paths)]
    held = {i: _sorted_hashes(paths[i]) for i in requests}
    owned: dict[int, list[int]] = {}
    for i in outputs:
        owner = _owner(paths[i], names[i], held, names)
        if owner is not None:
            owned.setdefault(owner, []).append(i)
    joint = {i for files in owned.values() for i in files}
    return [
        Source(_join(paths, names, i, owned[i]) if i in owned else path, i)
        for i, path in enumerate(paths)
        if i not in joint
    ]


def _sorted_hashes(path: Path) -> NDArray[np.int64]:
    """Those of the `custom_id` of all requests, int64."""
    ids = (line.custom_id for _, line in _lines(path) if line is not None and line.is_request)
    return np.sort(np.fromiter(map(hash, ids), np.int64))


def _owner(path: Path, name: str, held: Mapping[int, NDArray[np.int64]], names: Sequence[str]) -> int | None:
    """The file of requests that outputs belong to, None where they belong to none of several."""
    for _, line in _lines(path):
        if line is None or not line.is_output:
            continue
        key = np.int64(hash(line.custom_id))
        found = [i for i, hashes in held.items() if key in hashes[hashes.searchsorted(key) :][:1]]
        if len(found) > 1:
            holding = " and ".join(names[i] for i in found)
            raise InputError(
                f'{name}: its custom_id "{line.custom_id}" is in {holding}; expected it in one of them. '
                "Give each batch with its outputs in a run of its own."
            )
        if found:
            return found[0]
    return next(iter(held)) if len(held) == 1 else None


def _join(paths: Sequence[Path], names: Sequence[str], request: int, outputs: Sequence[int]) -> Path:
    order = (request, *outputs)
    return joined(paths[request], [paths[i] for i in outputs], [names[i] for i in order])


def joined(requests: Path, outputs: Sequence[Path], names: Sequence[str]) -> Path:
    """A batch with its outputs in a temporary file, in the order of the requests.

    A record is `{"custom_id", "request": the line of the request, "response", "error", "output": file:line}`;
    a request without an output or with several has an error that says so, and so have requests with the same
    `custom_id`, of which it cannot be told whose the output is. Lines that are no requests are copied as they
    are. Behind them, `{"id", "output", "unusable": why}` stands for each line of the outputs that cannot be
    used. In memory are the places of outputs, 25 bytes each, and 8 bytes a request.

    Args:
        requests: One a line.
        outputs: One a line, in one file or more: a server may list failures apart.
        names: Of the requests and of each file of outputs, as the user knows them.
    """
    repeated = _repeated_ids(requests)

    def write(copy: BinaryIO) -> None:
        with ExitStack() as files:
            index = _OutputIndex([files.enter_context(path.open("rb")) for path in outputs], names[1:])
            write_joined(index, copy)

    def write_joined(index: _OutputIndex, copy: BinaryIO) -> None:
        for line, request in _lines(requests):
            if request is None or not request.is_request:
                copy.write(line)
                continue
            output = index.take(request.custom_id)
            found = _BatchLine(request.custom_id, error=_NO_OUTPUT) if output is None else output
            if n := repeated.get(request.custom_id):
                said = f"custom_id {request.custom_id} is that of {n} requests; expected one"
                error = msgspec.Raw(msgspec.json.encode({"message": said}))
                found = _BatchLine(request.custom_id, error=error)
            copy.write(_joined_line(line, found))
        for place, why in index.unusable(names[0]):
            # The last request may end without a newline.
            copy.write(b"\n" + msgspec.json.encode({"id": place, "output": place, "unusable": why}) + b"\n")

    return temporary_copy(write)


def _repeated_ids(requests: Path) -> Mapping[str, int]:
    """How often each `custom_id` occurs that several requests have."""
    ids = (line.custom_id for _, line in _lines(requests) if line is not None and line.is_request)
    hashes = np.fromiter(map(hash, ids), np.int64)
    values, counts = np.unique(hashes, return_counts=True)
    several = set(values[counts > 1].tolist())
    if not several:
        return {}
    ids = (line.custom_id for _, line in _lines(requests) if line is not None and line.is_request)
    counted = Counter(each for each in ids if hash(each) in several)
    return {each: n for each, n in counted.items() if n > 1}


def _joined_line(request: bytes, output: _BatchLine) -> bytes:
    parts = (
        b'{"custom_id": ' + msgspec.json.encode(output.custom_id),
        b'"request": ' + _without_mark(request).strip(),
        b'"response": ' + bytes(output.response),
        b'"error": ' + bytes(output.error),
    )
    place = b"" if output.output is None else b', "output": ' + msgspec.json.encode(output.output)
    return b", ".join(parts) + place + b"}\n"


class _OutputIndex:
    """Where the output of every `custom_id` is, in sorted order of its hash."""

    def __init__(self, files: Sequence[BinaryIO], names: Sequence[str]) -> None:
        hashes, offsets, numbers = array("q"), array("q"), array("q")
        self._broken: list[tuple[str, str]] = []
        starts = [0]
        for file, name in zip(files, names, strict=True):
            offset = starts[-1]
            for number, line in enumerate(file, 1):
                output = _batch_line(line)
                if output is not None and output.is_output:
                    hashes.append(hash(output.custom_id))
                    offsets.append(offset)
                    numbers.append(number)
                elif line.strip():
                    self._broken.append((f"{name}:{number}", _why_no_output(line)))
                offset += len(line)
            starts.append(offset)
        self._files, self._names, self._starts = files, names, starts
        order = np.argsort(np.frombuffer(hashes, np.int64), kind="stable")
        # Single numbers are read from arrays in a fraction of the time that they take from numpy's.
        self._hashes, self._offsets, self._numbers = (
            array("q", np.frombuffer(values, np.int64)[order].tobytes())
            for values in (hashes, offsets, numbers)
        )
        self._is_taken = bytearray(len(order))

    def take(self, custom_id: str) -> _BatchLine | None:
        """The output of the request, None without one."""
        key = hash(custom_id)
        first = bisect_left(self._hashes, key)
        outputs = [(i, self._read(i)) for i in range(first, bisect_right(self._hashes, key, first))]
        # Two ids may share a hash.
        own = [(i, output) for i, output in outputs if output.custom_id == custom_id]
        for i, _ in own:
            self._is_taken[i] = True
        if len(own) > 1:
            places = ", ".join(self._place(i) for i, _ in own)
            said = f"custom_id {custom_id} has {len(own)} outputs ({places}); expected one"
            return _BatchLine(custom_id, error=msgspec.Raw(msgspec.json.encode({"message": said})))
        for i, output in own:
            output.output = self._place(i)
            return output
        return None

    def unusable(self, requests: str) -> Iterator[tuple[str, str]]:
        """Where lines are that are no outputs, or whose request is missing, with the reason."""
        yield from self._broken
        missing = (i for i, is_taken in enumerate(self._is_taken) if not is_taken)
        for i in sorted(missing, key=self._offsets.__getitem__):
            custom_id = self._read(i).custom_id
            yield (
                self._place(i),
                f'has custom_id "{custom_id}", which {requests} lacks; expected a request for every output.',
            )

    def _place(self, i: int) -> str:
        return f"{self._names[self._file(i)]}:{self._numbers[i]}"

    def _file(self, i: int) -> int:
        return bisect_right(self._starts, self._offsets[i]) - 1

    def _read(self, i: int) -> _BatchLine:
        file = self._file(i)
        self._files[file].seek(self._offsets[i] - self._starts[file])
        found = _batch_line(self._files[file].readline())
        assert found is not None
        return found


def _first_batch_line(path: Path) -> _BatchLine | None:
    """The first line that is JSON, None where it is no line of a batch; broken ones say nothing of a file."""
    for line, found in _lines(path):
        if found is not None:
            return found
        if line.strip() and _is_json(line):
            return None
    return None


def _is_json(line: bytes) -> bool:
    try:
        _ANY.decode(_without_mark(line))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _why_no_output(line: bytes) -> str:
    try:
        decode_record(_without_mark(line))
    except ConversationError as error:
        return error.reason
    return "is no output of a batch; expected an object with custom_id, response and error."


def _lines(path: Path) -> Iterator[tuple[bytes, _BatchLine | None]]:
    with path.open("rb") as handle:
        for line in handle:
            yield line, _batch_line(line)


def _batch_line(line: bytes) -> _BatchLine | None:
    try:
        return _BATCH_LINE.decode(_without_mark(line))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _without_mark(line: bytes) -> bytes:
    return line.removeprefix(codecs.BOM_UTF8)
