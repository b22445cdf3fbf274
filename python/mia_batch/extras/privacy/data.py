"""Texts that models are tuned on, who learns which, and the canaries put among them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from pathlib import Path

import numpy as np
import polars as pl

from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.corpus.conversations import CONVERSATION, find_question
from mia_batch.corpus.documents import peek_layout
from mia_batch.corpus.files import FORMATS, Reading, find_files
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.privacy.inversion.figures import add_auxiliary
from mia_batch.extras.privacy.measures import exposures, unlearnt_exposure
from mia_batch.extras.privacy.plan import PrivacySettings
from mia_batch.extras.privacy.scorer import TextScorer
from mia_batch.prompts import TokenizerName, build_lessons
from mia_batch.recipes import in_half

_DATA = json.loads(
    files("mia_batch.extras.privacy").joinpath("privlm.json").read_text("utf-8")
)

# Tasks of GLUE by name (Wang et al. 2018, arXiv:1804.07461), as PrivLM-Bench takes
# them.

_GLUE = "glue:"  # what the name of a task begins with where a path may stand
_REPOSITORY = "nyu-mll/glue"
_TEXTS = _DATA["glue"]
"""Text columns of each task with classes; STS-B has none, AX no training texts."""


def _read_glue(name: str) -> pl.DataFrame:
    """Read the training texts of a task, from the hub or as fetched before."""
    from huggingface_hub import snapshot_download

    task = name.removeprefix(_GLUE)
    if task not in _TEXTS:
        raise CorpusError(
            f"GLUE has no task {task!r} with classes; give one of {', '.join(_TEXTS)}"
        )
    pattern = f"{task}/train-*.parquet"
    paths = list[Path]()
    with suppress(OSError, ValueError):  # offline, or nothing there
        folder = snapshot_download(
            _REPOSITORY, repo_type="dataset", allow_patterns=pattern
        )
        # None where another task was fetched
        paths = sorted(Path(folder).glob(pattern))
    if not paths:
        raise CorpusError(
            f"{name} was not fetched before, and cannot be now ({_REPOSITORY} on the"
            " hub); fetch it where there is a network, or give its texts as a file"
        )
    text = pl.concat_str(_TEXTS[task], separator=" [SEP] ")
    return pl.read_parquet(paths).with_columns(text=text)


_FEWEST = 20
_SHOWN = 60  # characters of an answer


def read_texts(
    data: Path | str, columns: dict[str, str | None], *, share: float, seed: int
) -> pl.DataFrame:
    """Read texts: ``id``, ``text``, ``target``, ``group``, ``part`` and ``member``.

    ``part`` is ``audited``, or ``auxiliary``: no model learns anything of these.
    ``member`` says whether the target learns an audited text. Equal texts are in one
    group, with all their groups. Of conversations, targets are answers, and a column
    `CONVERSATION` is what came before them.
    """
    names = {field: name for field, name in columns.items() if name is not None}
    if holds_conversations(data, names):
        texts = _read_conversations(data)
        names = {"text": "messages", "target": "messages"}
    else:
        rows = read_rows(data, [*names.values()])
        values = {
            field: pl.col(names[field]) if field in names else pl.lit(None)
            for field in columns
        }
        texts = rows.select(
            value.cast(pl.String).alias(field) for field, value in values.items()
        )
    texts = texts.with_columns(pl.coalesce("group", "text")).with_row_index("id")
    for field in ("text", "target"):
        if field not in names:
            continue
        empty = texts.filter(pl.col(field).fill_null("").str.strip_chars() == "")
        if empty.height:
            further = f" and {empty.height - 1:,} others" if empty.height > 1 else ""
            raise CorpusError(
                f"{data}: row {empty['id'][0] + 1:,}{further}: nothing in column"
                f" {names[field]!r}; leave such rows out"
            )
    n_groups = texts["group"].n_unique()
    if n_groups < _FEWEST:
        raise CorpusError(
            f"{data} has {n_groups} different texts or groups; give at least {_FEWEST}"
        )
    texts = add_auxiliary(texts, 1 - share, seed)
    texts = texts.with_columns(pl.col("group").min().over("cluster"))
    is_in_half = pl.Series(in_half(texts["group"].to_list(), 0, seed))
    side = pl.when("auxiliary").then(pl.lit("auxiliary")).otherwise(pl.lit("audited"))
    return texts.select(
        pl.all().exclude("cluster", "auxiliary"),
        part=side,
        member=pl.when(~pl.col("auxiliary")).then(is_in_half),
    )


def holds_conversations(data: Path | str, names: Mapping[str, str]) -> bool:
    """Return whether columns are those of conversations, and no column of texts is there."""
    if str(data).startswith(_GLUE):
        return False
    return peek_layout(data, ColumnNames(text=names["text"])) is not None


def _read_conversations(data: Path | str) -> pl.DataFrame:
    """Read answers, each with its conversation, which is its group."""
    documents = read_documents(str(data), conversations="answers").documents
    answers = documents.filter(pl.col("text").str.contains(r"\S"))
    table = answers.select(CONVERSATION, "group", target="text")
    rows = table.collect(engine="streaming")
    texts = [
        f"{find_question(content)}\n\n{answer}"
        for content, answer in rows.select(CONVERSATION, "target").iter_rows()
    ]
    return rows.with_columns(text=pl.Series(texts, dtype=pl.String))


def place_answers_of(texts: pl.DataFrame, tokenizer: TokenizerName) -> pl.DataFrame:
    """Return texts as prompts of a chat template, and their targets as its answers."""
    lessons = build_lessons(texts.select(CONVERSATION, "target"), tokenizer)
    refused = lessons["reason"].drop_nulls()
    if refused.len():
        row = lessons["reason"].is_not_null().arg_true()[0]
        raise CorpusError(
            f"{refused.len():,} answers have no place in a prompt of {tokenizer[0]!r}, the"
            f" first is {texts['target'][row][:_SHOWN]!r} ({refused[0]}); leave them out"
        )
    return texts.with_columns(text=lessons["context"], target=lessons["text"]).drop(
        CONVERSATION
    )


def read_rows(data: Path | str, names: Sequence[str]) -> pl.DataFrame:
    """Read columns of a file, or a whole task of GLUE; check that it has the columns."""
    if str(data).startswith(_GLUE):
        rows = _read_glue(str(data))
        _check_columns(data, names, rows.columns)
        return rows
    source = find_files(data)
    reading = Reading()
    source.refuse_unreadable()
    reader = FORMATS[source.kind]
    columns = reader.read_schema(source.files, reading)
    _check_columns(data, names, columns)
    distinct_names = [*dict.fromkeys(names)]
    frames = [*reader.read_rows(source.files, columns, distinct_names, reading)]
    if not any(frame.height for frame in frames):
        raise CorpusError(f"{data} has no rows; give at least {_FEWEST} texts")
    return pl.concat(frames)


def _check_columns(
    data: Path | str, names: Sequence[str], columns: Collection[str]
) -> None:
    for name in names:
        if name not in columns:
            raise CorpusError(
                f"{data} has no column {name!r}, only {', '.join(map(repr, columns))};"
                " name the one that is meant"
            )


def select_learnt(texts: pl.DataFrame, shadow: int | None, seed: int) -> pl.DataFrame:
    """Return the audited texts that a shadow model learns; None: the target."""
    # Shadow models come in pairs, as halves do; the target's half is the first of
    # another pair.
    audited = texts.filter(part="audited")
    if shadow is None:
        return audited.filter("member")
    is_in_half = in_half(audited["group"].to_list(), shadow + 2, seed)
    return audited.filter(pl.Series(is_in_half))


# Canaries: sentences with a blank, and what can stand there.
#
# The seven formats of PrivLM-Bench (Li et al. 2024, arXiv:2311.04044, table 4). The lists of names
# and cities are our own; each fill of a format has the same form.


@dataclass(frozen=True, slots=True)
class CanaryFormat:
    """A sentence with a blank, and what can stand there."""

    name: str
    template: str  # the blank is ``{}``
    question: str  # which an encoder-decoder reads before the sentence
    slots: Sequence[Sequence[str]]  # one fill of each stands in the blank
    between: str = " "  # between fills

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
    """Return the seven formats; ``words`` are whole words that the tokenizer has."""
    four_words = " ".join(
        np.random.default_rng(seed).choice(sorted(words), 4, replace=False)
    )
    lists = _DATA["lists"] | {"words": words}
    formats = []
    for fields in _DATA["formats"]:
        slots = [lists[name] for name in fields["slots"]]
        template = fields["template"].replace("FOUR WORDS", four_words)
        formats.append(CanaryFormat(**fields | {"slots": slots, "template": template}))
    return tuple(formats)


def read_formats(path: Path | str) -> tuple[CanaryFormat, ...]:
    """Read formats of the user: a JSON list of objects with fields of `CanaryFormat`."""
    try:
        rows = json.loads(Path(path).read_text("utf-8"))
        formats = tuple(CanaryFormat(**{"question": "", **row}) for row in rows)
        if not formats:
            raise ValueError("it holds none")  # noqa: TRY301 - one sentence for all
        for canary_format in formats:
            _check_format(canary_format)
    except (OSError, TypeError, ValueError) as error:
        raise SettingsError(f"{path} holds no formats of canaries: {error}") from error
    return formats


def _check_format(canary_format: CanaryFormat) -> None:
    name = canary_format.name
    slots = canary_format.slots
    if canary_format.template.count("{}") != 1:
        raise ValueError(f"format {name!r} has not exactly one {{}} in its template")
    if not slots or any(len(set(slot)) != len(slot) or not slot for slot in slots):
        raise ValueError(f"format {name!r} has a slot without fills, or with one twice")
    if canary_format.size < 2:
        raise ValueError(f"format {name!r} can only be filled in one way")


_AT_ONCE = 4096
_SHORTEST_WORD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySet:
    """Canaries of a format: the first are learnt, the others compared with them."""

    format: CanaryFormat
    numbers: tuple[int, ...]  # of fills
    n_learnt: int
    repetitions: int  # of the first canary, the i-th has i times as many

    def rows(self) -> Iterator[tuple[str, str]]:
        """Iterate over questions and sentences to learn: the i-th i times as often."""
        for place, number in enumerate(self.numbers[: self.n_learnt], start=1):
            row = self.format.question, self.format.text(number)
            yield from [row] * (place * self.repetitions)


def draw_canaries(
    formats: Sequence[CanaryFormat], settings: PrivacySettings
) -> list[CanarySet]:
    canary_sets = []
    for place, canary_format in enumerate(formats):
        size = canary_format.size
        n_canaries = min(settings.candidates, size)
        numbers = _draw_numbers(size, n_canaries, [settings.seed, place])
        canary_set = CanarySet(
            format=canary_format,
            numbers=tuple(numbers),
            n_learnt=min(settings.canaries, settings.candidates - 1, size // 2),
            repetitions=settings.repetitions,
        )
        canary_sets.append(canary_set)
    return canary_sets


def _draw_numbers(size: int, n: int, seed: list[int]) -> list[int]:
    """Draw numbers without replacement; few among many by drawing again."""
    rng = np.random.default_rng(seed)
    if size <= 4 * n:
        return list(map(int, rng.permutation(size)[:n]))
    numbers: dict[int, None] = {}
    while len(numbers) < n:
        numbers |= dict.fromkeys(map(int, rng.integers(size, size=n)))
    return list(numbers)[:n]


def measure_exposures(
    scorer: TextScorer,
    canary_sets: Sequence[CanarySet],
    ask: Callable[[str], str] | None,
) -> pl.DataFrame:
    """Build the table of exposures: a row for each canary that was learnt.

    ``ask`` makes the prompt of a question to a model that learnt canaries as answers.
    """
    return pl.concat(
        [_exposures_of_set(scorer, canary_set, ask) for canary_set in canary_sets]
    )


def _exposures_of_set(
    scorer: TextScorer, canary_set: CanarySet, ask: Callable[[str], str] | None
) -> pl.DataFrame:
    canary = canary_set.format

    def losses(numbers: Sequence[int]) -> np.ndarray:
        texts = [canary.text(number) for number in numbers]
        if ask is not None:
            sums = scorer.sums([ask(canary.question)] * len(texts), texts)
        else:
            sums = scorer.sums(texts, [None] * len(texts))
        return sums.fill_null(float("nan")).to_numpy()

    learnt = canary_set.numbers[: canary_set.n_learnt]
    unlearnt = canary_set.numbers[canary_set.n_learnt :]
    starts = range(0, len(unlearnt), _AT_ONCE)
    other_losses = (losses(unlearnt[start : start + _AT_ONCE]) for start in starts)
    repetitions = pl.int_range(1, pl.len() + 1).alias("repetitions")
    return exposures(losses(learnt), other_losses, canary.size).select(
        pl.lit(canary.name).alias("format"),
        pl.Series("canary", [canary.text(number) for number in learnt]),
        repetitions * canary_set.repetitions,
        pl.all(),
        pl.lit(len(unlearnt), pl.UInt32).alias("n_others"),
        pl.lit(unlearnt_exposure(len(unlearnt))).alias("unlearnt_exposure"),
    )


def read_words(base: str, revision: str | None) -> list[str]:
    """List the whole words of a tokenizer's vocabulary, in small letters."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        base, revision=revision, trust_remote_code=False
    )
    # Without the signs of a space before a word
    tokens = {token.lstrip("\u0120\u2581") for token in tokenizer.get_vocab()}
    words = sorted(
        token
        for token in tokens
        if len(token) >= _SHORTEST_WORD
        and token.isascii()
        and token.isalpha()
        and token.islower()
    )
    if len(words) < 10:
        raise SettingsError(
            f"the tokenizer of {base!r} has {len(words)} words, too few for canaries of"
            " words; give formats of your own with --canary-formats"
        )
    return words
