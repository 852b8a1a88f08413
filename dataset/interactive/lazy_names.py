"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

# As in `typing`: nothing here is imported before a command can be interrupted.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def lazy_names(
    package: str, modules: Mapping[str, str], others: Iterable[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """What a package needs as `__getattr__` and `__dir__`.

    Args:
        package: Its `__name__`.
        modules: The module of every name that it has without importing it.
        others: Names that it has already.
    """

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(modules[name]), name)

    def names() -> list[str]:
        return sorted({*modules, *others})

    return find, names
