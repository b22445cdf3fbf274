"""Write every figure and generated table of the site: python -m docs.generate FOLDER."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from docs.generate.hooks import PARTS, PICTURES


def main(folder: Path) -> None:
    """Write pictures as SVG and what pages name in ``<!-- generate: NAME -->`` as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {name: draw() for name, draw in PICTURES.items()}
    made |= {f"{name}.md": part() for name, part in PARTS.items()}
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(made)} figures and tables in {folder}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where they go")
    main(parser.parse_args().folder)
