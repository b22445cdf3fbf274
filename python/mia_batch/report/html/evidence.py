"""Evidence: what the model was given, what follows in the text, and what the model wrote."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import polars as pl
import polars.selectors as cs
from markupsafe import Markup

from mia_batch.report.html.tables import common_windows, cut, document_tables, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.report.html.page import Contents


MOST_WINDOWS = 20
"""Windows that are shown for each reason: the longest runs, common passages, highest scores."""
_MOST_CHARACTERS = 1_500
_MOST_OF_PREFIX = 800
_CONTINUATION = "continuation"
_COLUMNS = ("target_id", "document_id", "member", "window_index", "n_windows", "start")
_TEXTS = ("target", "prefix", "reference")

Pieces = list[tuple[str, bool]]
"""Stretches of a text in order, each with whether it is marked."""


def evidence(contents: Contents) -> list[dict[str, Any]]:
    """Show the windows with the longest verbatim runs, common ones, and those of highest scores.

    Each has the columns of its target and ``score``; ``longest_words`` and ``sample_index`` where
    they are known; ``common``, where else its passage comes out; and texts as marked pieces.
    """
    longest, common = _longest(contents), common_windows(contents)
    further = [*[*common][:MOST_WINDOWS], *_highest(contents)]
    chosen = {**longest, **{key: None for key in further if key not in longest}}
    if not chosen:
        return []
    ids = pl.col("target_id").is_in(list(chosen))
    targets = {row["target_id"]: row for row in _targets(contents, ids).iter_rows(named=True)}
    samples = _samples(contents, ids)
    return [
        targets[key]
        | {"longest_words": None, "common": common.get(key, [])}
        | _texts(targets[key], samples.get(key, []), chosen[key])
        for key in chosen
        if key in targets
    ]


def _longest(contents: Contents) -> dict[str, dict[str, Any]]:
    """Find the windows of the longest runs, one for each document, and the sample of each."""
    if not contents.has("rollup", "longest_target_id"):
        return {}
    own = pl.col("level") != "outside"
    rows = contents.frame("rollup", pl.col("longest_target_id").is_not_null(), own)
    rows = rows.sort("longest_words", "longest_target_id", descending=True, nulls_last=True)
    first = rows.unique("longest_target_id", keep="first", maintain_order=True).head(MOST_WINDOWS)
    return {row["longest_target_id"]: row for row in first.iter_rows(named=True)}


def _highest(contents: Contents) -> list[str]:
    attack = contents.primary
    if not contents.has("scores", attack):
        return []
    scores = contents.tables["scores"].filter(pl.col(attack).is_not_null(), role="target")
    top = scores.top_k(MOST_WINDOWS, by=[attack, "target_id"]).collect(engine="streaming")
    return top.sort(attack, "target_id", descending=True)["target_id"].to_list()


def _targets(contents: Contents, ids: pl.Expr) -> pl.DataFrame:
    targets = contents.frame("targets", ids).select(*_COLUMNS, *_TEXTS)
    if not contents.has("scores", contents.primary):
        return targets.with_columns(score=pl.lit(None, pl.Float64))
    scores = contents.frame("scores", ids).select("target_id", score=contents.primary)
    return targets.join(scores, on="target_id", how="left")


def _samples(contents: Contents, ids: pl.Expr) -> dict[str, list[dict[str, Any]]]:
    """Collect the samples of some windows, those at points of a text with where they stand."""
    if "samples" not in contents.tables:
        return {}
    rows = contents.frame("samples", ids, model="target").sort("view_index", "sample_index")
    key = ["target_id", "model", "view", "view_index"]
    if contents.has("prompts", "cut"):
        prompts = contents.frame("prompts", ids).select(*key, "cut", "text")
        rows = rows.join(prompts, on=key, how="left", maintain_order="left")
    if contents.has("features", "leading_words"):
        key = [*key, "sample_index"]
        said = contents.frame("features", ids).select(*key, "leading_words")
        rows = rows.join(said, on=key, how="left", maintain_order="left")
    found = rows.partition_by("target_id", as_dict=True, maintain_order=True)
    return {str(key[0]): part.to_dicts() for key, part in found.items()}


def _texts(
    target: dict[str, Any], samples: list[dict[str, Any]], longest: dict[str, Any] | None
) -> dict[str, Any]:
    """Mark what model and text share, in continuations or at the points that were asked about."""
    whole = [row for row in samples if row["view"] == _CONTINUATION and row["candidate"]]
    if whole and target["reference"]:
        index = longest["longest_sample_index"] if longest else None
        chosen = next((row for row in whole if row["sample_index"] == index), None)
        return _side_by_side(target, whole if chosen is None else [chosen]) | {
            "longest_words": longest["longest_words"] if longest and chosen else None
        }
    points = [row for row in samples if row.get("cut") and row["candidate"]]
    if points and target["target"]:
        return {"points": [*_at_points(target["target"], points)]}
    return {}


def _side_by_side(target: dict[str, Any], samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Choose the sample that shares the longest run, and cut what is long."""
    prefix, before = cut(target["prefix"] or "", _MOST_OF_PREFIX, keep_end=True)
    reference, _ = cut(target["reference"], _MOST_CHARACTERS)
    runs = [(_shared_run(reference, cut(row["candidate"])[0]), row) for row in samples]
    run, sample = max(runs, key=lambda each: each[0][0][1] - each[0][0][0])
    return {
        "prefix_cut": before,
        "prefix_shown": prefix,
        "true": _pieces(target["reference"], *run[0]),
        "model": _pieces(sample["candidate"], *run[1]),
        "sample_index": sample["sample_index"],
        "n_samples": len(samples),
    }


def _shared_run(text: str, other: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Find where the longest run of words that both have stands in each, in characters."""
    words, others = ([*re.finditer(r"\S+", each)] for each in (text, other))
    matcher = SequenceMatcher(None, [w[0] for w in words], [w[0] for w in others], autojunk=False)
    found = matcher.find_longest_match()
    return _extent(words, found.a, found.size), _extent(others, found.b, found.size)


def _extent(words: list[re.Match[str]], first: int, size: int) -> tuple[int, int]:
    return (words[first].start(), words[first + size - 1].end()) if size else (0, 0)


def _pieces(text: str, start: int, stop: int) -> Pieces:
    pieces = [(text[:start], False), (text[start:stop], True), (text[stop:], False)]
    return [piece for piece in pieces if piece[0]]


def _at_points(text: str, points: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the text in stretches: each point's true words with what the model said there."""
    raw, end = text.encode(), 0
    first = {row["cut"]: row for row in reversed(points)}
    for at, row in sorted(first.items()):
        stop = at + len((row["text"] or "").encode())
        if at < end:
            continue
        true = raw[at:stop].decode()
        word = true.lstrip()
        yield {"text": raw[end:at].decode() + true.removesuffix(word)}
        said = " ".join(row["candidate"].split()[: len(word.split())])
        yield {"text": word, "said": said, "hit": bool(row.get("leading_words"))}
        end = stop
    yield {"text": raw[end:].decode()}


_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|<>~&$-])")


def as_markdown(contents: Contents) -> str:
    """Write conclusions as a list and each table of documents below it; all text is escaped."""
    lines = [f"* {_escaped(sentence)}" for sentence in contents.conclusions]
    for table in document_tables(contents, ()):
        columns = [column for column in table.columns if "curves.y" not in column.sources]
        lines += ["", f"## {_escaped(table.title)}", ""]
        lines.append(_line([_escaped(column.heading) for column in columns]))
        lines.append(_line(["---"] * len(columns)))
        for row in table.rows:
            cells = (Markup(column.write(row)).striptags() for column in columns)
            lines.append(_line([_escaped(cell) for cell in cells]))
    return "\n".join(lines) + "\n"


def as_csv(contents: Contents) -> str:
    """Write the roll-up as it is, or where there is none the scores of the texts.

    Text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    rows = contents.frame("rollup")
    if rows.is_empty():
        rows = contents.frame("scores")
    formula = cs.string().str.contains(r"^[=+\-@\t\r]")
    safe = pl.when(formula).then(pl.lit("'") + cs.string()).otherwise(cs.string())
    return rows.with_columns(safe.name.keep()).write_csv()


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", " ".join(plain(text).split()))
