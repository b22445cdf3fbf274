"""What is found by entry points: this package's extras, and what other packages add.

A group is ``mia_batch.KIND``. Of ``attacks`` and ``engines`` there are built-in ones,
too; commands that audits do without, makers of models, executors for many machines and
places of run folders are extras, which the core loads at use and never imports.
"""

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from mia_batch.errors import MiaBatchError, SettingsError


def plugins(kind: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"mia_batch.{kind}")}


def every(
    kind: str, error: type[MiaBatchError] = SettingsError
) -> Iterator[tuple[str, Any]]:
    """Load what all packages add of a kind, with its place in them; names may be there twice."""
    for point in entry_points(group=f"mia_batch.{kind}"):
        yield point.value, _loaded(kind, point, error)


def extra(kind: str, name: str) -> Any:
    """Load what an entry point names; raises `SettingsError` where that is impossible."""
    if (point := plugins(kind).get(name)) is None:
        raise SettingsError(
            f"no installed package has {name!r} of mia_batch.{kind}; install mia-batch"
            " anew: it is older than its files"
        )
    return _loaded(kind, point, SettingsError)


def _loaded(kind: str, point: EntryPoint, wrong: type[MiaBatchError]) -> Any:
    try:
        return point.load()
    except Exception as error:  # whatever a stranger's module raises
        what = f"{kind.removesuffix('s')} {point.name!r} of {point.value}"
        raise wrong(f"the {what} cannot be loaded: {error}") from error
