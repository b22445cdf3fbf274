"""Prompts that show four passages in every order and ask which is verbatim; three paraphrase it."""

from __future__ import annotations

from itertools import permutations

import polars as pl

__all__ = ["CHOICE_FIELDS", "LABELS", "MOST_ORDERS", "N_PARAPHRASES", "choice", "choices"]

LABELS = ("A", "B", "C", "D")
"""Of the passages, as they are shown; in order k the verbatim one has label k modulo 4."""
N_PARAPHRASES = len(LABELS) - 1
"""That a text needs."""
CHOICE_FIELDS = (pl.Field("choice", pl.UInt8()),)
"""What `choice` gives."""

_ORDERS = tuple(
    (*others[:place], 0, *others[place:])
    for others in permutations((1, 2, 3))
    for place in range(len(LABELS))
)
"""Which passage has which label; 0 is the text."""
MOST_ORDERS = len(_ORDERS)

_TASK = "Answer the question with the letter of the right option alone."
_QUESTION = "Question: Which of the following passages is verbatim from {}?\nOptions:"
_ANSWERS = "".join(f" {label}" for label in LABELS)
_TOO_FEW = "the text has fewer than three paraphrases"
_EQUAL = "two of the text and its three paraphrases are equal"
_ARTICLE = r"^\W*A (?:[\p{Ll}--i]|i[^s])"  # a sentence that begins with it, but for "A is ..."
_LABEL = rf"\b[{''.join(LABELS)}]\b(?:['\x{{2019}}]\p{{L}})?"  # D'Artagnan is none


def choices(targets: pl.DataFrame, *, column: str, n: int) -> pl.DataFrame:
    """Ask in the first ``n`` orders which passage is verbatim from the work that is the group.

    The paraphrases are the first three of a column of lists. Of any multiple of four orders each
    label is right in as many. The wording is near that of Duarte et al. 2024 (arXiv:2402.09910);
    what can be answered is the ``text``.
    """
    passages = pl.concat_list("target", pl.col(column).list.head(3)).list.eval(
        pl.element().filter(pl.element().str.contains(r"\S"))
    )
    work = pl.coalesce(pl.format('"{}"', "group"), pl.lit("an existing text"))
    asked = targets.select(
        "target_id",
        passages=passages,
        question=pl.format(_QUESTION, work),
        reason=pl.when(passages.list.len().fill_null(0) < len(LABELS))
        .then(pl.lit(_TOO_FEW))
        .when(passages.list.n_unique() < len(LABELS))
        .then(pl.lit(_EQUAL)),
    )
    return pl.concat(
        asked.select(
            "target_id",
            view_index=pl.lit(index, pl.UInt32),
            context=pl.when(pl.col("reason").is_null()).then(_context(order)),
            text=pl.when(pl.col("reason").is_null()).then(pl.lit(_ANSWERS)),
            reason="reason",
        )
        for index, order in enumerate(_ORDERS[:n])
    )


def _context(order: tuple[int, ...]) -> pl.Expr:
    options = [
        pl.format(f"{label}. {{}}", pl.col("passages").list.get(passage, null_on_oob=True))
        for label, passage in zip(LABELS, order, strict=True)
    ]
    question = pl.concat_str(pl.lit(_TASK), pl.lit("\n\n"), "question")
    return pl.concat_str(question, *options, pl.lit("\nAnswer:"), separator="\n")


def choice(candidate: pl.Expr) -> pl.Expr:
    """Read which label an answer names, as its place in `LABELS`.

    A struct of UInt8; null where it names none, or several.
    """
    named = candidate.str.replace(_ARTICLE, "").str.extract_all(_LABEL)
    labels = named.list.eval(pl.element().filter(pl.element().str.len_chars() == 1)).list.unique()
    one = pl.when(labels.list.len() == 1).then(labels.list.first())
    places = {label: place for place, label in enumerate(LABELS)}
    return pl.struct(choice=one.replace_strict(places, return_dtype=pl.UInt8)).alias("choice")
