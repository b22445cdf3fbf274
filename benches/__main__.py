"""The benches: ``python -m benches`` lists them, ``python -m benches run`` runs those of a release.

python -m benches             one line for each; a star stands at those of a release
python -m benches run         run those of a release, in their order
python -m benches.NAME        run one, with options of its own (--help says which)
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["FOLDER", "OF_A_RELEASE", "list_benches", "main"]

FOLDER = Path(__file__).parent
OF_A_RELEASE: tuple[tuple[str, ...], ...] = (
    ("sampling",),
    ("logprobs",),
    ("gpu.card", "--small"),
    ("memory",),
    ("kernels",),
    ("features",),
    ("interval_coverage",),
    ("p_value_calibration",),
    ("speed_ratios",),
    ("few_books",),
    ("dependence",),
    ("trying",),
    ("design",),
    ("draws", "--simulations", "1000"),
    ("stopping",),
    ("one_book",),
    ("blind",),
    ("gate",),
    ("drift",),
    ("weights",),
    ("wikimia",),
    ("power",),
    ("manuals",),
    ("real", "choice"),
    ("real", "tuned"),
    ("real", "chat"),
    ("books",),
    ("book_audit",),
    ("yardstick",),
    ("report",),
    ("finetuned",),
    ("privacy",),
    ("privacy", "--claims", "1000"),
    ("scale",),
    ("storage",),
)
"""Names of benches and their options, in the order in which ``make bench`` runs them."""


def list_benches() -> dict[str, str]:
    """List the modules that can be run, each with the first line of its docstring."""
    return dict(_iterate_benches())


def _iterate_benches() -> Iterator[tuple[str, str]]:
    # Nothing is imported: a bench loads what it measures, which takes seconds.
    for path in sorted(FOLDER.rglob("*.py")):
        if path.name == "__main__.py":
            continue
        tree = ast.parse(path.read_text("utf-8"))
        if any(map(_runs_as_program, tree.body)):
            name = ".".join(path.relative_to(FOLDER).with_suffix("").parts)
            yield name, (ast.get_docstring(tree) or "").partition("\n")[0]


def _runs_as_program(statement: ast.stmt) -> bool:
    """Return whether a statement is ``if __name__ == "__main__"``."""
    return isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test)


def main(arguments: list[str]) -> None:
    benches = list_benches()
    if not arguments:
        names = {name for name, *_ in OF_A_RELEASE}
        width = max(map(len, benches))
        for name, sentence in benches.items():
            print(f"{'*' if name in names else ' '} {name:{width}}  {sentence}")
    elif arguments == ["run"]:
        for name, *options in OF_A_RELEASE:
            module = [sys.executable, "-m", f"benches.{name}", *options]
            title = " ".join([benches[name], *options])
            subprocess.run([".ci/step", title, *module], check=True)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
