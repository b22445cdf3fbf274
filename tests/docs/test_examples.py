"""Code on the pages runs: each page in a folder of its own, with the files that it speaks of.

A block marked ``<!-- not run: REASON -->`` does not run, but its commands are still
parsed.
"""

import re
import shlex
from collections import Counter
from itertools import chain
from pathlib import Path
from random import Random
from typing import NamedTuple

import click
import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch import attacks
from mia_batch.cli.main import command
from tests.checkpoints import TEXTS

REPOSITORY = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?"
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_TO_RUN = {"console", "python"}
_TO_READ = {"json", "text", "toml"}
_COMMON = [word for word, _ in Counter(" ".join(TEXTS[:20]).split()).most_common(60)]


class Block(NamedTuple):
    reason: str | None
    language: str
    title: str | None
    code: str


def blocks(page: Path) -> list[Block]:
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(m["reason"], m["language"], m["title"], m["code"]) for m in found]


def to_run(page: Path) -> list[Block]:
    return [
        each
        for each in blocks(page)
        if each.language in _TO_RUN and each.reason is None
    ]


PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
RUNNING = [page for page in PAGES if to_run(page)]


def words(n: int, seed: str) -> str:
    """Words of one token each, so that 128 of them fit into the tiny model's context."""
    return " ".join(Random(seed).choices(_COMMON, k=n))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with every file that pages take for granted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # files of a page may import each other
    monkeypatch.setattr(attacks, "_REGISTERED", {})
    for name, n, n_words in (("books", 2, 256), ("new-books", 19, 128)):
        Path(name).mkdir()
        for number in range(n):
            Path(name, f"{number}.txt").write_text(words(n_words, f"{name} {number}"))
    texts = {
        name: pl.DataFrame(
            {
                "document_id": [f"{name} {number}" for number in range(n)],
                "text": [words(24, f"{name} {number}") for number in range(n)],
            }
        )
        for name, n in {"corpus": 4, "asked": 4, "new": 30, "labelled": 24}.items()
    }
    even = pl.int_range(pl.len()) % 2 == 0
    texts["labelled"] = texts["labelled"].with_columns(member=even)
    for name, rows in texts.items():
        rows.write_parquet(f"{name}.parquet")
    answers = pl.concat(texts[name] for name in ("corpus", "asked", "new"))
    second_half = pl.col("text").str.split(" ").list.slice(12).list.join(" ")
    answers.select("document_id", candidate=second_half).write_parquet("made.parquet")
    return tmp_path


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
def test_code_on_a_page_runs_and_prints_what_stands_there(page, folder, request):
    if any("my-model/" in block.code for block in to_run(page)):
        (folder / "my-model").symlink_to(request.getfixturevalue("checkpoint"))
    names: dict[str, object] = {"__name__": page.stem}
    for block in to_run(page):
        if block.title is not None:
            Path(block.title).write_text(block.code)
        if block.language == "python":
            exec(compile(block.code, page.name, "exec"), names)
        else:
            run_console(block.code)


def run_console(code: str) -> None:
    """Run its commands; lines that follow one are lines of what it prints, spaces aside."""
    shown = ""
    for line in lines(code):
        if line.startswith("$ "):
            shown = printed(shlex.split(line[2:]))
        else:
            assert squeezed(line) in squeezed(shown), shown


def lines(code: str) -> list[str]:
    """Lines of a block, those that end in a backslash joined to the next."""
    return code.replace("\\\n", " ").splitlines()


def printed(words: list[str]) -> str:
    program, *arguments = words
    assert program == "mia-batch", f"mark a block that calls {program} as not run"
    if "--model" in arguments:
        # Texts of the yardstick are too long, and the model knows nothing.
        arguments += ["--engine", "transformers", "--no-yardstick", "--anyway"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_run_or_says_why_not(page):
    assert {each.language for each in blocks(page)} <= _TO_RUN | _TO_READ
    fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) % 2 == 0
    assert not re.search(
        r"^ {4}(\$ )?mia-batch ", page.read_text(encoding="utf-8"), re.MULTILINE
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_are_not_run_have_options_that_there_are(page):
    for line in chain.from_iterable(
        lines(each.code) for each in blocks(page) if each.reason
    ):
        if line.startswith("$ mia-batch "):
            parse(command, shlex.split(line)[2:])


def parse(group: click.Group, arguments: list[str]) -> None:
    """Parse a command line, and that of its subcommand; click raises on what there is not."""
    context = group.make_context("mia-batch", arguments)
    if context._protected_args:
        name, found, rest = group.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert found is not None
        found.make_context(name, rest, parent=context)
