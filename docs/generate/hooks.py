"""What mkdocs calls: fills each page's ``<!-- generate: NAME -->``, and draws the pictures."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from docs.generate import (
    attacks,
    clauses,
    figures,
    notebooks,
    published,
    python,
    recipes,
    rooms,
    settings,
    speed,
    tables,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

PARTS: dict[str, Callable[[], str]] = {
    "attacks": attacks.sections,
    "clauses": clauses.sections,
    "books": figures.books,
    "answers": figures.answers,
    "rl": figures.rl,
    "choices": figures.choices,
    "power": figures.power,
    "coverage": figures.coverage,
    "curves": speed.curves,
    "draws": figures.draws,
    "drawing": figures.drawing,
    "copies": figures.copies,
    "history": speed.history,
    "manuals": figures.manuals,
    "passes": figures.passes,
    "points": figures.points,
    "package": python.package,
    "datasets": published.known_sets,
    "differences": published.differences,
    "models": published.known_models,
    "published": published.sections,
    "few": figures.few_books,
    "rates": figures.rates,
    "knownmodels": recipes.sections,
    "recipes": recipes.overview,
    "recited": figures.recited,
    "rooms": rooms.layers,
    "roots": recipes.roots,
    "roworder": figures.row_order,
    "rowlevels": figures.row_levels,
    "settings": settings.sections,
    "strips": figures.strips,
    "tuned": figures.tuned,
    "weights": figures.weights,
    **{f"{page}rooms": partial(python.rooms, page) for page in python.ROOMS},
    **{f"{page}columns": partial(tables.sections, page) for page in tables.PAGES},
}
PICTURES: dict[str, Callable[[], str]] = {
    "curves.svg": speed.curve_picture,
    "history.svg": speed.history_picture,
    "power.svg": figures.power_picture,
}
_LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
)
_MARK = re.compile(r"<!-- generate: ([a-z]+) -->")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures, and the notebooks as pages."""
    for name, draw in PICTURES.items():
        files.append(File.generated(config, name, content=draw()))
    for name, content in notebooks.pages().items():
        files.append(File.generated(config, f"notebooks/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the generated parts where a page names them."""
    return _MARK.sub(_part, markdown)


def _part(mark: re.Match[str]) -> str:
    name = mark[1]
    if name not in PARTS:
        msg = f"a page asks for the part {name!r}; there are {', '.join(PARTS)}"
        raise PluginError(msg)
    return PARTS[name]()


def on_post_page(output: str, **_: object) -> str:
    """Refuse a page that would load anything from elsewhere."""
    if found := _LOADED.search(output):
        msg = f"a page loads from the network: {found[0]}"
        raise PluginError(msg)
    return output
