"""Public names of the package, for mkdocstrings."""

from __future__ import annotations

from importlib import import_module

import mia_batch

__all__ = ["ROOMS", "package", "rooms"]

ROOMS = {
    "texts": ("corpus", "targets", "identifiers"),
    "scores": ("attacks", "features", "metrics"),
    "kernels": ("kernels",),
    "extras": (
        *(
            "extras.sets",
            "extras.sets.paraphrases",
            "extras.privacy.inversion.training",
        ),
        *("extras.privacy.audit", "extras.privacy.plan", "extras.secrets.canaries"),
    ),
}
"""Modules that users import beside the package's own page, by the page that has them."""


def package() -> str:
    """Each public name of the package, errors last."""
    names = sorted(mia_batch.__all__, key=lambda name: name.endswith("Error"))
    return "\n".join(f"::: mia_batch.{name}\n" for name in names)


def rooms(page: str) -> str:
    """Each public name of a page's rooms."""
    parts = []
    for room in ROOMS[page]:
        parts.append(f"## mia_batch.{room}\n")
        module = import_module(f"mia_batch.{room}")
        parts += [f"::: mia_batch.{room}.{name}\n" for name in module.__all__]
    return "\n".join(parts)
