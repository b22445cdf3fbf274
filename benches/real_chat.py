"""Chat data with a known truth: SmolLM2's weights tuned on half of some questions and answers.

The rows are made of Python's own documentation strings: what a function does, and the
first lines that are written about it. Which are learnt is drawn by coin. Each tuned
model is audited twice beside its base: by the tokens of the answers, after what came
before them, and by all tokens of the same conversations, as programs do that read a
conversation as a text.
"""

from __future__ import annotations

import importlib
import inspect
import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
from benches.real_tuned import audit_beside_base, compute_auc, save_base, tune

import mia_batch
from mia_batch.prompts import load_template

__all__ = ["ATTACKS", "draw_questions", "measure_chat"]

ATTACKS = (
    *("loss_v1", "min_k_20_v1", "min_k_plus_plus_20_v1"),
    *("reference_difference_v1", "wbc_v1"),
)
_MODULES = (
    *("argparse", "array", "ast", "asyncio", "base64", "bisect", "bz2", "calendar"),
    *("cmath", "codecs", "collections", "concurrent.futures", "configparser"),
    *("contextlib", "copy", "csv", "ctypes", "datetime", "decimal", "difflib", "dis"),
    *("doctest", "email.message", "email.utils", "enum", "fileinput", "fractions"),
    *("ftplib", "functools", "gettext", "glob", "gzip", "hashlib", "heapq", "hmac"),
    *("html", "http.client", "http.cookiejar", "imaplib", "inspect", "io", "ipaddress"),
    *("itertools", "json", "keyword", "linecache", "locale", "logging", "lzma"),
    *("mailbox", "math", "mimetypes", "mmap", "multiprocessing", "netrc", "numbers"),
    *("operator", "os", "pathlib", "pdb", "pickle", "pkgutil", "plistlib", "poplib"),
    *("pprint", "pydoc", "queue", "random", "re", "sched", "secrets", "selectors"),
    *("shelve", "shlex", "shutil", "smtplib", "socket", "socketserver", "sqlite3"),
    *("ssl", "stat", "statistics", "string", "struct", "subprocess", "symtable"),
    *("tarfile", "tempfile", "textwrap", "threading", "timeit", "tokenize", "trace"),
    *("traceback", "types", "typing", "unicodedata", "unittest", "urllib.parse"),
    *("urllib.request", "uuid", "warnings", "wave", "weakref", "zipfile", "zlib"),
)
_FEWEST_WORDS, _MOST_WORDS = 12, 28


def _list_documented() -> Iterator[tuple[str, str]]:
    """Iterate over functions and methods, and what is written about each."""
    for module_name in _MODULES:
        module = importlib.import_module(module_name)
        for name, member in sorted(vars(module).items()):
            if name.startswith("_"):
                continue
            if inspect.isroutine(member):
                yield f"{module_name}.{name}", inspect.getdoc(member) or ""
            if inspect.isclass(member) and member.__module__ == module_name:
                for method, routine in sorted(vars(member).items()):
                    if not method.startswith("_") and inspect.isroutine(routine):
                        place = f"{module_name}.{name}.{method}"
                        yield place, inspect.getdoc(routine) or ""


def draw_questions(n_rows: int, seed: int = 0) -> pl.DataFrame:
    """Draw questions whose answers differ; half of them, by coin, are members."""
    answers: dict[str, str] = {}
    for name, documentation in _list_documented():
        words = re.sub(r"\s+", " ", documentation).split()
        if len(words) >= _FEWEST_WORDS:
            answers.setdefault(" ".join(words[:_MOST_WORDS]), name)
    draw = Random(seed)
    chosen = draw.sample(sorted(answers.items()), n_rows)
    members = [True, False] * (n_rows // 2)
    draw.shuffle(members)
    return pl.DataFrame(
        {
            "question": [f"What does {name} of Python do?" for _, name in chosen],
            "answer": [answer for answer, _ in chosen],
            "member": members,
        }
    )


def write_as_texts(questions: pl.DataFrame, base: Path, path: Path) -> None:
    """Write each conversation as the one text that a program reads which knows no chat."""
    template = load_template((str(base), None, "base"))
    texts = [
        template.render(
            [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        )
        for question, answer in questions.select("question", "answer").iter_rows()
    ]
    table = questions.select("member").with_columns(text=pl.Series(texts))
    table.write_parquet(path)


def measure_aucs(run: mia_batch.Run) -> dict[str, list[float]]:
    """Return the AUC of each attack and the ends of its interval."""
    return {
        attack: [*compute_auc(run["scores"], attack).values()] for attack in ATTACKS
    }


def measure_chat(
    gguf: Path, folder: Path, epochs: list[int], n_rows: int
) -> Iterator[dict[str, Any]]:
    """Tune and audit; yield a row for each number of epochs."""
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / "base"
    if not base.exists():
        save_base(gguf, base)
    corpus, texts = folder / "questions.parquet", folder / "texts.parquet"
    questions = draw_questions(n_rows)
    questions.write_parquet(corpus)
    write_as_texts(questions, base, texts)
    for n_epochs in epochs:
        start = time.monotonic()
        target = folder / f"target-{n_epochs}"
        trained = tune(base, corpus, target, n_epochs)
        learnt = time.monotonic()
        areas = {}
        for name, path in (("answers", corpus), ("all tokens", texts)):
            out = folder / f"run-{n_epochs}-{path.stem}"
            run = audit_beside_base(path, target, base, out, ATTACKS)
            areas[name] = measure_aucs(run)
        yield {
            "epochs": n_epochs,
            "rows": n_rows,
            "last_loss": round(trained.losses[-1]["loss"], 3),
            "seconds_to_tune": round(learnt - start),
            "seconds_to_audit": round(time.monotonic() - learnt),
            "aucs": areas,
        }
