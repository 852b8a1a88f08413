"""Chat templates in files of their own."""

from __future__ import annotations

from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import PathName, location


def read_template(path: PathName) -> str:
    """The source of a chat template.

    Raises:
        UsageError: It cannot be read, or is no text.
    """
    name = location(path)
    try:
        return name.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the template {name}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the template {name} is not UTF-8: byte {error.start} is damaged.") from error
