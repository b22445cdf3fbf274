"""Inputs that once failed, a folder each next to the repository, with what is expected of them.

A folder that no test here knows fails, so that none is forgotten.
"""

import re
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from hashlib import md5
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch import Run
from mia_batch.cli.main import command
from mia_batch.corpus import read_documents
from mia_batch.errors import CorpusError, EngineError, MiaBatchError, SettingsError
from tests.conftest import REPOSITORY
from tests.golden import test_endpoint_habits as habits
from tests.hostile_server import MODEL, Asked, HostileServer, Reply
from tests.runs import audit, said_of, words

FOLDER = REPOSITORY.parent / "shared" / "cases"
FIRST_WORDS = "It was a bright cold day"
TEN_WORDS = "one two three four five six seven eight nine ten"


# Corpora that are read.


def one_text(
    name: str, start: str = FIRST_WORDS, *, without: tuple[str, ...] = ()
) -> Callable[[Path], None]:
    """Check that a file is one document that begins so."""

    def check(case: Path) -> None:
        corpus = read_documents(case / name)
        text = corpus.documents.collect()["text"].item()
        assert corpus.n_documents == 1
        assert text.startswith(start)
        assert [passage for passage in without if passage in text] == []

    return check


def labels(name: str, members: int, nonmembers: int) -> Callable[[Path], None]:
    def check(case: Path) -> None:
        member = read_documents(case / name).documents.collect()["member"]
        assert (member.sum(), (~member).sum()) == (members, nonmembers)

    return check


def refused(name: str, sentence: str) -> Callable[[Path], None]:
    def check(case: Path) -> None:
        with pytest.raises(CorpusError, match=sentence):
            read_documents(case / name)

    return check


def further_columns(case: Path) -> None:
    corpus = read_documents(case / "names.parquet")
    columns = pl.read_parquet_schema(case / "names.parquet")
    passed = corpus.documents.collect_schema().names()
    for name in columns:
        assert name in passed or f"input_{name}" in passed


def null_for_nan(case: Path) -> None:
    rows = read_documents(case / "nan.jsonl").documents.collect()
    assert rows["score_"].to_list() == [None]


def half_surrogate(case: Path) -> None:
    refused("sur.jsonl", "line 1: not valid JSON")(case)
    with pytest.raises(
        CorpusError, match=r"no row that can be read .*line 1: .*1 set aside"
    ):
        read_documents(case / "sur.jsonl", bad_input="set-aside")


def notes_in_epub(case: Path) -> None:
    text = read_documents(case / "b.epub").documents.collect()["text"].item()
    assert "hyphen zero x2 note" in text


def one_bad_file(case: Path) -> None:
    corpus = read_documents(case, bad_input="set-aside")
    assert sorted(corpus.documents.collect()["document_id"]) == [
        "good.epub",
        "good.txt",
    ]
    bad_files = {Path(place.partition(",")[0]).name for place in corpus.set_aside}
    assert bad_files == {"broken.epub", "latin.txt"}


def made_folder(script: str, command_of: list[str]) -> Callable[[Path], None]:
    def check(case: Path) -> None:
        subprocess.run([*command_of, script], cwd=case, check=True)
        corpus = read_documents(case, bad_input="set-aside")
        assert corpus.documents.collect()["document_id"].to_list() == ["good.txt"]
        rejected = [*corpus.set_aside, *corpus.ignored]
        assert any("lost.txt" in place or ".jpg" in place for place in rejected)

    return check


# Whole audits. A server knows texts by heart; a case changes what it says.


class Reciter(habits.Reciter):
    """Knows texts by heart, whichever these are, and says them as ``dress`` has it."""

    def __init__(self, texts: list[str], dress: Callable[[str], str] = str) -> None:
        self.texts = texts
        self.dress = dress

    def continuation(self, prompt: str) -> str:
        place = prompt[-habits.PLACE_CHARS :]
        for text in self.texts:
            if place in text:
                return text.partition(place)[2]
        return " " + " ".join(words(prompt, 60))  # other ones after each prompt

    def choice(self, asked: Asked, number: int, text: str) -> dict[str, Any]:
        return super().choice(asked, number, self.dress(text))


def audit_of(reciter: Callable[[Asked], Reply], corpus: Path, **settings: Any) -> Run:
    with HostileServer(reciter) as server:
        return audit(
            input=str(corpus),
            model=MODEL,
            base_url=server.url,
            report=False,
            out=str(corpus.with_name("run")),
            **{"preset": "matched", "samples": 1} | settings,
        )


def auc_of(run: Run) -> float:
    rows = run["metrics"].filter(
        attack="samia_matched_v1", metric="roc_auc", slice="all"
    )
    return float(rows["value"].item())


def dressed(dress: Callable[[str], str]) -> Callable[[Path], None]:
    """Check that a chat server with such answers is audited like a plain one."""

    def check(case: Path) -> None:
        corpus = habits.Reciter().texts
        member = [1, 0] * (len(corpus) // 2)
        path = case / "corpus.parquet"
        pl.DataFrame({"text": corpus, "label": member}).write_parquet(path)
        run = audit_of(
            Reciter(corpus[::2], dress), path, chat=True, preset=None, samples=None
        )
        best = run["metrics"].filter(metric="roc_auc", slice="all")["value"].max()
        assert best == 1.0
        assert "AUC 1.00" in run.answer

    return check


def ligatures(case: Path) -> None:
    rows = pl.read_parquet(case / "corpus.parquet")
    plain = {
        place: unicodedata.normalize("NFKC", text).replace("\u017f", "s")
        for place, text in enumerate(rows.filter("member")["text"])
    }
    printed = rows.filter("member")["text"].to_list()

    class Plain(Reciter):
        def continuation(self, prompt: str) -> str:
            place = prompt[-habits.PLACE_CHARS :]
            for number, text in enumerate(printed):
                if place in text:
                    rest = text.partition(place)[2]
                    return plain[number][-len(unicodedata.normalize("NFKC", rest)) :]
            return " nothing at all of that kind"

    assert auc_of(audit_of(Plain([]), case / "corpus.parquet")) == 1.0


def swapped_labels(case: Path) -> None:
    rows = pl.read_parquet(case / "corpus.parquet")
    known_texts = rows.filter(~pl.col("member"))["text"].to_list()
    run = audit_of(Reciter(known_texts), case / "corpus.parquet")
    assert auc_of(run) == 0.0
    assert "swapped" in run.answer


def lying_usage(case: Path) -> None:
    texts = habits.Reciter().texts
    path = case / "corpus.parquet"
    pl.DataFrame({"text": texts}).write_parquet(path)

    class Lying(Reciter):
        def __call__(self, asked: Asked) -> Reply:
            reply = super().__call__(asked)
            if asked.method == "POST":
                reply.content["usage"] = {"prompt_tokens": 0, "completion_tokens": 0}
            return reply

    server = Lying(texts)
    with pytest.raises(EngineError, match=r"max_cost= is 0\.5"):
        audit_of(server, path, price_in=1000.0, price_out=1000.0, max_cost=0.5)


def settings_of_a_stranger(case: Path) -> None:
    caught: list[Asked] = []

    def catch(asked: Asked) -> Reply:
        caught.append(asked)
        return Reply(content={})

    with HostileServer(catch) as server, pytest.MonkeyPatch.context() as patch:
        settings = case / "mia-batch.toml"
        settings.chmod(0o644)
        text = settings.read_text("utf-8")
        settings.write_text(
            re.sub(r'base_url = ".*"', f'base_url = "{server.url}"', text)
        )
        patch.chdir(case)
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        outcome = CliRunner().invoke(command, ["--input", "corpus.parquet"])
    assert isinstance(outcome.exception, SettingsError)
    assert caught == []


def wrong_types_in_a_run(case: Path) -> None:
    texts = habits.Reciter().texts
    path = case / "corpus.parquet"
    pl.DataFrame({"text": texts, "label": [1, 0] * (len(texts) // 2)}).write_parquet(
        path
    )
    folder = audit_of(Reciter(texts[::2]), path).folder
    subprocess.run([sys.executable, case / "make.py", folder], check=True)
    for name in ("verify", "show", "report", "table"):
        outcome = CliRunner().invoke(command, [name, str(folder)])
        assert outcome.exit_code != 0
        assert isinstance(outcome.exception, MiaBatchError | SystemExit), (
            name,
            outcome.exception,
        )


def counting(case: Path) -> None:
    """A server that only goes on counting; each book's first sentence is invented."""
    books = [path.read_text("utf-8") for path in sorted((case / "books").glob("*.txt"))]
    invented = 120  # characters, of which it knows nothing

    class Counting(Reciter):
        def continuation(self, prompt: str) -> str:
            for text in self.texts:
                start = text.find(prompt[-40:])
                if start >= invented:
                    return text[start + 40 :]
            return f" {md5(prompt.encode()).hexdigest()} and then"

    run = audit_of(
        Counting(books),
        case / "books",
        samples=2,
        window_words=64,
        controls=True,
    )
    sentences = said_of(run)
    assert not any(
        re.search(r"[1-9] come out word for word", sentence) for sentence in sentences
    )
    assert any(
        "foresee" in sentence or "foreseen" in sentence for sentence in sentences
    )


def covered_elsewhere(_: Path) -> None:
    """Is nothing to do here: the tests named with the case do it."""


PRELUDE = "Sure! Here's the continuation of the text:\n\n"
CASES: dict[str, Callable[[Path], None]] = {
    "alpaca": refused("a.jsonl", "text_column="),
    "chat-ellipsis": dressed(lambda text: f"...{text.strip()}"),
    "chat-fence": dressed(lambda text: f"```\n{text.strip()}\n```"),
    "chat-prelude": dressed(lambda text: f"{PRELUDE}{text.strip()}"),
    "counting-books": counting,
    "csv-quote-bomb": refused("b3.csv.xz", "a record of more than 16 MiB"),
    "data-column-prompt": further_columns,
    "data-csv-header-space": labels("sp.csv", 1, 0),
    "data-duplicate-key": refused("dupk.jsonl", "line 1: two keys 'text'"),
    "data-inverted-labels": swapped_labels,
    "data-json-array": one_text("arr.json", TEN_WORDS),
    "data-json-gz": one_text("c4.json.gz", TEN_WORDS),
    "data-lone-surrogate": half_surrogate,
    "data-mimir-shape": labels("mimir.jsonl", 1, 1),
    "data-nan": null_for_nan,
    "data-tsv": labels("a.tsv", 1, 0),
    "drift-service": covered_elsewhere,  # unit/pipeline/test_order.py
    # test_endpoint_habits.py, as all of these
    "endpoint-azure-address": (covered_elsewhere),
    "endpoint-finish-empty": covered_elsewhere,
    "endpoint-index-from-1": covered_elsewhere,
    "endpoint-max-completion-tokens": covered_elsewhere,
    "endpoint-path-in-address": covered_elsewhere,
    "endpoint-reasoning-empty": covered_elsewhere,
    "endpoint-sse-only": covered_elsewhere,
    "env-socks": covered_elsewhere,
    "epub-backslash-names": one_text("b.epub", ""),
    "epub-container-blank-line": one_text("b.epub"),
    "epub-container-slash": one_text("b.epub"),
    "epub-soft-hyphen-ruby-notes": notes_in_epub,
    "epub-spine-ghost": one_text("b.epub"),
    "epub-title-ampersand": one_text("b.epub", ""),
    "folder-dangling-link": made_folder("make.sh", ["sh"]),
    "folder-name-bytes": made_folder("make.py", [sys.executable]),
    "folder-one-bad-file": one_bad_file,
    "gutenberg-copyrighted": one_text(
        "b.txt", without=("Updated editions", "COPYRIGHTED")
    ),
    "gutenberg-french-footer": one_text(
        "b.txt", without=("Updated editions", "Fin du Projet")
    ),
    "gutenberg-german-footer": one_text(
        "b.txt", without=("Updated editions", "Ende dieses")
    ),
    "gutenberg-latin1-declared": one_text("b.txt", "caf\u00e9"),
    "hf-save-to-disk": labels("", 4, 4),
    "hive-partition": labels("", 4, 4),
    "html-less-than": one_text("a.html", "<"),
    "lying-usage": lying_usage,
    "runjson-types": wrong_types_in_a_run,
    "text-ligatures-long-s": ligatures,
    "toml-steals-env": settings_of_a_stranger,
    "txt-aozora-ruby": one_text(
        "b.txt", "\u543e\u8f29\u306f\u732b", without=("\u300a\u308f",)
    ),
    "txt-utf16-bom": one_text("b.txt", "caf\u00e9"),
}


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in FOLDER.glob("*/EXPECT"))
)
def test_a_case_does_what_it_expects(name, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    case = tmp_path / name
    shutil.copytree(FOLDER / name, case)
    for path in (case, *case.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)  # the originals may be read only
    (case / "EXPECT").unlink()
    CASES[name](case)
