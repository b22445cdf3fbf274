"""Prompts: each function turns rows of the targets table into prompts of one kind."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from itertools import accumulate, chain, islice, permutations, product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.corpus.conversations import (
    CONVERSATION,
    read_conversation,
    read_text,
)
from mia_batch.errors import SettingsError
from mia_batch.kernels import WordRule, word_spans
from mia_batch.models.chat import ChatTemplate, TemplateError
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
    run_seed: int,
    target_id: str,
    view: str = "continuation",
    view_index: int = 0,
) -> int:
    """Return the seed of a prompt's first sample; sample ``i`` is drawn with this plus ``i``."""
    # At least 0 and below 2**62, a multiple of 65536, so that the seeds of two prompts
    # never overlap in part.
    key = f"{run_seed}:{target_id}"
    if view != "continuation" or view_index != 0:
        key += f":{view}:{view_index}"
    digest = blake2b(
        key.encode(),
        digest_size=8,
        person=b"mia-batch",
    ).digest()
    number = int.from_bytes(digest)
    return number >> (64 - _SEED_BITS) >> _STRIDE_BITS << _STRIDE_BITS


# Prompts that put texts of known membership before the target.

BETWEEN = "\n\n"  # what stands between a text and what is before it
_IS_SHOT = "the text is one of those that are put before others"


class Shots(NamedTuple):
    """What stands before every target of a run."""

    context: str  # the shots, an empty line after each
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
    """Choose as many shots as fit into ``room`` tokens, from the first on, but empty texts.

    Every target of a run has the same context, so that their scores compare. ``room``
    is what the model can read less the longest target. Xie et al. (2024),
    arXiv:2406.15968; the authors' code joins the shots without anything between, and
    makes room for a target of average length.

    Raises `SettingsError`, which names ``setting``, if there is no shot or not even the
    first fits.
    """
    usable = [text for text in texts if text.strip()]
    if not usable:
        raise SettingsError(f"{setting}: there is no text in it; give at least one")
    fitting: list[Shots] = []
    contexts = accumulate(text + BETWEEN for text in usable)
    for n_shots, context in enumerate(contexts, start=1):
        (n_tokens,) = count_tokens([context])
        if n_tokens <= room:
            shots = frozenset(usable[:n_shots])
            fitting.append(Shots(context, shots, n_shots, n_tokens))
        elif fitting:
            break
        else:
            raise SettingsError(
                f"{setting}: the first text has {n_tokens:,} tokens, but the model's"
                f" context leaves room for {max(room, 0):,} before the longest target;"
                " give shorter texts or shorter targets"
            )
    return fitting[-1]


# Prompts about answers of conversations.

MakePrompts: TypeAlias = Callable[[pl.DataFrame], pl.DataFrame]
"""Turns rows of the targets table into rows of the prompts table."""
TokenizerName: TypeAlias = tuple[str, str | None, str]
"""A model's name and revision, and the setting that names it."""

_NO_CONVERSATION = "nothing says what came before this answer"


@cache
def find_template(tokenizer: TokenizerName) -> ChatTemplate | None:
    """Load the chat template of a model, where it has one."""
    return _load(*tokenizer).chat_template


def load_template(tokenizer: TokenizerName) -> ChatTemplate:
    """Load the chat template of a model; refuse a model that has none."""
    model, _, setting = tokenizer
    template = find_template(tokenizer)
    if template is None:
        raise SettingsError(
            f"{setting}: {model!r} has no chat template, by which a conversation becomes"
            " a prompt; give a model or tokenizer that has one, or conversations= text,"
            " which reads each conversation as one plain text"
        )
    return template


def in_conversation(
    targets: pl.DataFrame,
    *,
    make: MakePrompts,
    tokenizer: TokenizerName,
    leaves_out_start: bool = False,
) -> pl.DataFrame:
    """Put before each prompt what the chat template writes before the answer.

    An answer is scored as the template writes it: some remove the spaces around it, or
    thoughts before it. The start token may be left to who puts it before each prompt.
    """
    placed = place_answers(targets, tokenizer)
    start = _load(*tokenizer).start_token if leaves_out_start else ""
    prompts = make(targets).join(
        placed, on="target_id", how="left", maintain_order="left"
    )
    # What a view puts between the conversation and the text that it asks about
    answer_bytes = pl.col("answer").cast(pl.Binary).bin
    beginning = answer_bytes.head(pl.col("cut")).cast(pl.String)
    between = pl.coalesce("context", beginning)
    is_whole = pl.col("cut").fill_null(0) == 0
    is_changed = pl.col("placed_text") != pl.col("answer")
    text = pl.when(is_whole & is_changed).then("placed_text")
    whole = prompts.with_columns(
        context=pl.concat_str(
            pl.col("placed_context").str.strip_prefix(start), between.fill_null("")
        ),
        text=pl.coalesce("text", text),
        reason=pl.coalesce("reason", "placed_reason"),
    )
    return whole.select(SCHEMA.names())


_PLACED = pl.Struct(
    dict.fromkeys(
        ("placed_context", "placed_text", "placed_ending", "placed_reason"), pl.String
    )
)


def place_answers(targets: pl.DataFrame, tokenizer: TokenizerName) -> pl.DataFrame:
    """Return ``answer`` of each target with what a template writes around it, or why not.

    Columns ``placed_context``, ``placed_text`` and ``placed_ending`` are what it writes
    before the answer, for it and after it; ``placed_reason`` why there are none.
    """
    template = load_template(tokenizer)
    places = [
        _place(template, content, answer)
        for content, answer in targets.select(CONVERSATION, "target").iter_rows()
    ]
    table = targets.select(
        "target_id", answer="target", placed=pl.Series(places, dtype=_PLACED)
    )
    return table.unnest("placed")


def build_lessons(answers: pl.DataFrame, tokenizer: TokenizerName) -> pl.DataFrame:
    """Return what a model learns of answers: a ``text``, its ``context``, or a ``reason``.

    A text is an answer and the mark of its end, which stands after what the context is.
    """
    placed = place_answers(answers.with_columns(target_id=pl.lit("")), tokenizer)
    ending = pl.col("placed_ending").str.strip_chars_end()
    return placed.select(
        context="placed_context",
        text=pl.col("placed_text") + ending,
        reason="placed_reason",
    )


def _place(
    template: ChatTemplate, content: str | None, answer: str | None
) -> dict[str, str | None]:
    values: tuple[str | None, ...] = (None, None, None, _NO_CONVERSATION)
    if content is not None and answer is not None:
        try:
            values = (*template.place(read_conversation(content), answer), None)
        except TemplateError as error:
            values = (None, None, None, str(error))
    names = (field.name for field in _PLACED.fields)
    return dict(zip(names, values, strict=True))


def as_messages(targets: pl.DataFrame, *, make: MakePrompts) -> pl.DataFrame:
    """Give an endpoint of chats the messages before the answer, as JSON."""
    conversations = targets.select("target_id", CONVERSATION)
    prompts = make(targets).join(
        conversations, on="target_id", how="left", maintain_order="left"
    )
    is_missing = pl.col(CONVERSATION).is_null()
    missing = pl.when(is_missing).then(pl.lit(_NO_CONVERSATION))
    whole = prompts.with_columns(
        context=pl.col(CONVERSATION), reason=pl.coalesce("reason", missing)
    )
    return whole.select(SCHEMA.names())


def as_question(
    targets: pl.DataFrame, *, make: MakePrompts, tokenizer: TokenizerName
) -> pl.DataFrame:
    """Put each prompt to the model as what a user says."""
    template = load_template(tokenizer)
    rows = make(targets)
    asked = [_ask(template, context) for context in rows["context"]]
    contexts, reasons = zip(*asked, strict=True) if asked else ((), ())
    return rows.with_columns(
        context=pl.Series(contexts, dtype=pl.String),
        reason=pl.coalesce("reason", pl.Series(reasons, dtype=pl.String)),
    )


def _ask(template: ChatTemplate, question: str | None) -> tuple[str | None, str | None]:
    """Return a question as the template writes it, or why it does not."""
    if question is None:
        return None, None
    try:
        message = {"role": "user", "content": question}
        return template.render([message], asks=True), None
    except TemplateError as error:
        return None, str(error)


# Prompts of Self-Critique: they ask for the model's own answer, and for another one.

_OTHER_WAY = (
    "{}\n\nThis is one answer, which may be right or wrong:\n\n{}\n\nAnswer in another"
    " way than it does, by other steps or by another approach."
)
_NOT_A_QUESTION = "what came before the answer does not end with a user's message"
ANSWER_VIEWS = ("first_answer", "second_answer")
"""Views of the model's own answers, in the order in which it gives them."""
_FIRST_ANSWER = (ANSWER_VIEWS[0], f"{ANSWER_VIEWS[0]}_reason")


def ask_for_another(question: str, answer: str) -> str:
    """Return a question with an answer, and the request for another way to answer.

    The wording is ours: that of Tao et al. (2025), arXiv:2510.09259, asks for the same.
    """
    return _OTHER_WAY.format(question, answer)


def first_answer(targets: pl.DataFrame, *, tokenizer: TokenizerName) -> pl.DataFrame:
    """Ask what came before each answer, as the template puts it to the model."""
    template = load_template(tokenizer)
    prompts: list[tuple[Any, ...]] = []
    for name, content in targets.select("target_id", CONVERSATION).iter_rows():
        context, reason = _ask_anew(template, content)
        prompts.append((name, context, "", reason))
    return _build_prompts(prompts, _ANSWER_COLUMNS)


def second_answer(targets: pl.DataFrame, *, tokenizer: TokenizerName) -> pl.DataFrame:
    """Ask for another answer than the first one; where that is missing its reason says why."""
    template = load_template(tokenizer)
    columns = ("target_id", CONVERSATION, *_FIRST_ANSWER)
    prompts: list[tuple[Any, ...]] = []
    for name, content, answer, no_answer in targets.select(columns).iter_rows():
        context, reason = None, no_answer
        if no_answer is None:
            context, reason = _ask_anew(template, content, answer)
        prompts.append((name, context, "", reason))
    return _build_prompts(prompts, _ANSWER_COLUMNS)


def both_answers(answered: pl.DataFrame) -> pl.DataFrame:
    """Read both answers, the second as prompt 1, each after what it answers.

    For each of `ANSWER_VIEWS` there are the columns NAME, NAME_context and NAME_reason.
    """
    return pl.concat(
        answered.select(
            "target_id",
            view_index=pl.lit(index, pl.UInt32),
            context=f"{name}_context",
            text=name,
            reason=f"{name}_reason",
        )
        for index, name in enumerate(ANSWER_VIEWS)
    )


_ANSWER_COLUMNS = ("target_id", "context", "text", "reason")


def _ask_anew(
    template: ChatTemplate, content: str | None, answer: str | None = None
) -> tuple[str | None, str | None]:
    """Return a conversation that waits for an answer, or for another one; or why not."""
    if content is None:
        return None, _NO_CONVERSATION
    conversation = read_conversation(content)
    messages = [*conversation.messages]
    if not messages or messages[-1]["role"] != "user":
        return None, _NOT_A_QUESTION
    if answer is not None:
        question = ask_for_another(read_text(messages[-1]), answer)
        messages[-1] = {**messages[-1], "content": question}
    try:
        return template.render(messages, conversation.tools, asks=True), None
    except TemplateError as error:
        return None, str(error)


# Prompts that are about the whole target.


def text(targets: pl.DataFrame) -> pl.DataFrame:
    return targets.select("target_id", cut=pl.lit(0))


def repeated(targets: pl.DataFrame) -> pl.DataFrame:
    """Put the target behind itself, a blank line between; its tokens stay what they are."""
    return targets.select(
        "target_id",
        cut=pl.lit(0),
        context=pl.col("target") + BETWEEN,
    )


def lowercase(targets: pl.DataFrame) -> pl.DataFrame:
    """Put the target in Unicode's lower case: Carlini et al. (2021), arXiv:2012.07805, 5.2."""
    lower = pl.Series([target.lower() for target in targets["target"]], dtype=pl.String)
    return targets.select(
        "target_id",
        context=pl.lit(""),
        text=lower,
    )


SWAPPED = 5  # texts with swapped words of each target, as the authors of PAC take them
_SWAPPED_SHARE = 0.3  # swaps, of the words
_ONE_WORD = "the text has fewer than two words to swap"


def swapped(targets: pl.DataFrame, *, seed: int) -> pl.DataFrame:
    """Swap two words at random places, for three tenths as many times as the target has words.

    Words are what spaces separate. Ye et al. (2024), arXiv:2405.11930, and the authors'
    code.
    """
    prompts: list[dict[str, Any]] = []
    for name, target in targets.select("target_id", "target").iter_rows():
        words = target.split(" ")
        texts = []
        if len(words) > 1:
            for index in range(SWAPPED):
                text_seed = sample_seed(seed, name, "swapped", index)
                texts.append(" ".join(_swap_words(words, text_seed)))
        reason = None if texts else _ONE_WORD
        prompts += number_texts(name, texts, range(SWAPPED), reason)
    return pl.DataFrame(prompts, schema_overrides=SCHEMA)


def _swap_words(words: list[str], seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    n_words = len(words)
    n_swaps = max(1, int(_SWAPPED_SHARE * n_words))
    first = random.integers(n_words, size=n_swaps)
    second = (first + random.integers(1, n_words, size=n_swaps)) % n_words
    words = [*words]
    for i, j in zip(first.tolist(), second.tolist(), strict=True):
        words[i], words[j] = words[j], words[i]
    return words


def pairs(targets: pl.DataFrame, *, n: int) -> pl.DataFrame:
    """Ask twice about the target as it is, for ``n`` pairs that differ in how it is read."""
    index = pl.lit(list(range(2 * n)), dtype=pl.List(pl.UInt32))
    prompts = targets.select(
        "target_id",
        cut=pl.lit(0),
        view_index=index,
    )
    return prompts.explode("view_index")


def continuation(targets: pl.DataFrame) -> pl.DataFrame:
    """Ask for what follows the prefix; a target that cannot be split says why."""
    return targets.select("target_id", "reason")


def extraction(targets: pl.DataFrame) -> pl.DataFrame:
    """Put the prefix before the reference, a space between where they do not join."""
    joins = pl.col("prefix") + pl.col("reference") == pl.col("target")
    is_apart = pl.when(pl.col("reason").is_null(), ~joins)
    text = is_apart.then(" " + pl.col("reference"))
    return targets.select("target_id", "reason", text=text)


_TASK = (
    "Rewrite the following passage in other words, in its own language. Change the"
    " words and their order; keep the meaning, the length, the tense and all names."
    " Answer with the rewritten passage alone.\n\nPassage: {}\n\nRewritten passage:"
)


def rewriting(targets: pl.DataFrame) -> pl.DataFrame:
    """Ask for a target in other words; the target itself says how long the answer is to be."""
    return targets.select(
        "target_id",
        context=pl.format(_TASK, "target"),
        cut=pl.lit(0, pl.UInt32),
    )


LEAST_CONTEXT = 8  # words before the first point

_NO_POINTS = np.zeros(0, dtype=np.int64)
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
    word_counts = rows["ends"].list.len().to_numpy().astype(np.int64)
    n_possible = np.maximum((word_counts - LEAST_CONTEXT - n_words) // every + 1, 0)
    points = [_spread(int(n_points)) for n_points in n_possible]
    if may_cut is not None:
        texts = rows.select("target", "ends").iter_rows()
        for number, (target, target_ends) in enumerate(texts):
            if points[number].size:
                last_words = LEAST_CONTEXT + points[number] * every - 1
                places = np.array(target_ends)[last_words]
                is_allowed = may_cut(target)
                points[number] = _select_allowed(points[number], places, is_allowed, n)
    points = [target_points[:n] for target_points in points]
    n_points = np.array([len(target_points) for target_points in points], np.int64)
    row = np.repeat(np.arange(len(word_counts)), n_points)
    index = np.concatenate([_NO_POINTS, *map(np.arange, n_points)])
    ends = rows["ends"].explode(empty_as_null=False).to_numpy().astype(np.int64)
    first_word = (np.cumsum(word_counts) - word_counts)[row]
    word = first_word + LEAST_CONTEXT + np.concatenate([_NO_POINTS, *points]) * every
    start = ends[word - 1]  # the context ends with a word
    length = ends[word + n_words - 1] - start
    text = pl.col("target").str
    prompts = rows.select("target_id", "target")[row].select(
        "target_id",
        view_index=pl.Series(index, dtype=pl.UInt32),
        cut=text.head(pl.Series(start)).str.len_bytes(),
        text=text.slice(pl.Series(start), pl.Series(length)),
    )
    fewer = rows.select("target_id")[np.flatnonzero(n_points < n)]
    fewer = fewer.with_columns(
        view_index=pl.lit(n - 1, pl.UInt32),
        reason=pl.lit(_NO_FURTHER),
    )
    return pl.concat([prompts, fewer], how="diagonal")


def _select_allowed(
    points: NDArray[np.int64],
    places: NDArray[np.int64],
    is_allowed: Callable[[int], bool],
    n: int,
) -> NDArray[np.int64]:
    """Return the first ``n`` points at whose places prompts may end."""
    candidates = zip(points.tolist(), places.tolist(), strict=True)
    allowed = (point for point, place in candidates if is_allowed(place))
    return np.array([*islice(allowed, n)], np.int64)


@cache
def _load(
    model: str,
    revision: str | None,
    setting: str,
) -> Tokenizer:
    return Tokenizer.load(model, revision, setting=setting)


def between_tokens(
    text: str, *, tokenizer: tuple[str, str | None, str]
) -> Callable[[int], bool]:
    """Return a function that checks that a place in a text is between two of its tokens."""
    return _load(*tokenizer).find_token_ends(text)


def tokens(
    targets: pl.DataFrame,
    *,
    n: int,
    tokenizer: tuple[str, str | None, str],
) -> pl.DataFrame:
    """Ask at up to ``n`` points for the next token alone, wherever a token of the text begins."""
    # The points stand behind token 8 and later ones, numbered as those of `probes`. The
    # tokenizer is that of a model with this name and revision, which a setting gives.
    find_spans = _load(*tokenizer).find_token_spans
    prompts: list[tuple[str, int, int | None, str | None, str | None]] = []
    for name, target in targets.select("target_id", "target").iter_rows():
        spans = [*islice(find_spans(target, LEAST_CONTEXT, _spread), n)]
        for index, (start, end) in enumerate(spans):
            n_bytes = len(target[:start].encode())
            prompts.append((name, index, n_bytes, target[start:end], None))
        if len(spans) < n:
            prompts.append((name, n - 1, None, None, _NO_FURTHER))
    return _build_prompts(prompts, ("target_id", "view_index", "cut", "text", "reason"))


def _build_prompts(
    rows: list[tuple[Any, ...]], columns: tuple[str, ...]
) -> pl.DataFrame:
    return pl.DataFrame(rows, {name: SCHEMA[name] for name in columns}, orient="row")


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
    """Ask after column ``unrelated`` alone, and with the last words of the prefix behind it."""
    starts = word_spans("prefix", words=words).struct.field("starts").list
    start = starts.tail(LAST_WORDS).list.first().fill_null(0)
    last_words = pl.col("prefix").str.slice(start)
    contexts = (
        pl.col("unrelated"),
        pl.concat_str("unrelated", last_words, separator=" "),
    )
    return pl.concat(
        targets.select(
            "target_id",
            "text",
            context=context,
            view_index=pl.lit(index),
        )
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

    def choose(
        self,
        owner: int,
        name: str,
        seed: int,
    ) -> int | None:
        """Choose a row for a target of this owner, by seed and name; None without another."""
        key = np.uint64(owner)
        start = int(np.searchsorted(self._owners, key, "left"))
        stop = int(np.searchsorted(self._owners, key, "right"))
        n_owned = stop - start
        n_others = self._rows.size - n_owned
        if not n_others:
            return None
        place = sample_seed(seed, name, "control") // SAMPLES_PER_TARGET % n_others
        return int(self._rows[place if place < start else place + n_owned])


def neighbours(
    targets: pl.DataFrame,
    *,
    column: str,
    n: int,
) -> pl.DataFrame:
    """Ask about the texts of a column of lists."""
    prompts: list[dict[str, Any]] = []
    for name, texts in targets.select("target_id", column).iter_rows():
        prompts += number_texts(name, texts or (), range(n))
    return pl.DataFrame(prompts, schema_overrides=SCHEMA)


def number_texts(
    target_id: str,
    texts: Sequence[str | None],
    indices: range,
    reason: str | None = None,
) -> list[dict[str, Any]]:
    """Return prompts of some texts of a target; those that are missing have a reason."""
    reason = reason or "the text has no further neighbour"
    prompts = []
    for index in indices:
        text = texts[index] if index < len(texts) else None
        prompts.append(
            {
                "target_id": target_id,
                "context": "",
                "view_index": index,
                "text": text,
                "reason": reason if text is None else None,
            }
        )
    return prompts


# Prompts that show four passages in every order and ask which is verbatim; three
# paraphrase it.

LABELS = ("A", "B", "C", "D")
"""Of the passages, as they are shown; in order k the verbatim one has label k modulo 4."""
N_PARAPHRASES = len(LABELS) - 1  # that a text needs
CHOICE_FIELDS = (pl.Field("choice", pl.UInt8()),)  # what `read_choice` returns

_ORDERS = tuple(
    (*paraphrases[:place], 0, *paraphrases[place:])
    for paraphrases, place in product(permutations((1, 2, 3)), range(len(LABELS)))
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


def choices(
    targets: pl.DataFrame,
    *,
    column: str,
    n: int,
) -> pl.DataFrame:
    """Ask in the first ``n`` orders which passage is verbatim from the work that is the group.

    The paraphrases are the first three of a column of lists. Of any multiple of four
    orders each label is right in as many. The wording is near that of Duarte et al.
    2024 (arXiv:2402.09910); what can be answered is the ``text``.
    """
    has_words = pl.element().str.contains(r"\S")
    passages = pl.concat_list("target", pl.col(column).list.head(3))
    passages = passages.list.eval(pl.element().filter(has_words))
    work = pl.coalesce(pl.format('"{}"', "group"), pl.lit("an existing text"))
    n_passages = passages.list.len().fill_null(0)
    questions = targets.select(
        "target_id",
        passages=passages,
        question=pl.format(f"{_CHOICE_TASK}\n\n{_QUESTION}", work),
        reason=pl.when(n_passages < len(LABELS))
        .then(pl.lit(_TOO_FEW))
        .when(passages.list.n_unique() < len(LABELS))
        .then(pl.lit(_EQUAL)),
    )
    passage_list = pl.col("passages").list
    can_ask = pl.when(pl.col("reason").is_null())
    prompts = []
    for index, order in enumerate(_ORDERS[:n]):
        options = [
            pl.format(f"{label}. {{}}", passage_list.get(passage, null_on_oob=True))
            for label, passage in zip(LABELS, order, strict=True)
        ]
        question = pl.concat_str(
            "question", *options, pl.lit("\nAnswer:"), separator="\n"
        )
        prompt = questions.select(
            "target_id",
            pl.lit(index, pl.UInt32).alias("view_index"),
            "reason",
            context=can_ask.then(question),
            text=can_ask.then(pl.lit(_ANSWERS)),
        )
        prompts.append(prompt)
    return pl.concat(prompts)


def read_choice(candidate: pl.Expr) -> pl.Expr:
    """Return which label an answer names, as its place in `LABELS`."""
    matches = candidate.str.replace(_ARTICLE, "").str.extract_all(_LABEL)
    is_label = pl.element().str.len_chars() == 1
    labels = matches.list.eval(pl.element().filter(is_label)).list.unique()
    only_label = pl.when(labels.list.len() == 1).then(labels.list.first())
    places = {label: place for place, label in enumerate(LABELS)}
    place = only_label.replace_strict(places, return_dtype=pl.UInt8)
    return pl.struct(choice=place).alias("choice")


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


def cloze(
    targets: pl.DataFrame,
    *,
    n: int,
    words: WordRule,
) -> pl.DataFrame:
    """Hide up to ``n`` words, one at a time: names first, then the longest words.

    A word has four letters or more and stands in the text once; a name begins with a
    capital elsewhere than at the start of a sentence. No model and no other text is
    asked which words are rare, so that prompts are alike for targets and non-members.
    Lan et al. (2026), arXiv:2606.07996, hide words that are specific to the corpus, by
    entities or TF-IDF.
    """
    spans = word_spans("target", words=words)
    rows = targets.select("target_id", "target", spans=spans).unnest("spans")
    columns = ("target_id", "target", "starts", "ends")
    prompts: list[tuple[Any, ...]] = []
    for name, text, starts, ends in rows.select(columns).iter_rows():
        prompts += _hide_words(name, text, [*zip(starts, ends, strict=True)], n)
    return _build_prompts(
        prompts, ("target_id", "view_index", "context", "text", "reason")
    )


def _hide_words(
    name: str,
    text: str,
    spans: list[tuple[int, int]],
    n: int,
) -> Iterator[tuple[Any, ...]]:
    matches = [*chain.from_iterable(_LETTERS.finditer(text, *span) for span in spans)]
    counts = Counter(match[0] for match in matches)
    usable = []
    for match in matches:
        word = match[0]
        if counts[word] == 1:
            before_word = text[: match.start()].rstrip(" ")
            in_sentence = bool(before_word) and before_word[-1] not in _ENDS
            is_name = word[0].isupper() and in_sentence
            usable.append((not is_name, -len(word), *match.span()))
    for index, (*_, start, end) in enumerate(sorted(usable)[:n]):
        passage = f"{text[:start]}{_HIDDEN}{text[end:]}"
        yield name, index, _CLOZE_TASK.format(_HIDDEN, passage), text[start:end], None
    if len(usable) < n:
        yield name, n - 1, None, None, "the text has no further word that can be hidden"


def _name_text(text: str) -> str:
    """Return the name of a text that is no target."""
    return compute_target_id(build_text_identity(compute_text_digest(text), 0), 0, text)


def first_questions(
    documents: pl.LazyFrame, *, n: int, tokenizer: TokenizerName | None
) -> pl.DataFrame:
    """Take up to ``n`` different conversations as they stand before an answer.

    Without a tokenizer they are messages, as JSON.
    """
    has_words = pl.col("text").str.contains(r"\S")
    unique = documents.filter(has_words).unique(CONVERSATION)
    rows = unique.select(CONVERSATION, target="text").collect(engine="streaming")
    names = [_name_text(content) for content in rows[CONVERSATION]]
    rows = rows.with_columns(target_id=pl.Series(names, dtype=pl.String))
    rows = rows.sort("target_id").head(n)
    contexts = rows[CONVERSATION]
    if tokenizer is not None:
        contexts = place_answers(rows, tokenizer)["placed_context"]
    prompts = rows.select("target_id", context=contexts).drop_nulls()
    return prompts.with_columns(view_index=pl.lit(0, pl.UInt32), text=pl.lit(""))


def first_tokens(
    texts: pl.LazyFrame,
    *,
    n: int,
    n_tokens: int,
    tokenizer: Tokenizer | None,
) -> pl.DataFrame:
    """Cut up to ``n`` different texts to their first tokens; without a tokenizer, words."""
    # They are those of the lowest hash, so that more are added to the ones there are.
    usable = texts.filter(pl.col("text").str.contains(r"\S")).unique("text")
    texts_in_full = usable.collect(engine="streaming")["text"]
    text_by_id = {_name_text(text): text for text in texts_in_full}
    names = sorted(text_by_id)[:n]
    chosen_texts = [text_by_id[name] for name in names]
    if tokenizer is None:
        heads = [" ".join(text.split()[:n_tokens]) for text in chosen_texts]
    else:
        heads = [tokenizer.keep_first(text, n_tokens) for text in chosen_texts]
    prompts = pl.DataFrame(
        {"target_id": names, "context": heads}, schema_overrides=SCHEMA
    )
    return prompts.with_columns(
        view_index=pl.lit(0, pl.UInt32),
        text=pl.lit(""),
    )
