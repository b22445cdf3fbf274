"""The pictures of the landing page and of the gallery: a terminal, and first screens of reports.

``make pictures`` draws them anew into ``docs/assets``; reports need Chromium. It keeps no
journal of runs, since each drawing would count as another attempt at the same texts.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import mia_batch
from docs.generate import notebooks
from docs.generate.parrot import serve_parrot
from mia_batch.cli.show import show_run
from mia_batch.pipeline import Run

__all__ = ["GALLERY", "TERMINAL", "draw"]

_ASSETS = Path("docs/assets")
TERMINAL = _ASSETS / "terminal.svg"
GALLERY = ("book", "book-alone", "labelled", "endpoint", "tuned")
"""A picture of each stands on the page "Pictures of answers", as ``report-NAME.webp``."""
_COMMAND = (
    "$ mia-batch --input books/ --samples-from answers.parquet --non-members"
    " others/ ..."
)
_WIDTH, _LINES, _SIZE = 112, 6, "1280,860"
_FONT_FROM_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def draw() -> None:
    """Make the runs, and draw what the first prints and the report of each."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit(
            "pictures of reports need Chromium (Debian: apt install chromium)"
        )
    with TemporaryDirectory() as name:
        folder = Path(name)
        runs = _make_runs(folder)
        TERMINAL.write_text(_terminal(runs["book"], folder / "book"), "utf-8")
        for picture in GALLERY:
            _draw_report(runs[picture], chromium, _ASSETS / f"report-{picture}.webp")


def _make_runs(folder: Path) -> dict[str, Run]:
    """Make a run for each picture of the gallery, below a folder."""
    runs = {
        "book": _run_notebook("book", folder / "book"),
        "labelled": _run_notebook("paper-table", folder / "labelled"),
        "tuned": _run_notebook("fine-tuned", folder / "tuned"),
    }
    recording = runs["book"].folder / "samples_from.parquet"
    shutil.copy(recording, folder / "book" / "answers.parquet")
    with chdir(folder / "book"):
        alone = mia_batch.audit(
            "books",
            samples_from="answers.parquet",
            window_words=128,
            out="runs/books-alone",
        )
        with serve_parrot(Path("books/dawn.txt").read_text("utf-8")) as address:
            asked = mia_batch.audit(
                "books",
                "parrot",
                base_url=address,
                price_in=0.5,
                price_out=1.5,
                window_words=128,
                max_windows_per_document=2,
                non_members="others",
                non_members_known="the parrot knows one book",
                level="group",
            )
    runs["book-alone"] = Run(folder / "book" / alone.folder)
    runs["endpoint"] = Run(folder / "book" / asked.folder)
    return runs


def _run_notebook(name: str, folder: Path) -> Run:
    """Run a notebook in a folder; return the run that it makes."""
    folder.mkdir()
    notebooks.run(notebooks.FOLDER / f"{name}.ipynb", folder)
    return Run(next(Path(folder, "runs").iterdir()))


def _draw_report(run: Run, chromium: str, picture: Path) -> None:
    """Draw the first screen of a report as WebP without loss."""
    from PIL import Image

    page = run.report().absolute().as_uri()
    with TemporaryDirectory() as folder:
        shot = Path(folder, "shot.png")
        options = (
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            f"--window-size={_SIZE}",
        )
        subprocess.run(
            [chromium, *options, f"--screenshot={shot}", page],
            check=True,
            capture_output=True,
        )
        with Image.open(shot) as image:
            image.convert("RGB").save(picture, lossless=True, method=6)


def _terminal(run: Run, folder: Path) -> str:
    """Draw the answer and the table of books, with which the output begins."""
    from rich.console import Console
    from rich.text import Text

    shown = Console(width=_WIDTH, file=io.StringIO(), force_terminal=True)
    show_run(run, shown)
    lines = shown.file.getvalue().splitlines()[:_LINES]  # type: ignore[attr-defined]
    console = Console(
        record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True
    )
    console.print(_COMMAND, highlight=False, markup=False)
    for line in (*lines, "..."):
        console.print(Text.from_ansi(line))
    drawn = console.export_svg(title="mia-batch", unique_id="terminal").replace(
        f"{folder}/", ""
    )
    return _FONT_FROM_ELSEWHERE.sub("", drawn)


if __name__ == "__main__":
    draw()
