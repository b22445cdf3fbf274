"""The pictures of the landing page: a terminal and a report, of the run of the first notebook.

``make pictures`` draws them anew into ``docs/assets``; the report needs Chromium.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.generate import notebooks
from mia_batch.cli.show import show_run
from mia_batch.pipeline import Run

__all__ = ["REPORT", "TERMINAL", "draw"]

TERMINAL, REPORT = Path("docs/assets/terminal.svg"), Path("docs/assets/report.png")
_COMMAND = (
    "$ mia-batch --input books/ --samples-from answers.parquet --non-members"
    " others/ ..."
)
_WIDTH, _LINES, _SIZE = 112, 6, "1280,860"
_FONT_FROM_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def draw() -> None:
    """Run the notebook, and draw what its run prints and its report."""
    with TemporaryDirectory() as folder:
        notebooks.run(notebooks.FOLDER / "book.ipynb", Path(folder))
        run = Run(next(Path(folder, "runs").iterdir()))
        TERMINAL.write_text(_terminal(run, Path(folder)), "utf-8")
        if (chromium := shutil.which("chromium")) is None:
            raise SystemExit(
                "the picture of the report needs Chromium (Debian: apt install"
                " chromium)"
            )
        page, picture = run.report().absolute().as_uri(), REPORT.absolute()
        options = (
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            f"--window-size={_SIZE}",
        )
        subprocess.run(
            [chromium, *options, f"--screenshot={picture}", page],
            check=True,
            capture_output=True,
        )


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
