"""Passages of real text that every Python carries: the documentation of the standard library.

Sources are parsed, never imported. The same Python gives the same passages on every machine.
"""

from __future__ import annotations

import ast
import os
import re
import sysconfig
import warnings
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "SHARED_RUN",
    "Passage",
    "choose_passages",
    "cut_passages",
    "drop_near_duplicates",
    "hash_order",
    "read_modules",
]

SHARED_RUN = 13
"""No two passages share so many words in a row: members would leak into non-members."""

_CHARACTERS_PER_WORD = 9  # at most; tables and drawings have more, prose about 6
_TOPICS = "pydoc_data.topics"
_NOT_DOCUMENTATION = frozenset(
    {"__pycache__", "dist-packages", "idlelib", "lib2to3", "site-packages", "test", "tests"}
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of one module's documentation."""

    module: str  # dotted name
    index: int  # among the module's passages, from 0
    text: str  # the words with the white space between them, as the source has them


def read_modules(library: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield name and documentation of the modules of ``library`` (None: this Python's own).

    The order is fixed; modules without documentation, and files that are not Python, are left out.
    """
    root = Path(sysconfig.get_path("stdlib")) if library is None else library
    for path in _source_files(root):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        if text := _documentation(path, topics=module == _TOPICS):
            yield module, text


def _source_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _NOT_DOCUMENTATION)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _documentation(path: Path, *, topics: bool) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old sources
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return ""
    text = "\n\n".join(_topics(tree) if topics else _docstrings(tree))
    return text.encode(errors="ignore").decode()  # without lone surrogates


def _docstrings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
        yield text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _docstrings(child)


def _topics(tree: ast.Module) -> Iterator[str]:
    """Values of the dictionary of help topics, in their order."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for value in node.values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def cut_passages(module: str, text: str, *, n_words: int) -> Iterator[Passage]:
    """Cut a text into passages of ``n_words`` words (`str.split`); a shorter rest is left out.

    Tables and drawings are left out, too: passages of more than 9 characters a word.
    """
    words = list(re.finditer(r"\S+", text))
    for index in range(len(words) // n_words):
        first, last = words[index * n_words], words[(index + 1) * n_words - 1]
        passage = text[first.start() : last.end()]
        if len(passage) <= _CHARACTERS_PER_WORD * n_words:
            yield Passage(module=module, index=index, text=passage)


def drop_near_duplicates(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Keep the passages that share no ``SHARED_RUN`` words in a row with one kept before."""
    seen: set[tuple[str, ...]] = set()
    for passage in passages:
        words = passage.text.split()
        runs = {tuple(words[i : i + SHARED_RUN]) for i in range(len(words) - SHARED_RUN + 1)}
        if seen.isdisjoint(runs):
            seen |= runs
            yield passage


def choose_passages(
    passages: Iterable[Passage], *, n_passages: int, per_module: int
) -> list[Passage]:
    """Choose an even number of each module's passages, by hash, from the largest modules first."""
    modules = [hash_order(group, "choice") for _, group in groupby(passages, attrgetter("module"))]
    chosen: list[Passage] = []
    for module in sorted(modules, key=len, reverse=True):
        room = min(per_module, n_passages - len(chosen))
        chosen += module[: min(room, len(module)) // 2 * 2]
    if len(chosen) < n_passages:
        msg = (
            f"the demo needs {n_passages} passages of documentation, but the standard library in "
            f"{sysconfig.get_path('stdlib')} gives {len(chosen)}; use a Python that is installed "
            "with its sources"
        )
        raise SettingsError(msg)
    return chosen


def hash_order(passages: Iterable[Passage], *salt: object) -> list[Passage]:
    """Sort passages by a hash of salt and text: the same on all machines, random to all else."""
    return sorted(passages, key=lambda passage: blake2b(f"{salt} {passage.text}".encode()).digest())
