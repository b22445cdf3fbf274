"""Texts that models are tuned on, who learns which, and the canaries put among them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from pathlib import Path

import numpy as np
import polars as pl

from mia_batch.corpus.files import FORMATS, Reading, find_files
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.privacy.inversion.figures import part
from mia_batch.extras.privacy.measures import exposures, unlearnt_exposure
from mia_batch.extras.privacy.plan import Plan
from mia_batch.extras.privacy.scorer import Opened
from mia_batch.recipes import in_half

_DATA = json.loads(
    files("mia_batch.extras.privacy").joinpath("privlm.json").read_text("utf-8")
)

# Tasks of GLUE by name (Wang et al. 2018, arXiv:1804.07461), as PrivLM-Bench takes
# them.

_GLUE = "glue:"  # what the name of a task begins with where a path may stand
_REPOSITORY = "nyu-mll/glue"
_TEXTS = _DATA["glue"]
"""Columns of the texts of each task that has classes; STS-B has none, AX no training texts."""


def _glue_rows(name: str) -> pl.DataFrame:
    """Read the training texts of a task, from the hub or from what was fetched before."""
    from huggingface_hub import snapshot_download

    task = name.removeprefix(_GLUE)
    if task not in _TEXTS:
        raise CorpusError(
            f"GLUE has no task {task!r} with classes; give one of {', '.join(_TEXTS)}"
        )
    wanted, files = f"{task}/train-*.parquet", list[Path]()
    with suppress(OSError, ValueError):  # offline, or nothing there
        folder = snapshot_download(
            _REPOSITORY, repo_type="dataset", allow_patterns=wanted
        )
        files = sorted(Path(folder).glob(wanted))  # none where another task was fetched
    if not files:
        raise CorpusError(
            f"{name} was not fetched before, and cannot be now ({_REPOSITORY} on the"
            " hub); fetch it where there is a network, or give its texts as a file"
        )
    text = pl.concat_str(_TEXTS[task], separator=" [SEP] ")
    return pl.read_parquet(files).with_columns(text=text)


_FEWEST = 20


def read_texts(
    data: Path | str, columns: dict[str, str | None], *, share: float, seed: int
) -> pl.DataFrame:
    """Read texts: ``id``, ``text``, ``target``, ``group``, ``part`` and ``member``.

    ``part`` is ``audited``, or ``auxiliary``: no model learns anything of these.
    ``member`` says whether the target learns an audited text. Equal texts are in one
    group, with all their groups.
    """
    named = {field: name for field, name in columns.items() if name is not None}
    rows = rows_of(data, [*named.values()])
    texts = rows.select(
        (pl.col(named[field]) if field in named else pl.lit(None))
        .cast(pl.String)
        .alias(field)
        for field in columns
    )
    texts = texts.with_columns(pl.coalesce("group", "text")).with_row_index("id")
    for field, column in [
        (each, named[each]) for each in ("text", "target") if each in named
    ]:
        empty = texts.filter(pl.col(field).fill_null("").str.strip_chars() == "")
        if empty.height:
            others = f" and {empty.height - 1:,} others" if empty.height > 1 else ""
            raise CorpusError(
                f"{data}: row {empty['id'][0] + 1:,}{others}: nothing in column"
                f" {column!r}; leave such rows out"
            )
    if (n := texts["group"].n_unique()) < _FEWEST:
        raise CorpusError(
            f"{data} has {n} different texts or groups; give at least {_FEWEST}"
        )
    dealt = part(texts, 1 - share, seed).with_columns(
        pl.col("group").min().over("cluster")
    )
    names = dealt["group"].to_list()
    return dealt.select(
        pl.all().exclude("cluster", "auxiliary"),
        part=pl.when("auxiliary")
        .then(pl.lit("auxiliary"))
        .otherwise(pl.lit("audited")),
        member=pl.when(~pl.col("auxiliary")).then(pl.Series(in_half(names, 0, seed))),
    )


def rows_of(data: Path | str, wanted: Sequence[str]) -> pl.DataFrame:
    def check(columns: Collection[str]) -> None:
        for name in wanted:
            if name not in columns:
                there = ", ".join(map(repr, columns))
                raise CorpusError(
                    f"{data} has no column {name!r}, only {there}; name the one that is"
                    " meant"
                )

    if str(data).startswith(_GLUE):
        rows = _glue_rows(str(data))
        check(rows.columns)
        return rows
    source, reading = find_files(data), Reading()
    source.refuse_unreadable()
    reader = FORMATS[source.kind]
    columns = reader.read_schema(source.files, reading)
    check(columns)
    found = [
        *reader.read_rows(source.files, columns, [*dict.fromkeys(wanted)], reading)
    ]
    if not any(rows.height for rows in found):
        raise CorpusError(f"{data} has no rows; give at least {_FEWEST} texts")
    return pl.concat(found)


def learnt_by(texts: pl.DataFrame, shadow: int | None, seed: int) -> pl.DataFrame:
    # Shadow models come in pairs, as halves do; the target's half is the first of
    # another pair.
    audited = texts.filter(part="audited")
    if shadow is None:
        return audited.filter("member")
    return audited.filter(
        pl.Series(in_half(audited["group"].to_list(), shadow + 2, seed))
    )


# Canaries: sentences with a blank, and what can stand there.
#
# The seven formats of PrivLM-Bench (Li et al. 2024, arXiv:2311.04044, table 4). The lists of names
# and cities are our own; each fill of a format has the same form.


@dataclass(frozen=True, slots=True)
class CanaryFormat:
    """A sentence with a blank, ``{}``; ``question`` is what an encoder-decoder reads before it."""

    name: str
    template: str
    question: str
    slots: Sequence[Sequence[str]]
    between: str = " "

    @property
    def size(self) -> int:
        return prod(map(len, self.slots))

    def text(self, number: int) -> str:
        fills = []
        for slot in reversed(self.slots):
            number, place = divmod(number, len(slot))
            fills.append(slot[place])
        return self.template.format(self.between.join(reversed(fills)))


def paper_formats(words: Sequence[str], seed: int) -> tuple[CanaryFormat, ...]:
    """Return the seven formats; ``words`` are whole words of the tokenizer's vocabulary."""
    fixed = " ".join(
        np.random.default_rng(seed).choice(sorted(words), 4, replace=False)
    )
    lists = _DATA["lists"] | {"words": words}
    found = []
    for each in _DATA["formats"]:
        slots = [lists[name] for name in each["slots"]]
        template = each["template"].replace("FOUR WORDS", fixed)
        found.append(CanaryFormat(**each | {"slots": slots, "template": template}))
    return tuple(found)


def read_formats(path: Path | str) -> tuple[CanaryFormat, ...]:
    """Read formats of the user's: a JSON list of objects with the fields of `CanaryFormat`."""
    try:
        rows = json.loads(Path(path).read_text("utf-8"))
        formats = tuple(CanaryFormat(**{"question": "", **each}) for each in rows)
        if not formats:
            raise ValueError("it holds none")  # noqa: TRY301 - one sentence for all
        for each in formats:
            _check_format(each)
    except (OSError, TypeError, ValueError) as error:
        raise SettingsError(f"{path} holds no formats of canaries: {error}") from error
    return formats


def _check_format(wanted: CanaryFormat) -> None:
    slots = wanted.slots
    if wanted.template.count("{}") != 1:
        raise ValueError(
            f"format {wanted.name!r} has not exactly one {{}} in its template"
        )
    if not slots or any(len(set(slot)) != len(slot) or not slot for slot in slots):
        raise ValueError(
            f"format {wanted.name!r} has a slot without fills, or with one twice"
        )
    if wanted.size < 2:
        raise ValueError(f"format {wanted.name!r} can only be filled in one way")


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
            numbers=tuple(
                _numbers(each, min(plan.candidates, each.size), [plan.seed, place])
            ),
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


def exposed(
    opened: Opened, inserted: Sequence[Inserted], *, is_seq2seq: bool
) -> pl.DataFrame:
    def losses(of: CanaryFormat, numbers: Sequence[int]) -> np.ndarray:
        texts = [of.text(number) for number in numbers]
        asked = (
            ([of.question] * len(texts), texts)
            if is_seq2seq
            else (texts, [None] * len(texts))
        )
        return opened.sums(*asked).fill_null(float("nan")).to_numpy()

    frames = []
    for each in inserted:
        of = each.format
        learnt, others = each.numbers[: each.n_learnt], each.numbers[each.n_learnt :]
        starts = range(0, len(others), _AT_ONCE)
        pieces = (losses(of, others[start : start + _AT_ONCE]) for start in starts)
        frames.append(
            exposures(losses(of, learnt), pieces, of.size).select(
                pl.lit(of.name).alias("format"),
                pl.Series("canary", [of.text(number) for number in learnt]),
                pl.int_range(1, pl.len() + 1).alias("repetitions") * each.repetitions,
                pl.all(),
                pl.lit(len(others), pl.UInt32).alias("n_others"),
                pl.lit(unlearnt_exposure(len(others))).alias("unlearnt_exposure"),
            )
        )
    return pl.concat(frames)


def words_of(base: str, revision: str | None) -> list[str]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        base, revision=revision, trust_remote_code=False
    )
    found = {word.lstrip("\u0120\u2581") for word in tokenizer.get_vocab()}
    words = sorted(
        word
        for word in found
        if len(word) >= _SHORTEST_WORD
        and word.isascii()
        and word.isalpha()
        and word.islower()
    )
    if len(words) < 10:
        raise SettingsError(
            f"the tokenizer of {base!r} has {len(words)} words, too few for canaries of"
            " words; give formats of your own with --canary-formats"
        )
    return words
