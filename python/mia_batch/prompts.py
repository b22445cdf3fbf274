"""Prompts: each function turns rows of the targets table into prompts of one kind."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from itertools import accumulate, islice, permutations
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.errors import SettingsError
from mia_batch.kernels import WordRule, word_spans
from mia_batch.models.tokens import Tokenizer
from mia_batch.schemas import Prompts
from mia_batch.targets import (
    MayCut,
    build_text_identity,
    compute_target_id,
    compute_text_digest,
)

SCHEMA = Prompts.create_empty().schema
"""Columns of the prompts table."""

_SEED_BITS = 62  # vLLM keeps seeds as signed 64-bit integers on a GPU
_STRIDE_BITS = 16

# Most samples of one prompt that have seeds of their own
SAMPLES_PER_TARGET = 1 << _STRIDE_BITS


def sample_seed(
    run_seed: int, target_id: str, view: str = "continuation", view_index: int = 0
) -> int:
    """Seed of the first sample of a prompt; sample ``i`` is drawn with this plus ``i``."""
    # At least 0 and below 2**62, a multiple of 65536, so that the seeds of two prompts
    # never overlap in part.
    first = view == "continuation" and view_index == 0
    key = (
        f"{run_seed}:{target_id}"
        if first
        else f"{run_seed}:{target_id}:{view}:{view_index}"
    )
    number = int.from_bytes(
        blake2b(key.encode(), digest_size=8, person=b"mia-batch").digest()
    )
    return number >> (64 - _SEED_BITS) >> _STRIDE_BITS << _STRIDE_BITS


# Prompts that put texts of known membership before the target.

BETWEEN = "\n\n"  # what stands between a text and what is before it
_IS_SHOT = "the text is one of those that are put before others"


class Shots(NamedTuple):
    """What stands before every target of a run: the shots, an empty line after each."""

    context: str
    texts: frozenset[str]
    n_shots: int
    n_tokens: int


def after_shots(targets: pl.DataFrame, *, shots: Shots) -> pl.DataFrame:
    """Put the shots before each target; a shot itself is not asked about."""
    is_shot = pl.col("target").is_in(sorted(shots.texts))
    return targets.select(
        "target_id",
        cut=pl.lit(0),
        context=pl.when(~is_shot).then(pl.lit(shots.context)),
        reason=pl.when(is_shot).then(pl.lit(_IS_SHOT)),
    )


def choose_shots(
    texts: Sequence[str],
    *,
    room: int,
    count_tokens: Callable[[Sequence[str]], Sequence[int]],
    setting: str,
) -> Shots:
    """Take as many shots as fit into ``room`` tokens, from the first on; empty texts are left out.

    Every target of a run has the same context, so that their scores compare. ``room``
    is what the model can read less the longest target. Xie et al. (2024),
    arXiv:2406.15968; the authors' code joins the shots without anything between, and
    makes room for a target of average length.

    Raises `SettingsError`, which names ``setting``, if there is no shot or not even the
    first fits.
    """
    found: list[Shots] = []
    there = [text for text in texts if text.strip()]
    if not there:
        raise SettingsError(f"{setting}: there is no text in it; give at least one")
    for n_shots, context in enumerate(
        accumulate(text + BETWEEN for text in there), start=1
    ):
        (n_tokens,) = count_tokens([context])
        if n_tokens <= room:
            found.append(Shots(context, frozenset(there[:n_shots]), n_shots, n_tokens))
        elif found:
            break
        else:
            raise SettingsError(
                f"{setting}: the first text has {n_tokens:,} tokens, but the model's"
                f" context leaves room for {max(room, 0):,} before the longest target;"
                " give shorter texts or shorter targets"
            )
    return found[-1]


# Prompts that are about the whole target.


def text(targets: pl.DataFrame) -> pl.DataFrame:
    return targets.select("target_id", cut=pl.lit(0))


def repeated(targets: pl.DataFrame) -> pl.DataFrame:
    """Take the target behind itself, a blank line between; its tokens stay what they are."""
    return targets.select(
        "target_id", cut=pl.lit(0), context=pl.col("target") + BETWEEN
    )


def lowercase(targets: pl.DataFrame) -> pl.DataFrame:
    """Put the target in Unicode's lower case: Carlini et al. (2021), arXiv:2012.07805, 5.2."""
    lower = pl.Series([target.lower() for target in targets["target"]], dtype=pl.String)
    return targets.select("target_id", context=pl.lit(""), text=lower)


SWAPPED = 5  # texts with swapped words of each target, as the authors of PAC take them
_SWAPPED_SHARE = 0.3  # swaps, of the words
_ONE_WORD = "the text has fewer than two words to swap"


def swapped(targets: pl.DataFrame, *, seed: int) -> pl.DataFrame:
    """Swap two words at random places, for three tenths as many times as the target has words.

    Words are what spaces separate. Ye et al. (2024), arXiv:2405.11930, and the authors'
    code.
    """
    made: list[dict[str, Any]] = []
    for name, target in targets.select("target_id", "target").iter_rows():
        texts, words = [], target.split(" ")
        for index in range(SWAPPED) if len(words) > 1 else ():
            random, n = (
                np.random.default_rng(sample_seed(seed, name, "swapped", index)),
                len(words),
            )
            one = random.integers(n, size=max(1, int(_SWAPPED_SHARE * n)))
            other = (one + random.integers(1, n, size=one.size)) % n
            order = [*words]
            for here, there in zip(one.tolist(), other.tolist(), strict=True):
                order[here], order[there] = order[there], order[here]
            texts.append(" ".join(order))
        made += numbered(name, texts, range(SWAPPED), None if texts else _ONE_WORD)
    return pl.DataFrame(made, schema_overrides=SCHEMA)


def pairs(targets: pl.DataFrame, *, n: int) -> pl.DataFrame:
    """Take the target as it is, twice for each of ``n`` pairs, which differ in how it is read."""
    index = pl.lit(list(range(2 * n)), dtype=pl.List(pl.UInt32))
    return targets.select("target_id", cut=pl.lit(0), view_index=index).explode(
        "view_index"
    )


def continuation(targets: pl.DataFrame) -> pl.DataFrame:
    """Ask for what follows the prefix; a target that cannot be split says why."""
    return targets.select("target_id", "reason")


def extraction(targets: pl.DataFrame) -> pl.DataFrame:
    """Put the prefix before the reference, a space between where they do not join to the target."""
    joins = pl.col("prefix") + pl.col("reference") == pl.col("target")
    apart = pl.when(pl.col("reason").is_null(), ~joins)
    return targets.select(
        "target_id", "reason", text=apart.then(" " + pl.col("reference"))
    )


_TASK = (
    "Rewrite the following passage in other words, in its own language. Change the"
    " words and their order; keep the meaning, the length, the tense and all names."
    " Answer with the rewritten passage alone.\n\nPassage: {}\n\nRewritten passage:"
)


def rewriting(targets: pl.DataFrame) -> pl.DataFrame:
    """Ask for a target in other words; the target itself says how long the answer is to be."""
    return targets.select(
        "target_id", context=pl.format(_TASK, "target"), cut=pl.lit(0, pl.UInt32)
    )


LEAST_CONTEXT = 8  # words before the first point

_NONE = np.zeros(0, dtype=np.int64)
_NO_FURTHER = "the text has no further point"


def probes(
    targets: pl.DataFrame,
    *,
    n: int,
    every: int,
    n_words: int,
    words: WordRule,
    may_cut: MayCut | None = None,
) -> pl.DataFrame:
    """Ask at up to ``n`` points, ``every`` so many words, for the next ``n_words``."""
    # The points stand behind word 8, 8 + ``every``, ..., each before at least
    # ``n_words``. They are numbered so that the first k of them are spread over the
    # text for every k, whatever ``n``: more points later are added to those that are
    # there. Where a target has fewer, its last row, numbered ``n`` - 1, says so. Where
    # ``may_cut`` forbids a point, it is left out.
    ends_of_words = word_spans("target", words=words).struct.field("ends")
    rows = targets.select("target_id", "target", ends=ends_of_words)
    counts = rows["ends"].list.len().to_numpy().astype(np.int64)
    possible = np.maximum((counts - LEAST_CONTEXT - n_words) // every + 1, 0)
    points = [_spread(int(most)) for most in possible]
    if may_cut is not None:
        texts = rows.select("target", "ends").iter_rows()
        # Words before a point
        places = [LEAST_CONTEXT + spread * every - 1 for spread in points]
        points = [
            (
                _allowed(spread, np.array(ends)[place], may_cut(text), n)
                if spread.size
                else spread
            )
            for spread, place, (text, ends) in zip(points, places, texts, strict=True)
        ]
    points = [spread[:n] for spread in points]
    n_points = np.array([len(spread) for spread in points], np.int64)
    which = np.repeat(np.arange(len(counts)), n_points)
    index = np.concatenate([_NONE, *(np.arange(len(each)) for each in points)])
    word = LEAST_CONTEXT + np.concatenate([_NONE, *points]) * every
    before = np.cumsum(counts) - counts  # words of earlier targets
    ends = rows["ends"].explode(empty_as_null=False).to_numpy().astype(np.int64)
    start = ends[before[which] + word - 1]  # the context ends with a word
    length = ends[before[which] + word + n_words - 1] - start
    target = pl.col("target").str
    made = rows.select("target_id", "target")[which].select(
        "target_id",
        view_index=pl.Series(index, dtype=pl.UInt32),
        cut=target.head(pl.Series(start)).str.len_bytes(),
        text=target.slice(pl.Series(start), pl.Series(length)),
    )
    last = pl.lit(n - 1, pl.UInt32)
    fewer = rows.select("target_id")[np.flatnonzero(n_points < n)]
    return pl.concat(
        [made, fewer.with_columns(view_index=last, reason=pl.lit(_NO_FURTHER))],
        how="diagonal",
    )


def _allowed(
    points: NDArray[np.int64],
    ends: NDArray[np.int64],
    is_allowed: Callable[[int], bool],
    n: int,
) -> NDArray[np.int64]:
    """Keep the first ``n`` points whose contexts may end where they do."""
    pairs = zip(points.tolist(), ends.tolist(), strict=True)
    allowed = (point for point, end in pairs if is_allowed(end))
    return np.array([*islice(allowed, n)], np.int64)


@cache
def _load(model: str, revision: str | None, setting: str) -> Tokenizer:
    return Tokenizer.load(model, revision, setting=setting)


def between_tokens(
    text: str, *, tokenizer: tuple[str, str | None, str]
) -> Callable[[int], bool]:
    """Return what says of a place in a text whether it is between two of its tokens."""
    return _load(*tokenizer).find_token_ends(text)


def tokens(
    targets: pl.DataFrame, *, n: int, tokenizer: tuple[str, str | None, str]
) -> pl.DataFrame:
    """Ask at up to ``n`` points for the next token alone, wherever a token of the text begins."""
    # The points stand behind token 8 and later ones, numbered as those of `probes`. The
    # tokenizer is that of a model with this name and revision, which a setting gives.
    cut = _load(*tokenizer).find_token_spans
    made: list[tuple[str, int, int | None, str | None, str | None]] = []
    for name, target in targets.select("target_id", "target").iter_rows():
        points = [*islice(cut(target, LEAST_CONTEXT, _spread), n)]
        for index, (start, end) in enumerate(points):
            n_bytes = len(target[:start].encode())
            made.append((name, index, n_bytes, target[start:end], None))
        if len(points) < n:
            made.append((name, n - 1, None, None, _NO_FURTHER))
    columns = ("target_id", "view_index", "cut", "text", "reason")
    return pl.DataFrame(made, {name: SCHEMA[name] for name in columns}, orient="row")


@cache
def _spread(n: int) -> NDArray[np.int64]:
    """Order 0, ..., n - 1 so that every beginning is spread evenly: by their bits, reversed.

    The order of van der Corput (1935).
    """
    width = max(n - 1, 0).bit_length()
    numbers = np.arange(1 << width)
    reverse = np.zeros_like(numbers)
    for bit in range(width):
        reverse |= ((numbers >> bit) & 1) << (width - 1 - bit)
    return reverse[reverse < n]


LAST_WORDS = 16
"""Words of a passage's own prefix that stand behind an unrelated one in the second prompt."""
NOTHING_UNRELATED = "no document of another group has a prefix to put in its place"


def after_unrelated(targets: pl.DataFrame, *, words: WordRule) -> pl.DataFrame:
    """Ask after column ``unrelated`` alone, and with the last words of the own prefix behind it."""
    start = word_spans("prefix", words=words).struct.field("starts").list
    last = pl.col("prefix").str.slice(start.tail(LAST_WORDS).list.first().fill_null(0))
    contexts = (pl.col("unrelated"), pl.concat_str("unrelated", last, separator=" "))
    return pl.concat(
        targets.select("target_id", "text", context=context, view_index=pl.lit(index))
        for index, context in enumerate(contexts)
    )


def own_prefix(targets: pl.DataFrame) -> pl.DataFrame:
    """Ask after the own prefix, as it was asked before."""
    return targets.select("target_id", "text")


class OtherRows:
    """Chooses rows of a table that belong to another owner, each as likely as any other."""

    def __init__(
        self, owners: NDArray[np.uint64], may_stand: NDArray[np.bool_]
    ) -> None:
        rows = np.flatnonzero(may_stand)
        self._rows = rows[np.argsort(owners[rows], kind="stable")]
        self._owners = owners[self._rows]

    def choose(self, owner: int, name: str, seed: int) -> int | None:
        """Choose for a target of this owner; seed and name decide. None where there is no other."""
        own = np.uint64(owner)
        start, stop = (
            int(np.searchsorted(self._owners, own, side)) for side in ("left", "right")
        )
        n_others = self._rows.size - (stop - start)
        if not n_others:
            return None
        place = sample_seed(seed, name, "control") // SAMPLES_PER_TARGET % n_others
        return int(self._rows[place if place < start else place + stop - start])


def given(targets: pl.DataFrame, *, column: str, n: int) -> pl.DataFrame:
    rows = targets.select("target_id", column).iter_rows()
    made = [
        row for name, texts in rows for row in numbered(name, texts or (), range(n))
    ]
    return pl.DataFrame(made, schema_overrides=SCHEMA)


def numbered(
    target_id: str,
    texts: Sequence[str | None],
    indices: range,
    reason: str | None = None,
) -> list[dict[str, Any]]:
    """Give some texts of a target their numbers; those that are not there have a reason."""
    why = reason or "the text has no further neighbour"
    places = {"target_id": target_id, "context": ""}
    found = ((index, texts[index] if index < len(texts) else None) for index in indices)
    return [
        places
        | {
            "view_index": index,
            "text": text,
            "reason": why if text is None else None,
        }
        for index, text in found
    ]


# Prompts that show four passages in every order and ask which is verbatim; three
# paraphrase it.

LABELS = ("A", "B", "C", "D")
"""Of the passages, as they are shown; in order k the verbatim one has label k modulo 4."""
N_PARAPHRASES = len(LABELS) - 1  # that a text needs
CHOICE_FIELDS = (pl.Field("choice", pl.UInt8()),)  # what `choice` gives

_ORDERS = tuple(
    (*others[:place], 0, *others[place:])
    for others in permutations((1, 2, 3))
    for place in range(len(LABELS))
)
"""Which passage has which label; 0 is the text."""
MOST_ORDERS = len(_ORDERS)

_CHOICE_TASK = "Answer the question with the letter of the right option alone."
_QUESTION = "Question: Which of the following passages is verbatim from {}?\nOptions:"
_ANSWERS = "".join(f" {label}" for label in LABELS)
_TOO_FEW = "the text has fewer than three paraphrases"
_EQUAL = "two of the text and its three paraphrases are equal"
_ARTICLE = (  # a sentence that begins with it, but for "A is ..."
    r"^\W*A (?:[\p{Ll}--i]|i[^s])"
)
_LABEL = (  # D'Artagnan names no label
    rf"\b[{''.join(LABELS)}]\b(?:['\x{{2019}}]\p{{L}})?"
)


def choices(targets: pl.DataFrame, *, column: str, n: int) -> pl.DataFrame:
    """Ask in the first ``n`` orders which passage is verbatim from the work that is the group.

    The paraphrases are the first three of a column of lists. Of any multiple of four
    orders each label is right in as many. The wording is near that of Duarte et al.
    2024 (arXiv:2402.09910); what can be answered is the ``text``.
    """
    passages = pl.concat_list("target", pl.col(column).list.head(3)).list.eval(
        pl.element().filter(pl.element().str.contains(r"\S"))
    )
    work = pl.coalesce(pl.format('"{}"', "group"), pl.lit("an existing text"))
    asked = targets.select(
        "target_id",
        passages=passages,
        question=pl.format(f"{_CHOICE_TASK}\n\n{_QUESTION}", work),
        reason=pl.when(passages.list.len().fill_null(0) < len(LABELS))
        .then(pl.lit(_TOO_FEW))
        .when(passages.list.n_unique() < len(LABELS))
        .then(pl.lit(_EQUAL)),
    )

    shown = [
        pl.col("passages").list.get(place, null_on_oob=True)
        for place in range(len(LABELS))
    ]
    can_ask, made = pl.when(pl.col("reason").is_null()), []
    for index, order in enumerate(_ORDERS[:n]):
        labelled = zip(LABELS, order, strict=True)
        options = [
            pl.format(f"{label}. {{}}", shown[passage]) for label, passage in labelled
        ]
        question = pl.concat_str(
            "question", *options, pl.lit("\nAnswer:"), separator="\n"
        )
        prompts = {
            "context": can_ask.then(question),
            "text": can_ask.then(pl.lit(_ANSWERS)),
        }
        number = pl.lit(index, pl.UInt32).alias("view_index")
        made.append(asked.select("target_id", number, reason="reason", **prompts))
    return pl.concat(made)


def choice(candidate: pl.Expr) -> pl.Expr:
    """Read which label an answer names, as its place in `LABELS`."""
    named = candidate.str.replace(_ARTICLE, "").str.extract_all(_LABEL)
    labels = named.list.eval(
        pl.element().filter(pl.element().str.len_chars() == 1)
    ).list.unique()
    one = pl.when(labels.list.len() == 1).then(labels.list.first())
    places = {label: place for place, label in enumerate(LABELS)}
    return pl.struct(choice=one.replace_strict(places, return_dtype=pl.UInt8)).alias(
        "choice"
    )


# Prompts that hide one word of a passage and ask for it.

_HIDDEN = "[MASK]"
_CLOZE_TASK = (
    "One word of the passage is hidden behind {}. Answer with that word"
    " alone.\n\nPassage: {}\n\nHidden word:"
)
_LETTERS = re.compile(r"[^\W\d_]{4,}")
_ENDS = (  # what stands before a word that would be capitalised in any case
    '.!?:;"\u201c\u201d\n'
)


def cloze(targets: pl.DataFrame, *, n: int, words: WordRule) -> pl.DataFrame:
    """Hide up to ``n`` words, one at a time: names first, then the longest words.

    A word has four letters or more and stands in the text once; a name begins with a
    capital elsewhere than at the start of a sentence. No model and no other text is
    asked which words are rare, so that prompts are alike for targets and non-members.
    Lan et al. (2026), arXiv:2606.07996, hide words that are specific to the corpus, by
    entities or TF-IDF.
    """
    spans = targets.select(
        "target_id", "target", spans=word_spans("target", words=words)
    )
    rows = (
        spans.unnest("spans")
        .select("target_id", "target", "starts", "ends")
        .iter_rows()
    )
    made: list[tuple[Any, ...]] = []
    for name, text, starts, ends in rows:
        made += _hidden(name, text, [*zip(starts, ends, strict=True)], n)
    columns = ("target_id", "view_index", "context", "text", "reason")
    return pl.DataFrame(made, {name: SCHEMA[name] for name in columns}, orient="row")


def _hidden(
    name: str, text: str, spans: list[tuple[int, int]], n: int
) -> Iterator[tuple[Any, ...]]:
    found = [
        each for start, end in spans for each in _LETTERS.finditer(text, start, end)
    ]
    times, usable = Counter(each[0] for each in found), []
    for each in found:
        word, (start, end) = each[0], each.span()
        if times[word] == 1:
            before = text[:start].rstrip(" ")
            is_name = word[0].isupper() and bool(before) and before[-1] not in _ENDS
            usable.append((not is_name, -len(word), start, end))
    for index, (*_, start, end) in enumerate(sorted(usable)[:n]):
        passage = f"{text[:start]}{_HIDDEN}{text[end:]}"
        yield name, index, _CLOZE_TASK.format(_HIDDEN, passage), text[start:end], None
    if len(usable) < n:
        yield name, n - 1, None, None, "the text has no further word that can be hidden"


def first_tokens(
    texts: pl.LazyFrame, *, n: int, n_tokens: int, tokenizer: Tokenizer | None
) -> pl.DataFrame:
    """Cut up to ``n`` different texts to their first tokens; without a tokenizer, words."""
    # They are those of the lowest hash, so that more are added to the ones there are.
    there = texts.filter(pl.col("text").str.contains(r"\S")).unique("text")
    found = there.collect(engine="streaming")["text"].to_list()
    named = {
        compute_target_id(
            build_text_identity(compute_text_digest(text), 0), 0, text
        ): text
        for text in found
    }
    chosen = sorted(named)[:n]
    cut = [" ".join(named[name].split()[:n_tokens]) for name in chosen]
    if tokenizer is not None:
        cut = [tokenizer.keep_first(named[name], n_tokens) for name in chosen]
    made = pl.DataFrame({"target_id": chosen, "context": cut}, schema_overrides=SCHEMA)
    return made.with_columns(view_index=pl.lit(0, pl.UInt32), text=pl.lit(""))
