"""Audits for tests, and finished runs that all workers share: made once, then read or copied."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
from click.testing import CliRunner
from filelock import FileLock

import mia_batch
from mia_batch import Run, pipeline
from mia_batch.attacks.from_samples import PROBE_ATTACKS
from mia_batch.cli.main import command
from mia_batch.extras.sets import paraphrases
from mia_batch.pipeline.results import load_results
from mia_batch.report import sentences
from mia_batch.settings import load_settings, nested
from tests.checkpoints import SMALLEST, TEXTS, save_checkpoint, save_masked_checkpoint
from tests.hostile_server import MODEL, Asked, HostileServer, Reply, TinyModel

PROBES = ",".join(attack.name for attack in PROBE_ATTACKS)


def audit(**settings: Any) -> Run:
    """Audit with settings by name, as the command takes them."""
    return mia_batch.audit(**nested(settings))


def rescore(folder: Path, **settings: Any) -> Run:
    return pipeline.rescore(folder, **nested(settings))


def planned(settings: dict[str, Any]) -> dict[str, str]:
    """What an audit with these settings would do, by name."""
    return dict(pipeline.plan(load_settings(settings, use_config=False)))


def invoke(*arguments: object) -> tuple[str, str]:
    """Standard output and standard error of a command that exits with 0."""
    result = CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def said_of(run: Run) -> list[str]:
    return [*sentences(load_results(run))]


def tables_of(folder: Path) -> dict[str, bytes]:
    """Bytes of a run's tables, less those of models that it made, and what each run has anew."""
    paths = (path for path in folder.rglob("*.parquet") if "models" not in path.parts)
    paths = (
        path
        for path in paths
        if path.name not in ("responses.parquet", "order.parquet")
    )
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def found(run: Run, check: str, **of: str) -> dict[str, Any]:
    """Values of a check's findings by their statistic."""
    rows = run["findings"].filter(check=check, **of)
    return dict(rows.select("statistic", "value").iter_rows())


def paraphrase(**settings: Any) -> pl.DataFrame:
    return paraphrases.paraphrase(**nested(settings))


def plan_paraphrasing(**settings: Any) -> Iterator[tuple[str, str]]:
    return paraphrases.plan_paraphrasing(**nested(settings))


def audit_demo(demo, out, **settings):
    settings = {"input": str(demo.corpus), "out": str(out)} | settings
    return audit(config=demo.config, **settings)


def write_books(folder):
    """A folder of two texts, and a recording of continuations of them."""
    (folder / "books").mkdir(parents=True)
    rows = []
    for number, text in enumerate(TEXTS[:2]):
        words = text.split()[:40]
        (folder / "books" / f"{number}.txt").write_text(" ".join(words))
        rows += [(f"{number}.txt", " ".join(words[20 - skip :])) for skip in range(2)]
    recorded = pl.DataFrame(rows, schema=["document_id", "candidate"], orient="row")
    recorded.write_parquet(folder / "made.parquet")


def audit_books(folder, inputs, **settings):
    return audit(
        input=str(inputs / "books"),
        samples_from=str(inputs / "made.parquet"),
        out=folder,
        **settings,
    )


def made_once(folder: Path, name: str, make: Callable[[Path], object]) -> Path:
    """Let the first worker that asks make a folder; the others wait until it is whole."""
    made, done = folder / name, folder / f"{name}.done"
    with FileLock(folder / f"{name}.lock"):
        if not done.exists():
            made.mkdir()
            make(made)
            done.touch()
    return made


def recorded_books(folder: Path) -> None:
    """Two books, a recording of continuations of them, and its audit in ``run``."""
    write_books(folder)
    audit_books(folder / "run", folder)


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished run; of one of an endpoint, what answers, and how often it was asked."""

    settings: dict[str, Any]
    answer: Callable[[Asked], Reply] | None
    n_asked: int

    @property
    def run(self) -> mia_batch.Run:
        return mia_batch.Run(Path(self.settings["out"]))

    @contextmanager
    def copied(
        self, folder: Path
    ) -> Iterator[tuple[dict[str, Any], mia_batch.Run, list[Asked]]]:
        """Make a copy to change: settings, run, and what the endpoint is asked from now on."""
        out = shutil.copytree(self.run.folder, folder / "run")
        settings = self.settings | {"out": str(out), "report": False}
        if Path(self.settings["input"]).is_file():
            source = shutil.copy(self.settings["input"], folder / "corpus.parquet")
            settings["input"] = str(source)
        if self.answer is None:
            yield settings, mia_batch.Run(out), []
            return
        run = mia_batch.Run(out)
        with HostileServer(
            self.answer
        ) as server:  # at another port, as if it were that of before
            manifest = run.manifest
            manifest.models["target"]["endpoint base_url"] = server.url
            manifest.write(out)
            yield settings | {"base_url": server.url}, run, server.asked


def finished(
    shared: Path,
    name: str,
    settings_in: Callable[[Path], dict[str, Any]],
    answer: Callable[[Asked], Reply] | None = None,
) -> Finished:
    def make(folder: Path) -> None:
        settings = settings_in(folder) | {"out": str(folder / "run")}
        n_asked = 0
        if answer is None:
            audit(**settings)
        else:
            with HostileServer(answer) as server:
                settings |= {"base_url": server.url}
                audit(**settings)
                n_asked = len(server.asked)
        (folder / "settings.json").write_text(json.dumps([settings, n_asked]))

    folder = made_once(shared, name, make)
    settings, n_asked = json.loads((folder / "settings.json").read_text())
    return Finished(settings, answer, n_asked)


# What they are about.


def documents(n: int = 8) -> pl.DataFrame:
    """Labelled texts of forty words; one is null, one too short."""
    texts = [" ".join(text.split()[:40]) for text in TEXTS[: n - 2]]
    return pl.DataFrame(
        {
            "document_id": [f"d{number}" for number in range(n)],
            "text": [*texts, None, "word"],
            "member": [number % 2 == 0 for number in range(n)],
            "shelf": list(range(n)),
        }
    )


def written(folder: Path, texts: pl.DataFrame, name: str = "corpus") -> str:
    texts.write_parquet(folder / f"{name}.parquet")
    return str(folder / f"{name}.parquet")


def of_texts(folder: Path, checkpoint: Path) -> dict[str, Any]:
    """Labelled texts and a model on this machine."""
    return {
        "input": written(folder, documents()),
        "model": str(checkpoint),
        "engine": "transformers",
        "preset": "matched",
        "samples": 3,
    }


def of_probes(folder: Path, checkpoint: Path) -> dict[str, Any]:
    return {
        "input": written(folder, documents()),
        "model": str(checkpoint),
        "engine": "transformers",
        "attacks": PROBES,
        "probes": 4,
        "report": False,
    }


def of_every_view(folder: Path, checkpoint: Path) -> dict[str, Any]:
    """Samples and log-probabilities of every view; the first text may be put before others."""
    first = documents(12)["text"][0].split()[:12]
    short = pl.when(document_id="d0").then(pl.lit(" ".join(first))).otherwise("text")
    corpus = documents(12).with_columns(text=short)
    others = [" ".join(text.split()[:9]) for text in TEXTS[20:24]]
    shots = [*corpus["text"].head(1), *others[2:]]
    return {
        "input": written(folder, corpus),
        "model": str(checkpoint),
        "reference_model": str(save_checkpoint(folder / "reference")),
        "masked_model": str(save_masked_checkpoint(folder / "masked")),
        "neighbours": 3,
        "nonmember_shots": written(
            folder, pl.DataFrame({"text": others}), "nonmembers"
        ),
        "member_shots": written(folder, pl.DataFrame({"text": shots}), "members"),
        "shots": 1,
        "frequencies_from": written(folder, corpus),
        "extraction_tokens": 10,
        "engine": "transformers",
        "evidence": "both",
        "samples": 2,
        "report": False,
    }


def words(seed: str, n: int) -> list[str]:
    dice = Random(seed)
    return [f"{dice.choice('abcdefgh')}{dice.randrange(400)}é" for _ in range(n)]


KNOWN = slice(128, 512)
"""The words of the first book that `RecitingOneBook` says, but for every 40th."""


class RecitingOneBook(TinyModel):
    """Goes on with the book where it knows it, else as the tiny model does."""

    def text(self, prompt: str, seed: int) -> str:
        said, known = prompt.split(), words("first", 1000)[KNOWN]
        recited = [word if at % 40 else "Oops" for at, word in enumerate(known)]
        ends = (at for at in range(3, len(known)) if known[at - 3 : at] == said[-3:])
        start = next(ends, len(known))
        others = super().text(prompt, seed).split() * 12
        return "".join(f" {word}" for word in (recited[start:] + others)[:70])


def of_walks(folder: Path) -> dict[str, Any]:
    """Two books of which one is recited, and walks through them."""
    names = ["first", "second"]
    texts = ["\n".join(words(name, 1000)) for name in names]
    return {
        "input": written(folder, pl.DataFrame({"document_id": names, "text": texts})),
        "model": MODEL,
        "preset": "matched",
        "samples": 1,
        "window_words": 64,
        "extract": True,
        "report": False,
    }


def passage(seed: str, n: int = 32) -> str:
    return " ".join(words(seed, n))


FORMULA = passage("formula")
HALVES = {
    "known": (passage("k1"), passage("k2")),
    "formula": (passage("f1"), FORMULA),
    "quoted": (passage("q1"), passage("q2")),
    "quoting": (
        passage("z1"),
        f"So he said: {passage('q2', 25).upper()}. {passage('z2', 6)}",
    ),
    "other": (passage("o1"), passage("o2")),
}
"""Both halves of each document; all of "quoted" comes out, but "quoting" has its words, too."""


class RecitingPassages(TinyModel):
    """Goes on with what it knows after the last three words before it, else says the formula."""

    def text(self, prompt: str, seed: int) -> str:
        del seed
        for name in ("known", "quoted"):
            prefix, reference = HALVES[name]
            if prompt.split()[-3:] == prefix.split()[-3:]:
                return f" {reference} and so on"
        return f" {FORMULA} and so on"


def halves(names: tuple[str, ...] = tuple(HALVES)) -> pl.DataFrame:
    texts = [" ".join(HALVES[name]) for name in names]
    return pl.DataFrame({"document_id": names, "text": texts})


def of_controls(folder: Path) -> dict[str, Any]:
    """Passages that come out, and the controls of them."""
    return {
        "input": written(folder, halves()),
        "model": MODEL,
        "preset": "matched",
        "samples": 2,
        "window_words": 64,
        "controls": True,
        "max_failed": 1.0,  # most prompts are answered alike
        "report": False,
    }


N_TUNED = 16


def twenty_words(first: int, n: int) -> list[str]:
    return [" ".join(text.split()[:20]) for text in TEXTS[first : first + n]]


def of_tuning(folder: Path) -> dict[str, Any]:
    """An audit whose run makes four models of one epoch."""
    label = pl.int_range(pl.len()) % 2 == 0
    corpus = pl.DataFrame({"text": twenty_words(0, N_TUNED)}).with_columns(member=label)
    prompts, candidate = (
        pl.DataFrame({"text": twenty_words(*of)}) for of in ((20, 6), (30, 4))
    )
    return {
        "input": written(folder, corpus),
        "model": str(save_checkpoint(folder / "model", **SMALLEST)),
        "reference_model": str(save_checkpoint(folder / "base", seed=1, **SMALLEST)),
        "masked_model": str(save_masked_checkpoint(folder / "masked")),
        "prompts_from": written(folder, prompts, "prompts"),
        "candidate_from": written(folder, candidate, "candidate"),
        "preset": "spv",
        "engine": "transformers",
        # What stands in a batch changes the last digits
        "engine_arg": {"batch_size": 1},
        "shadows": 2,
        "paraphrases": 2,
        "neighbours": 2,
        "prompt_tokens": 4,
        "generations": 8,
        "generation_tokens": 6,
        "tuning_rank": 2,
        "tuning_epochs": 1,
        "tuning_batch": 4,
        "tuning_rate": 0.1,
        "report": False,
    }
