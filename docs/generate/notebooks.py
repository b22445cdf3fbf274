"""Notebooks: run and stored with what they print, and shown as pages.

``python -m docs.generate.notebooks`` runs them all and stores their outputs; needs
nbclient.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["FOLDER", "page", "pages", "printed", "run"]

FOLDER = Path("docs/notebooks")


def pages() -> dict[str, str]:
    """Markdown of every notebook, by its name."""
    return {path.stem: page(json.loads(path.read_text("utf-8"))) for path in _all()}


def page(notebook: dict[str, Any]) -> str:
    """Write a notebook as Markdown: its text, its code, and what that printed."""
    parts = []
    for cell in notebook["cells"]:
        source = _text(cell["source"])
        parts.append(
            source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        )
        parts += [_shown(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """Show a run as it shows itself, anything else as text."""
    data = output.get("data", {})
    if "text/html" in data:
        return "".join(line.strip() for line in _text(data["text/html"]).splitlines())
    return f"```text\n{_text(output.get('text') or data['text/plain']).rstrip()}\n```"


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def run(path: Path, folder: Path) -> dict[str, Any]:
    """Run a notebook in a folder; return it with what it prints, progress left out."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    made: dict[str, Any] = json.loads(nbformat.writes(notebook))
    made["metadata"] = notebook.metadata | {"language_info": {"name": "python"}}
    for cell in made["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell |= {
                "execution_count": None,
                "outputs": [*map(_kept, _lasting(cell["outputs"]))],
            }
    return made


def _lasting(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave progress out: what is displayed and changes, and what goes to standard error."""
    return [
        each
        for each in outputs
        if each["output_type"] == "execute_result" or each.get("name") == "stdout"
    ]


def _kept(output: dict[str, Any]) -> dict[str, Any]:
    """Keep HTML of runs alone: of tables, text says as much in fewer bytes."""
    if "data" not in output:
        return output
    data = output["data"]
    is_run = 'class="mia-batch"' in _text(data.get("text/html", ""))
    kind = "text/html" if is_run else "text/plain"
    return output | {"execution_count": None, "data": {kind: data[kind]}}


def printed(notebook: dict[str, Any]) -> list[str]:
    """Return what each cell of code prints, as the page shows it."""
    cells = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    return ["\n".join(_shown(output) for output in cell["outputs"]) for cell in cells]


def _all() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def _main() -> None:
    for path in _all():
        with TemporaryDirectory() as folder:
            made = run(path, Path(folder))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    _main()
