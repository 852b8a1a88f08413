"""URLs as text: which names are some, and how they are shown without what is secret in them."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

# A path has lost one of the two slashes. Drives of Windows have one letter.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
_USER = re.compile(r"(?<=//)[^/@\s]+@")
_QUERY = re.compile(r"\?[^\s'\")]*")
WEB = ("http", "https")
# The package that brings a store, and the extra of tokscore with it.
PACKAGES = {
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "gs": ("gcsfs", "gs"),
    "gcs": ("gcsfs", "gs"),
    "az": ("adlfs", "az"),
    "abfs": ("adlfs", "az"),
    "abfss": ("adlfs", "az"),
    "hf": ("huggingface_hub", None),
    "http": ("aiohttp", "s3"),
    "https": ("aiohttp", "s3"),
}
# Stores that make a file on the condition that there is none, by the same call; the others are read only.
WRITTEN = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory")
# Names of variables whose values are secret, and how long a value has to be to be taken for one.
_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|CONNECTION_STRING")
_LEAST_SECRET = 8
# What is secret within a connection string.
_PIECE = re.compile(r"(?:Key|Signature)=([^;]+)")


class Url(NamedTuple):
    """A URL in two parts.

    Attributes:
        scheme: Such as s3, in small letters.
        rest: Behind the slashes.
    """

    scheme: str
    rest: str


def split_url(name: str) -> Url | None:
    """The URL that a name is; None where it is a path."""
    found = _URL.fullmatch(name)
    return None if found is None else Url(found[1].lower(), found[2])


def shown(name: str) -> str:
    """A URL without user and password, and on the web without the query, which may be a signature."""
    found = split_url(name)
    if found is None:
        return name
    rest = found.rest.partition("?")[0] if found.scheme in WEB else found.rest
    return _USER.sub("", f"{found.scheme}://{rest}")


def has_user(url: Url) -> bool:
    """Whether a user or a password stands in it."""
    return "@" in url.rest.partition("/")[0]


def without_secrets(text: str) -> str:
    """What somebody else's library says, without queries, users, and values of secret variables."""
    text = _USER.sub("", _QUERY.sub("", text))
    for name, value in os.environ.items():
        if len(value) >= _LEAST_SECRET and _SECRET.search(name.upper()):
            for secret in (value, *_PIECE.findall(value)):
                text = text.replace(secret, "...")
    return text
