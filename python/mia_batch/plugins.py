"""Entry points: this package's extras, and what other packages add.

A group is ``mia_batch.KIND``. Of ``attacks``, ``engines`` and ``formats`` there are
built-in ones, too; commands that audits do without, makers of models, executors for
many machines and places of run folders are extras, which the core loads at use and
never imports.
"""

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from mia_batch.errors import MiaBatchError, SettingsError


def plugins(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points of a kind by name; of equal names the last."""
    return {point.name: point for point in entry_points(group=f"mia_batch.{kind}")}


def load_all(
    kind: str, error: type[MiaBatchError] = SettingsError
) -> Iterator[tuple[str, Any]]:
    """Iterate over the plugins of a kind, with their modules; names may repeat."""
    for point in entry_points(group=f"mia_batch.{kind}"):
        yield point.value, _load(kind, point, error)


def extra(kind: str, name: str) -> Any:
    """Load the plugin of an entry point; raises `SettingsError` where it cannot."""
    point = plugins(kind).get(name)
    if point is None:
        raise SettingsError(
            f"no installed package has {name!r} of mia_batch.{kind}; install mia-batch"
            " anew: it is older than its files"
        )
    return _load(kind, point, SettingsError)


def _load(kind: str, point: EntryPoint, error_type: type[MiaBatchError]) -> Any:
    try:
        return point.load()
    except Exception as error:  # a stranger's module may raise anything
        singular = kind.removesuffix("s")
        raise error_type(
            f"the {singular} {point.name!r} of {point.value} cannot be loaded: {error}"
        ) from error
