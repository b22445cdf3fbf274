"""Texts that models are tuned on, who learns which, and the canaries put among them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.corpus.files import FORMATS, Reading, find_files
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.privacy.inversion.figures import part
from mia_batch.extras.privacy.measures import exposures, unlearnt_exposure
from mia_batch.extras.privacy.plan import Plan
from mia_batch.recipes import in_half

if TYPE_CHECKING:
    from mia_batch.extras.privacy.variant import Opened

# Tasks of GLUE by name (Wang et al. 2018, arXiv:1804.07461), as PrivLM-Bench takes them.

GLUE = "glue:"
"""What the name of a task begins with where a path may stand."""
_REPOSITORY = "nyu-mll/glue"
_BETWEEN = " [SEP] "
_TEXTS = {
    "cola": ("sentence",),
    "mnli": ("premise", "hypothesis"),
    "mrpc": ("sentence1", "sentence2"),
    "qnli": ("question", "sentence"),
    "qqp": ("question1", "question2"),
    "rte": ("sentence1", "sentence2"),
    "sst2": ("sentence",),
    "wnli": ("sentence1", "sentence2"),
}
"""Columns of the texts of each task that has classes; STS-B has none, AX no training texts."""


def glue_rows(name: str) -> pl.DataFrame:
    """Read the training texts of a task, such as ``glue:sst2``, as `joined` has them.

    They come from the hub, or from what was fetched before.

    Raises `CorpusError` if there is no such task, or it cannot be fetched.
    """
    from huggingface_hub import snapshot_download

    task = name.removeprefix(GLUE)
    if task not in _TEXTS:
        raise CorpusError(
            f"GLUE has no task {task!r} with classes; give one of {', '.join(_TEXTS)}"
        )
    wanted = f"{task}/train-*.parquet"
    missing = (
        f"{name} was not fetched before, and cannot be now ({_REPOSITORY} on the hub); fetch it "
        "where there is a network, or give its texts as a file"
    )
    try:
        folder = snapshot_download(_REPOSITORY, repo_type="dataset", allow_patterns=wanted)
    except (OSError, ValueError) as error:  # offline, or nothing there
        raise CorpusError(missing) from error
    files = sorted(Path(folder).glob(wanted))
    if not files:  # offline, where another task was fetched
        raise CorpusError(missing)
    return joined(pl.read_parquet(files), _TEXTS[task])


def joined(rows: pl.DataFrame, texts: Sequence[str]) -> pl.DataFrame:
    """Put pairs of texts together with ``[SEP]`` between them, as column ``text``.

    Labels stay numbers, each of which is one token in most models.
    """
    return rows.with_columns(text=pl.concat_str(texts, separator=_BETWEEN))


_FEWEST = 20


def read_texts(
    data: Path | str, *, text: str, target: str | None, group: str | None, share: float, seed: int
) -> pl.DataFrame:
    """Read texts: ``id``, ``text``, ``target``, ``group``, ``part`` and ``member``.

    ``part`` is ``audited`` for a share of the texts, else ``auxiliary``: of which no model learns
    anything, and on which it is tested. Of audited ones
    ``member`` says whether the target learns them. Equal texts are in one group, with all of their
    groups.

    Raises `CorpusError` if a column is missing, a row lacks its text or target, or there are too
    few.
    """
    rows = _rows(data, [name for name in (text, target, group) if name is not None])
    none = pl.lit(None, pl.String)
    texts = rows.select(
        text=pl.col(text).cast(pl.String),
        target=none if target is None else pl.col(target).cast(pl.String),
        group=pl.col(text if group is None else group).cast(pl.String).fill_null(pl.col(text)),
    ).with_row_index("id")
    needed = {"text": text} | ({"target": target} if target else {})
    for name, column in needed.items():
        empty = texts.filter(pl.col(name).fill_null("").str.strip_chars() == "")
        if empty.height:
            others = f" and {empty.height - 1:,} others" if empty.height > 1 else ""
            raise CorpusError(
                f"{data}: row {empty['id'][0] + 1:,}{others}: nothing in column {column!r}; leave "
                "such rows out"
            )
    if (n := texts["group"].n_unique()) < _FEWEST:
        raise CorpusError(f"{data} has {n} different texts or groups; give at least {_FEWEST}")
    dealt = part(texts, 1 - share, seed).with_columns(pl.col("group").min().over("cluster"))
    names = dealt["group"].to_list()
    return dealt.select(
        pl.all().exclude("cluster", "auxiliary"),
        part=pl.when("auxiliary").then(pl.lit("auxiliary")).otherwise(pl.lit("audited")),
        member=pl.when(~pl.col("auxiliary")).then(pl.Series(in_half(names, 0, seed))),
    )


def _rows(data: Path | str, wanted: Sequence[str]) -> pl.DataFrame:
    """Read some columns of files, or of a task of GLUE."""

    def check(columns: Collection[str]) -> None:
        for name in wanted:
            if name not in columns:
                there = ", ".join(map(repr, columns))
                raise CorpusError(
                    f"{data} has no column {name!r}, only {there}; name the one that is meant"
                )

    if str(data).startswith(GLUE):
        rows = glue_rows(str(data))
        check(rows.columns)
        return rows
    source, reading = find_files(data), Reading()
    reader = FORMATS[source.kind]
    columns = reader.read_schema(source.files, reading)
    check(columns)
    found = [*reader.read_rows(source.files, columns, [*dict.fromkeys(wanted)], reading)]
    if not any(rows.height for rows in found):
        raise CorpusError(f"{data} has no rows; give at least {_FEWEST} texts")
    return pl.concat(found)


def learnt_by(texts: pl.DataFrame, shadow: int | None, seed: int) -> pl.DataFrame:
    """Return what a model learns of the audited texts: the target, or a shadow model.

    Shadow models come in pairs that share the texts out between them; the target's own half is the
    first of another pair.
    """
    audited = texts.filter(part="audited")
    if shadow is None:
        return audited.filter("member")
    return audited.filter(pl.Series(in_half(audited["group"].to_list(), shadow + 2, seed)))


# Canaries: sentences with a blank, and what can stand there.
#
# The seven formats of PrivLM-Bench (Li et al. 2024, arXiv:2311.04044, table 4). The lists of names
# and cities are our own; each fill of a format has the same form.

_CANARIES = json.loads(
    files("mia_batch.extras.privacy").joinpath("canaries.json").read_text("utf-8")
)


@dataclass(frozen=True, slots=True)
class CanaryFormat:
    """A sentence with a blank, ``{}``, where one of each of the ``slots`` stands.

    ``question`` is what the encoder of an encoder-decoder reads before it.
    """

    name: str
    template: str
    question: str
    slots: Sequence[Sequence[str]]
    between: str = " "

    @property
    def size(self) -> int:
        return prod(map(len, self.slots))

    def text(self, number: int) -> str:
        """Write one of them, by its number from 0."""
        fills = []
        for slot in reversed(self.slots):
            number, place = divmod(number, len(slot))
            fills.append(slot[place])
        return self.template.format(self.between.join(reversed(fills)))


def paper_formats(words: Sequence[str], seed: int) -> tuple[CanaryFormat, ...]:
    """Return the seven formats; ``words`` are whole words of the tokenizer's vocabulary."""
    fixed = " ".join(np.random.default_rng(seed).choice(sorted(words), 4, replace=False))
    lists = _CANARIES["lists"] | {"words": words}
    found = []
    for each in _CANARIES["formats"]:
        slots = [lists[name] for name in each["slots"]]
        template = each["template"].replace("FOUR WORDS", fixed)
        found.append(CanaryFormat(**each | {"slots": slots, "template": template}))
    return tuple(found)


def read_formats(path: Path | str) -> tuple[CanaryFormat, ...]:
    """Read formats of the user's.

    The file is a JSON list of objects: ``name``, ``template`` with one ``{}``, ``slots`` (a list of
    lists of strings), and where they are wanted ``question`` and ``between``. Raises
    `SettingsError` if it is none.
    """
    wrong = "it holds none"
    try:
        rows = json.loads(Path(path).read_text("utf-8"))
        formats = tuple(CanaryFormat(**{"question": "", **each}) for each in rows)
        wrong = next(filter(None, map(_why_no_format, formats)), "") if formats else wrong
    except (OSError, TypeError, ValueError) as error:
        raise SettingsError(f"{path} holds no formats of canaries: {error}") from error
    if wrong:
        raise SettingsError(f"{path} holds no formats of canaries: {wrong}")
    return formats


def _why_no_format(wanted: CanaryFormat) -> str | None:
    if wanted.template.count("{}") != 1:
        return f"format {wanted.name!r} has not exactly one {{}} in its template"
    if not wanted.slots or any(len(set(slot)) != len(slot) or not slot for slot in wanted.slots):
        return f"format {wanted.name!r} has a slot without fills, or with one twice"
    if wanted.size < 2:
        return f"format {wanted.name!r} can only be filled in one way"
    return None


_AT_ONCE = 4096
_SHORTEST_WORD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted:
    """Canaries of a format: the first ``n_learnt`` numbers are learnt, the rest compared."""

    format: CanaryFormat
    numbers: tuple[int, ...]
    n_learnt: int
    repetitions: int

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield question and sentence of each row that is learnt: the i-th, i times as often."""
        for place, number in enumerate(self.numbers[: self.n_learnt], start=1):
            row = self.format.question, self.format.text(number)
            yield from [row] * (place * self.repetitions)


def draw(formats: Sequence[CanaryFormat], plan: Plan) -> list[Inserted]:
    return [
        Inserted(
            format=each,
            numbers=tuple(_numbers(each, min(plan.candidates, each.size), [plan.seed, place])),
            n_learnt=min(plan.canaries, plan.candidates - 1, each.size // 2),
            repetitions=plan.repetitions,
        )
        for place, each in enumerate(formats)
    ]


def _numbers(wanted: CanaryFormat, n: int, seed: list[int]) -> list[int]:
    """Draw numbers without replacement; where they are few among many, by drawing again."""
    rng = np.random.default_rng(seed)
    if wanted.size <= 4 * n:
        return list(map(int, rng.permutation(wanted.size)[:n]))
    found: dict[int, None] = {}
    while len(found) < n:
        found |= dict.fromkeys(map(int, rng.integers(wanted.size, size=n)))
    return list(found)[:n]


def exposed(opened: Opened, inserted: Sequence[Inserted], *, is_seq2seq: bool) -> pl.DataFrame:
    """Compare canaries that were learnt with others of their format: a row for each learnt one."""

    def losses(of: CanaryFormat, numbers: Sequence[int]) -> np.ndarray:
        texts = [of.text(number) for number in numbers]
        asked = ([of.question] * len(texts), texts) if is_seq2seq else (texts, [None] * len(texts))
        return opened.sums(*asked).fill_null(float("nan")).to_numpy()

    frames = []
    for each in inserted:
        of, learnt, others = (
            each.format,
            each.numbers[: each.n_learnt],
            each.numbers[each.n_learnt :],
        )
        starts = range(0, len(others), _AT_ONCE)
        pieces = (losses(of, others[start : start + _AT_ONCE]) for start in starts)
        found = exposures(losses(of, learnt), pieces, of.size).select(
            pl.lit(of.name).alias("format"),
            pl.Series("canary", [of.text(number) for number in learnt]),
            pl.int_range(1, pl.len() + 1).alias("repetitions") * each.repetitions,
            pl.all(),
            pl.lit(len(others), pl.UInt32).alias("n_others"),
            pl.lit(unlearnt_exposure(len(others))).alias("unlearnt_exposure"),
        )
        frames.append(found)
    return pl.concat(frames)


def words_of(base: str, revision: str | None) -> list[str]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base, revision=revision, trust_remote_code=False)
    found = {word.lstrip("\u0120\u2581") for word in tokenizer.get_vocab()}
    words = sorted(
        word
        for word in found
        if len(word) >= _SHORTEST_WORD and word.isascii() and word.isalpha() and word.islower()
    )
    if len(words) < 10:
        raise SettingsError(
            f"the tokenizer of {base!r} has {len(words)} words, too few for canaries of words; "
            "give formats of your own with --canary-formats"
        )
    return words
