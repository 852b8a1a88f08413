"""The ids that a score dataset lists at each token, for another model to be scored at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tokscore.dataset.errors import InputError
from tokscore.dataset.files import PathName, path_name
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.token_rows import conversation_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.dataset.manifest import Manifest, TokenizerIdentity
    from tokscore.dataset.token_rows import Place, TokenRows
    from tokscore.dataset.tokens import RenderedConversation


class ListedIds:
    """Reads the lists of a finished score dataset by conversation.

    It is opened where it is first used, so that processes that read each open it themselves.

    Attributes:
        root: The dataset.
        manifest: Its manifest.
        width: Most ids of a list.
    """

    def __init__(self, dataset: PathName) -> None:
        """Check the dataset.

        Raises:
            InputError: It is no finished score dataset, or has no lists.
        """
        self.root = Path(path_name(dataset))
        self._open: tuple[dict[tuple[str, int], Place], TokenRows, TokenRows] | None = None
        self.manifest: Manifest = Dataset(self.root, kind=DatasetKind.SCORES).manifest
        width = self.manifest.settings.get("top_k")
        if not isinstance(width, int) or width < 1:
            raise InputError(
                f"{self.root} was scored with `top_k` {width} and has no lists; expected at least 1 id."
            )
        self.width = width

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_open": None}

    def check_tokenizer(self, tokenizer: TokenizerIdentity) -> None:
        """Refuse a dataset whose ids mean something else.

        Raises:
            InputError: It has another tokenizer.
        """
        mine = self.manifest.tokenizer
        if mine.sha256 != tokenizer.sha256:
            raise InputError(
                f"{self.root} has the tokenizer {mine.name} (sha256 {mine.sha256[:12]}), and what is to be "
                f"scored {tokenizer.name} ({tokenizer.sha256[:12]}); `at` needs the same ids in both."
            )

    def reason_against(self, conversation: RenderedConversation) -> str | None:
        """Why a conversation has no lists there; None where it has."""
        places, tokens, _ = self._opened()
        row, token_ids = conversation.row, conversation.tokens.token_ids
        place = places.get((row.conversation_id, row.branch))
        if place is None:
            return f"is not in {self.root}, which `at` names."
        stored = tokens.read_all([place])["token_id"].to_numpy()
        n = min(len(stored), len(token_ids))
        differs = np.flatnonzero(stored[:n] != token_ids[:n])
        if not len(differs) and len(stored) == len(token_ids):
            return None
        position = int(differs[0]) if len(differs) else n
        return f"has other tokens in {self.root}, which `at` names, from position {position} on."

    def of(self, conversation: RenderedConversation) -> NDArray[np.int32]:
        """The ids listed at the tokens after the first, int32 [tokens-1, width], -1 where there are fewer.

        Raises:
            InputError: A list is longer than the manifest says, or a file is damaged.
        """
        places, _, lists = self._opened()
        place = places[conversation.row.conversation_id, conversation.row.branch]
        column = lists.read_all([place])["top_ids"].combine_chunks()
        lengths = pc.list_value_length(column).fill_null(0).to_numpy()
        if len(lengths) and lengths.max() > self.width:
            raise InputError(
                f"{self.root}: {conversation_name(*place.key)} has a list of {lengths.max()} ids; expected "
                f"at most {self.width}. Score it again."
            )
        ids = np.full((len(lengths), self.width), -1, np.int32)
        ids[np.arange(self.width) < lengths[:, None]] = column.flatten().to_numpy()
        return ids[1:]

    def _opened(self) -> tuple[dict[tuple[str, int], Place], TokenRows, TokenRows]:
        if self._open is None:
            dataset = Dataset(self.root, kind=DatasetKind.SCORES)
            places = {place.key: place for place in dataset.places()}
            self._open = places, dataset.token_rows(["token_id"]), dataset.token_rows(["top_ids"])
        return self._open
