"""A tokenizer that gives ids and the characters each stands for, tested when it is loaded."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from importlib.metadata import version
from inspect import signature
from itertools import chain, islice, takewhile
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.dataset.choices import TokenizerLibrary, choose
from tokscore.dataset.errors import ConversationError, InputError
from tokscore.dataset.manifest import TokenizerIdentity
from tokscore.rendering.attribution.token_bytes import (
    KNOWN_DECODERS,
    TokenBytes,
    TokenDecoder,
    declared_decoder,
    sentence_piece,
)
from tokscore.rendering.tokenizers.fast_ids import FastIds, UnsuitableError, proven_fast_ids
from tokscore.rendering.tokenizers.loading import PROBE, UNICODE_PROBE, load_tokenizer
from tokscore.rendering.tokenizers.model_files import eos_ids, n_outputs
from tokscore.rendering.tokenizers.text_ids import TextIds

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PIECE_CHARACTERS = 8192
_MAX_PADDING = 2**17
_COMMIT = re.compile(r"snapshots/([0-9a-f]{40})")


class Encoding(NamedTuple):
    """Ids of a text and the characters each stands for.

    Attributes:
        token_ids: int32, shape [tokens].
        starts: int64, first character of each token.
        stops: int64, one past the last; equal to `starts` for a token that stands for no character.
    """

    token_ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


class ChatTokenizer:
    """A Hugging Face tokenizer with its chat template.

    Attributes:
        name: Base name of the model directory, or the hub id.
        hf: The transformers tokenizer.
        template: Chat template given by the user, None to take the tokenizer's own.
        eos_ids: Ids that end a turn, from the tokenizer and the generation config.
        special_ids: Ids of control tokens.
        token_bytes: Bytes of every id.
        ids: Makes the ids of texts.
        opening_ids: What transformers puts before a plain text, such as the BOS; often nothing.
    """

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        template: str | None = None,
        trust_remote_code: bool = False,
        library: str = TokenizerLibrary.AUTO,
    ) -> None:
        """Load the tokenizer of `model`.

        Args:
            model: Directory or hub id.
            revision: Branch, tag or commit on the hub.
            template: Jinja source that replaces the tokenizer's own chat template.
            trust_remote_code: Whether code that comes with the model may run.
            library: What makes the ids.

        Raises:
            InputError: No such model, or it cannot be told which characters its tokens stand for, or the
                library cannot be used for it.
        """
        self.name = model_name(model)
        self.hf: Any = load_tokenizer(
            model, revision, trust_remote_code=trust_remote_code
        )  # Any: transformers has no usable types
        self.template = template
        if "chat_template" not in signature(self.hf.apply_chat_template).parameters:
            raise InputError(
                f"{self.name} loads as {type(self.hf).__name__}, which writes conversations without a "
                "chat template.\nUse a copy of the model with tokenizer.json and a chat template."
            )
        self._backend = self.hf.backend_tokenizer if self.hf.is_fast else None
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        added = self.hf.added_tokens_decoder
        self.special_ids = frozenset(self.hf.all_special_ids) | {
            i for i, token in added.items() if token.special
        }
        self.eos_ids = eos_ids(model, revision, self.hf)
        self._n_outputs = n_outputs(model, revision)
        self._revision = revision_of(model, self.hf.name_or_path) or revision
        self._separators = self._find_separators()
        self.ids = TextIds(
            self._encode,
            self._library_name(),
            choose(TokenizerLibrary, library, "tokenizer"),
            self._load_fast_ids,
        )
        self.token_bytes, self._has_offsets = self._alignment()
        self.opening_ids = self._find_opening()

    def _alignment(self) -> tuple[TokenBytes, bool]:
        """The bytes of all ids, and whether offsets can be asked for where these do not spell a text."""
        if self._backend is None:
            ids = self.token_ids([UNICODE_PROBE])[0]
            for decoder in KNOWN_DECODERS:
                token_bytes = TokenBytes(self._contents(decoder))
                if token_bytes.spans(UNICODE_PROBE, ids) is not None:
                    return token_bytes, False
            raise InputError(
                f"{self.name} has a slow tokenizer ({type(self.hf).__name__}) whose tokens do not spell the "
                f"text: {UNICODE_PROBE!r} became {self.hf.convert_ids_to_tokens(ids.tolist())}.\n"
                "Use a copy of the model with tokenizer.json."
            )
        declared = None if self._backend.decoder is None else json.loads(self._backend.decoder.__getstate__())
        token_bytes = TokenBytes(self._contents(declared_decoder(declared)))
        offsets = np.array(self._backend.encode(PROBE, add_special_tokens=False).offsets).reshape(-1, 2)
        covered = offsets[:, 1] > offsets[:, 0]
        usable = len(covered) and covered.mean() >= 0.5 and offsets.max() >= len(PROBE) - 1
        if not usable and token_bytes.spans(PROBE, self.token_ids([PROBE])[0]) is None:
            raise InputError(
                f"the tokenizer of {self.name} gives no usable character offsets: for {PROBE!r} "
                f"{int((~covered).sum())} of {len(covered)} tokens stand for no character, the last ends at "
                f"{offsets.max(initial=0)} of {len(PROBE)}. Save it with a current version of transformers."
            )
        return token_bytes, bool(usable)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "entries"}

    @cached_property
    def entries(self) -> dict[int, str]:
        """The vocabulary entry of every id, in order of ids."""
        entries = {i: token for token, i in self.hf.get_vocab().items()}
        entries |= {i: token.content for i, token in self.hf.added_tokens_decoder.items()}
        return dict(sorted(entries.items()))

    def flags(self, ids: Collection[int]) -> NDArray[np.bool_]:
        """Whether each id is one of `ids`, bool, shape [ids]."""
        flags = np.zeros(max(len(self.token_bytes.contents), *ids, 0) + 1, bool)
        flags[list(ids)] = True
        return flags

    def _contents(self, decoder: TokenDecoder | None) -> list[bytes | None]:
        entries, added = self.entries, self.hf.added_tokens_decoder
        n_ids = max(entries) + 1
        # Models have logits for ids that pad their vocabulary; one can be sampled, and stands for no text.
        n_outputs = self._n_outputs if self._n_outputs <= n_ids + _MAX_PADDING else 0
        contents: list[bytes | None] = [None] * max(n_ids, n_outputs)
        for i, token in entries.items():
            # SentencePiece vocabularies list runs of "▁" as added tokens; they still stand for spaces.
            is_literal = i in added and (added[i].special or decoder is not sentence_piece)
            contents[i] = token.encode() if is_literal else decoder(token) if decoder else None
        return contents

    def _find_separators(self) -> list[str]:
        """Control tokens before which a text can be cut without a change to its ids.

        They are found before anything else looks at the text, so both sides are tokenised by themselves.
        """
        added = self.hf.added_tokens_decoder.values()
        inner = "\0".join(token.content[1:] for token in added)
        endings = {token.content[i:] for token in added for i in range(1, len(token.content))}
        return [
            token.content
            for token in added
            if token.special
            and not (token.normalized or token.lstrip or token.single_word)
            and token.content not in inner
            and endings.isdisjoint(token.content[:i] for i in range(1, len(token.content) + 1))
        ]

    def _find_opening(self) -> tuple[int, ...]:
        encoded = self.hf(PROBE, return_special_tokens_mask=True)
        marked = zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True)
        return tuple(token_id for token_id, _ in takewhile(itemgetter(1), marked))

    def token_ids(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Ids of each text as it is, without added special tokens; on all cores.

        Args:
            texts: Valid Unicode, without lone surrogates.
        """
        return self.ids(texts)

    def _encode(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        if self._backend is None:
            return [
                np.array(self.hf(text, add_special_tokens=False)["input_ids"], np.int32) for text in texts
            ]
        pieces = [list(self._pieces(text)) for text in texts]
        encoded = iter(self._backend.encode_batch_fast(list(chain(*pieces)), add_special_tokens=False))
        return [np.concatenate([np.array(e.ids, np.int32) for e in islice(encoded, len(p))]) for p in pieces]

    def _library_name(self) -> str:
        if self._backend is None:
            return f"transformers {version('transformers')}"
        return f"tokenizers {version('tokenizers')}"

    def _load_fast_ids(self) -> FastIds:
        if self._backend is None:
            raise UnsuitableError(f"the tokenizer is written in Python ({type(self.hf).__name__})")
        return proven_fast_ids(self._backend, self._encode)

    def _pieces(self, text: str) -> Iterator[str]:
        start = 0
        head = text[:_PIECE_CHARACTERS]
        if separators := [s for s in self._separators if s in head] if len(text) > len(head) else []:
            separator = max(separators, key=text.count)
            while (cut := text.find(separator, start + _PIECE_CHARACTERS)) > 0:
                yield text[start:cut]
                start = cut
        yield text[start:]

    def text_of(self, token_ids: NDArray[np.int32]) -> str | None:
        """The text that the bytes of all ids spell, None where they are not known or no valid text."""
        try:
            return b"".join(map(self.token_bytes.contents.__getitem__, token_ids.tolist())).decode()  # type: ignore[arg-type]
        except (TypeError, IndexError, UnicodeDecodeError):
            return None

    def align(self, text: str, token_ids: NDArray[np.int32]) -> Encoding:
        """The characters of `text` that each of its tokens stands for.

        Args:
            text: A whole text.
            token_ids: What `token_ids` gave for it.

        Raises:
            ConversationError: It cannot be told.
        """
        spans = self.token_bytes.spans(text, token_ids)
        if spans is not None:
            return Encoding(token_ids, *spans)
        if self._backend is None or not self._has_offsets:
            raise ConversationError(
                "has text that its tokens do not spell (the tokenizer changes or leaves out characters), and "
                "the tokenizer gives no character offsets.",
                hint="Use a copy of the model with tokenizer.json.",
            )
        encoded = self._backend.encode(text, add_special_tokens=False)
        offsets = np.array(encoded.offsets, np.int64).reshape(-1, 2)
        return Encoding(np.array(encoded.ids, np.int32), offsets[:, 0], offsets[:, 1])

    def encode(self, text: str) -> Encoding:
        """Ids of `text` as it is, without added special tokens, with their characters.

        Raises:
            ConversationError: It cannot be told which characters the tokens stand for.
        """
        return self.align(text, self.token_ids([text])[0])

    def chat_template(self, *, has_tools: bool) -> str:
        """The template that transformers would take.

        Raises:
            InputError: There is none.
        """
        if self.template is not None:
            return self.template
        try:
            return str(self.hf.get_chat_template(tools=[] if has_tools else None))
        except ValueError as error:
            raise InputError(
                f"{self.name} has no chat template; give one with `template=FILE` (examples/ has one)."
            ) from error

    @property
    def variables(self) -> dict[str, str]:
        """Special tokens by the names that templates use."""
        return dict(self.hf.special_tokens_map)

    def sha256(self) -> str:
        """Hash of its content: equal hashes, equal ids."""
        if self._backend is not None:
            digest = hashlib.sha256(self._backend.to_str().encode())
        else:
            digest = hashlib.sha256(json.dumps([type(self.hf).__name__, self.entries]).encode())
        digest.update(json.dumps(self.variables, sort_keys=True, default=str).encode())
        return digest.hexdigest()

    def identity(self) -> TokenizerIdentity:
        """The name, sizes and hash of the tokenizer, by which equal ones are known."""
        templates = [self.chat_template(has_tools=has_tools) for has_tools in (False, True)]
        return TokenizerIdentity(
            name=self.name,
            revision=self._revision,
            sha256=self.sha256(),
            template_sha256=hashlib.sha256("\0".join(dict.fromkeys(templates)).encode()).hexdigest(),
            vocab_size=len(self.hf),
        )


def model_name(model: str) -> str:
    """Base name of a model directory, or the hub id as it is."""
    return Path(model).resolve().name if Path(model).is_dir() else model


def revision_of(model: str, loaded_from: str) -> str | None:
    """Commit of a hub snapshot, read from its path in the cache."""
    for path in (model, loaded_from):
        if match := _COMMIT.search(os.path.realpath(path)):
            return match[1]
    return None
