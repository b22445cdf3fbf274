"""Evidence: what a model was given, what follows in the text, and what the model wrote.

Long stretches come first, next to each other; what chance gives is folded away.
"""

from __future__ import annotations

import re
from collections import defaultdict
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from mia_batch.attacks.attack import PROBE
from mia_batch.inference.memory import (
    CONTINUED,
    VERBATIM_WORDS,
    common_targets,
    longest_stretches,
)
from mia_batch.report.answer import ANSWERS
from mia_batch.report.html import columns
from mia_batch.report.html.columns import Row, cut, share
from mia_batch.report.masking import Masking, Pieces
from mia_batch.report.sentences import conjugate, find_values, write_count
from mia_batch.schemas import Controls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.report.html.contents import Contents

MOST_WINDOWS = 20
"""Windows that are shown for each reason: the longest runs, common passages, highest scores."""
_LONGEST_TEXT = 1_500  # characters
_LONGEST_PREFIX = 800
_LONGEST_STRETCH = 12_000
_CONTINUED = [view for _, view in CONTINUED]
_ATTEMPTS = [PROBE[1], *_CONTINUED]
_HEADING = (
    r"^[ \t]*(?:CHAPTER|Chapter|CHAPITRE|Chapitre|CAP[IÍ]TULO|Cap[ií]tulo|KAPITEL|Kapitel|BOOK|Book"
    r"|PART|Part|LETTER|Letter)[ \t]+(?:[0-9]{1,3}|[IVXLCDM]{1,8})\b[^\n]{0,60}$"
)
_COLUMNS = ("target_id", "document_id", "member", "window_index", "n_windows", "start")
_TEXTS = ("target", "prefix", "reference")


def find_windows(contents: Contents, document: str | None = None) -> list[Row]:
    """Return the windows with the longest runs, common ones, and those of highest scores.

    Of all documents, or of one.

    Each has the columns of its target and ``score``; ``longest_words`` and
    ``sample_index`` where they are known; ``common``, where else its passage comes out;
    ``known``, where it stands in the known corpus; and texts as marked pieces.
    """
    longest = _find_longest(contents, document)
    common = columns.common_windows(contents)
    highest = _find_highest(contents, document)
    window_ids = dict.fromkeys([*longest, *[*common][:MOST_WINDOWS], *highest])
    if not window_ids:
        return []
    is_shown = pl.col("target_id").is_in(list(window_ids))
    rows = _read_targets(contents, is_shown)
    if document is not None:
        rows = rows.filter(document_id=document)
        is_shown = pl.col("target_id").is_in(rows["target_id"].implode())
    targets = {row["target_id"]: row for row in rows.iter_rows(named=True)}
    samples = _read_samples(contents, is_shown)
    outside = _read_outside_scores(contents)
    in_corpus = columns.known_windows(contents, is_shown)
    windows = []
    for key in window_ids:
        if key not in targets:
            continue
        target = targets[key]
        of_target = samples.get(key, [])
        window = target | {
            "longest_words": None,
            "common": common.get(key, []),
            "known": in_corpus.get(key),
            "attempts": sum(row["view"] in _ATTEMPTS for row in of_target),
        }
        window |= _count_as_high(target["score"], outside)
        window |= _mark_texts(target, of_target, longest.get(key))
        windows.append(window)
    return windows


def build_books(contents: Contents, windows: list[Row]) -> dict[str, Row]:
    """Build the documents of which more came out than chance gives, longest stretch first.

    Each has its ``title``, ``badge``, ``strip`` and ``chapters``, the ``stretch`` that
    extraction gave, if any, and the ``windows`` that lie outside it.
    """
    stretches = _build_stretches(contents)
    is_out = _read_verdicts(contents)
    strong = [window for window in windows if _is_evidence(window, is_out)]
    names = dict.fromkeys([*stretches, *map(_name_document, strong)])
    books = _group_by_document(contents, [*names], strong)
    for name, book in books.items():
        stretch = stretches.get(name)
        book["stretch"] = stretch
        if stretch:
            outside = [
                each for each in book["windows"] if not _is_inside(each, stretch)
            ]
            book["windows"] = outside
    ranked = sorted(books.items(), key=lambda item: -_count_longest(item[1]))
    return {name: _mask_book(book, contents.masking) for name, book in ranked}


def build_chance(contents: Contents, windows: list[Row]) -> Row | None:
    """Build what is folded: windows whose answers agree no longer than by chance.

    ``books`` as of `build_books`, and the ``title`` of the fold. None without such
    windows.
    """
    is_out = _read_verdicts(contents)
    has_answer = [each for each in windows if "true" in each or "points" in each]
    weak = [each for each in has_answer if not _is_evidence(each, is_out)]
    if not weak:
        return None
    names = dict.fromkeys(map(_name_document, weak))
    continued = [_count_quoted(window) for window in weak if "true" in window]
    books = _group_by_document(contents, [*names], weak).values()
    return {
        "books": [
            _mask_book(book | {"strip": None}, contents.masking) for book in books
        ],
        "title": _write_chance(contents, max(continued, default=None)),
    }


def _write_chance(contents: Contents, n_words: int | None) -> str:
    """Write how long the runs are that say nothing by themselves, beside the yardstick."""
    if n_words is None:
        return (
            "Windows of the highest scores, and the next words that the model said (no"
            " evidence by themselves)"
        )
    length = f"at most {n_words:,} {'word' if n_words == 1 else 'words'} in a row"
    compared = _find_longest_outside(contents)
    if compared is None:
        return f"The closest continuations ({length}: taken for chance)"
    if n_words <= compared:
        return f"The closest continuations ({length}, as comparison texts have: chance)"
    return (
        f"The closest continuations ({length}, comparison texts {compared:,}; under"
        f" {VERBATIM_WORDS}, no evidence by themselves)"
    )


def _find_longest_outside(contents: Contents) -> int | None:
    """Return the longest run of documents known to be outside; None where there is none."""
    outside = contents.read_rows("rollup", pl.col("level") == "outside")
    if outside.is_empty():
        return None
    lengths: list[int] = outside["longest_words"].drop_nulls().to_list()
    return max(lengths, default=None)


def write_yardstick(contents: Contents) -> str:
    """Write what stands for chance: the longest run of comparison texts, or a rule."""
    n = _find_longest_outside(contents)
    if n is not None:
        outside = contents.read_rows("rollup", pl.col("level") == "outside")
        noun = "document" if outside.height == 1 else "documents"
        return (
            f"The yardstick: of {outside.height:,} comparison {noun}, which the model"
            f" cannot know, at most {n:,} words in a row come out."
        )
    findings = contents.read_rows("findings")
    of_texts = {}
    if findings.height:
        of_texts = find_values(findings, "verbatim", subject="non_members")
    if of_texts.get("n_texts"):
        n_out = of_texts["n_verbatim"]
        return (
            f"The yardstick: of {write_count(of_texts['n_texts'], 'comparison text')},"
            f" which the model cannot know, {n_out:,.0f} {conjugate('come', n_out)} out"
            f" word for word; runs shorter than {VERBATIM_WORDS} words are taken for"
            " chance."
        )
    return (
        "The yardstick: nothing was compared, so runs shorter than"
        f" {VERBATIM_WORDS} words are taken for chance."
    )


def _mask_book(book: Row, masking: Masking) -> Row:
    """Write the texts of a document's evidence as far as they may be shown."""
    stretch = book["stretch"]
    return book | {
        "stretch": stretch and _mask_texts(stretch, masking),
        "windows": [_mask_texts(window, masking) for window in book["windows"]],
    }


def _mask_texts(row: Row, masking: Masking) -> Row:
    """Write the texts of a window or stretch as far as they may be shown."""
    masked: Row = {"n_marked": _count_quoted(row)}
    for name in ("quote", "prefix_shown"):
        if row.get(name):
            masked[name] = masking.write(row[name])
    for name in ("true", "model"):
        if row.get(name):
            masked[name] = masking.write_pieces(row[name])
    if "points" in row:
        masked |= _mask_points(row["points"], masking)
    return row | masked


def _mask_points(points: list[Row], masking: Masking) -> Row:
    """Write a text with the words said at its points; without the text, none of them."""
    pieces = [(point["text"], False) for point in points]
    text = "".join(piece for piece, _ in pieces)
    written = masking.write(text)
    if written != text:  # an identifier may lie across points
        return {"points": [{"text": written}]}
    said = [
        point | {"said": masking.write(point["said"])} if "said" in point else point
        for point in points
    ]
    return {"points": said}


def _name_document(window: Row) -> str:
    return str(window["document_id"] or window["target_id"])


def _count_quoted(window: Row) -> int:
    return len((window.get("quote") or "").split())


def _count_longest(book: Row) -> int:
    stretch = book["stretch"]
    of_windows = [
        each["longest_words"] or _count_quoted(each) for each in book["windows"]
    ]
    return max([stretch["n_words"] if stretch else 0, *of_windows])


def _read_verdicts(contents: Contents) -> dict[str, bool]:
    """Read of each document whether it comes out; none without a roll-up."""
    rows = contents.read_rows("rollup", pl.col("level") != "group")
    if rows.is_empty():
        return {}
    return dict(rows.select("key", pl.col("verdict") == "comes_out").iter_rows())


def _is_evidence(window: Row, is_out: dict[str, bool]) -> bool:
    """Return whether a window says more than chance: a long run, or one that is common."""
    if window["common"] or window["known"]:
        return True
    if window["longest_words"] is not None:
        return bool(window["longest_words"] >= VERBATIM_WORDS)
    # Runs that could be foreseen do not let a document come out
    may_count = is_out.get(_name_document(window), True)
    return may_count and _count_quoted(window) >= VERBATIM_WORDS


def _is_inside(window: Row, stretch: Row) -> bool:
    start = window["start"]
    if start is None or window["common"]:
        return False
    return bool(
        stretch["start"] <= start + len(window["prefix"] or "") < stretch["end"]
    )


def _build_stretches(contents: Contents) -> dict[str, Row]:
    """Build the longest stretch that extraction gave of each document, longest first."""
    needed = ("extraction", "extracted_documents")
    if not all(table in contents.tables for table in needed):
        return {}
    controls = contents.tables.get("controls", Controls.create_empty().lazy())
    is_common = pl.col("target_id").is_in(common_targets(controls).implode())
    extraction, extracted = (contents.tables[table] for table in needed)
    rows = longest_stretches(extraction.filter(~is_common), extracted)
    rows = rows.filter(pl.col("n_left") >= VERBATIM_WORDS)
    ranked = rows.sort("n_left", "document_id", descending=[True, False])
    figures = _read_figures(contents)
    chapters = _read_window_chapters(contents, ranked["target_id"])
    return {
        row["document_id"]: _build_stretch(row, figures.get(row["document_id"], {}))
        | {"chapter": chapters.get(row["target_id"])}
        for row in ranked.head(MOST_WINDOWS).iter_rows(named=True)
    }


def _read_window_chapters(contents: Contents, ids: pl.Series) -> dict[str, str]:
    """Read the chapters of windows, where a book lists any and texts may be shown."""
    is_shown = contents.masking.texts == "all"
    if not is_shown or not contents.has_columns("targets", "window_chapter"):
        return {}
    rows = contents.read_rows("targets", pl.col("target_id").is_in(ids.implode()))
    return dict(rows.select("target_id", "window_chapter").drop_nulls().iter_rows())


def _read_figures(contents: Contents) -> dict[str, Row]:
    rows = contents.read_rows("extracted_documents")
    return {row["document_id"]: row for row in rows.iter_rows(named=True)}


def _build_stretch(row: Row, figures: Row) -> Row:
    """Build a stretch side by side with what the model said, as far as it is shown."""
    stretch = {
        "id": row["target_id"],
        "n_words": row["n_left"],
        "start": row["start"],
        "end": row["end"],
        "words_before": row["words_before"],
        "stretch_words": row["n_words"],
        "n_verbatim": row["n_verbatim"],
        "n_rounds": row["n_rounds"],
        "drawn": bool(row["draw"]),
        "chance": _write_spans(figures),
        "true": None,
        "quote": row["passage"],
    }
    if row["text"] is None or row["said"] is None:
        return stretch
    text, n_cut = cut(row["text"], _LONGEST_STRETCH)
    said, n_said_cut = cut(row["said"].lstrip(), _LONGEST_STRETCH)
    true, model = _mark_shared_words(text, said)
    return stretch | {
        "true": true,
        "model": model,
        "true_cut": n_cut,
        "model_cut": n_said_cut,
    }


def _write_spans(figures: Row) -> str:
    """Write how much of a document came out in short spans, and of others by chance."""
    if figures.get("bmc_5") is None or figures.get("bmc_5_others") is None:
        return ""
    n = figures["n_others"]
    others = "another document" if n == 1 else f"{n:,} other documents"
    return (
        f"Spans of 5 words that the model said cover {share(figures['bmc_5'])} of this"
        f" document, and {share(figures['bmc_5_others'])} of {others}, which is chance."
    )


def _mark_shared_words(text: str, said: str) -> tuple[Pieces, Pieces]:
    """Mark the runs of words that two texts have in common, in their order."""
    words, said_words = ([*re.finditer(r"\S+", side)] for side in (text, said))
    matcher = SequenceMatcher(
        None,
        [each[0] for each in words],
        [each[0] for each in said_words],
        autojunk=False,
    )
    blocks = [block for block in matcher.get_matching_blocks() if block.size]
    return (
        _split_runs(
            text, [_compute_extent(words, each.a, each.size) for each in blocks]
        ),
        _split_runs(
            said, [_compute_extent(said_words, each.b, each.size) for each in blocks]
        ),
    )


def _split_runs(text: str, extents: list[tuple[int, int]]) -> Pieces:
    pieces: Pieces = []
    end = 0
    for start, stop in extents:
        pieces += [(text[end:start], False), (text[start:stop], True)]
        end = stop
    pieces.append((text[end:], False))
    return [piece for piece in pieces if piece[0]]


def _group_by_document(
    contents: Contents, names: list[str], windows: list[Row]
) -> dict[str, Row]:
    rows = contents.read_rows("rollup", pl.col("level") != "group")
    rollup = {row["key"]: row for row in rows.iter_rows(named=True)}
    strips = columns.strips(contents)
    chapters: dict[str, dict[float, str]] = {}
    if contents.masking.texts == "all":
        chapters = _find_chapters(contents, {*names} & strips.keys())
    books: dict[str, Row] = {}
    for name in names:
        row = rollup.get(name, {})
        badge = ""
        if row:
            badge = columns.badge(row | {"answer": ANSWERS[row["verdict"]]})
        books[name] = {
            "title": row.get("title") or name,
            "badge": badge,
            "strip": strips.get(name),
            "chapters": chapters.get(name, {}),
            "windows": [],
            "stretch": None,
        }
    for window in windows:
        books[_name_document(window)]["windows"].append(window)
    return books


def _find_chapters(
    contents: Contents, documents: set[str]
) -> dict[str, dict[float, str]]:
    """Return where chapters begin, in percent: as an EPUB lists them, else by headings."""
    if not documents:
        return {}
    chapters: dict[str, dict[float, str]] = defaultdict(dict)
    windows = contents.tables["targets"].filter(
        pl.col("document_id").is_in(list(documents)),
        pl.col("target").is_not_null(),
        role="target",
    )
    end_of_window = pl.col("start") + pl.col("target").str.len_chars()
    scale = pl.col("n_windows") / (pl.col("window_index") + 1).max()
    whole = end_of_window.max() * scale.max().fill_null(1.0)
    windows = windows.with_columns(end=whole.over("document_id"))
    if "window_chapter" in windows.collect_schema():
        chapter = pl.col("window_chapter")
        is_first = chapter.ne_missing(chapter.shift().over("document_id"))
        first_windows = windows.sort("start").filter(is_first)
        listed = (
            first_windows.drop_nulls("window_chapter")
            .select("document_id", "start", "window_chapter", "end")
            .collect(engine="streaming")
        )
        for name, start, title, end in listed.iter_rows():
            chapters[name][round(100 * start / end, 1)] = str(title)
        windows = windows.filter(~pl.col("document_id").is_in([*chapters]))
    has_heading = pl.col("target").str.contains(rf"(?m){_HEADING}")
    rows = windows.filter(has_heading).select("document_id", "start", "target", "end")
    ordered = rows.collect(engine="streaming").sort("start")
    for name, start, text, end in ordered.iter_rows():
        for heading in re.finditer(_HEADING, text, re.MULTILINE):
            place = round(100 * (start + heading.start()) / end, 1)
            chapters[name].setdefault(place, heading[0].strip())
    return chapters


def _read_outside_scores(contents: Contents) -> np.ndarray[Any, Any]:
    """Read the scores of all texts known to be outside the training data, in order."""
    if not contents.has_columns("scores", contents.primary, "member"):
        return np.empty(0)
    is_target = pl.col("role") == "target"
    is_non_member = pl.col("role") == "non_member"
    is_outside = is_target & (pl.col("member") == pl.lit(value=False))
    rows = contents.read_rows("scores", is_outside | is_non_member)
    return np.sort(rows[contents.primary].drop_nulls().to_numpy())


def _count_as_high(
    score: float | None, outside: np.ndarray[Any, Any]
) -> dict[str, int]:
    """Count the texts outside the training data that score as high as this one."""
    if score is None or not outside.size:
        return {}
    n_lower = int(outside.searchsorted(score))
    return {"as_high": outside.size - n_lower, "n_outside": outside.size}


def _find_longest(contents: Contents, document: str | None) -> dict[str, Row]:
    """Return the rows of documents and groups with the longest runs, by their window."""
    if not contents.has_columns("rollup", "longest_target_id"):
        return {}
    has_run = pl.col("longest_target_id").is_not_null()
    if document is not None:
        has_run &= pl.col("key") == document
    is_audited = pl.col("level") != "outside"
    rows = contents.read_rows("rollup", has_run, is_audited).sort(
        "longest_words", "longest_target_id", descending=True, nulls_last=True
    )
    by_window = rows.unique("longest_target_id", keep="first", maintain_order=True)
    return {
        row["longest_target_id"]: row
        for row in by_window.head(MOST_WINDOWS).iter_rows(named=True)
    }


def _find_highest(contents: Contents, document: str | None) -> list[str]:
    attack = contents.primary
    if not contents.has_columns("scores", attack):
        return []
    is_scored = pl.col(attack).is_not_null()
    scores = contents.tables["scores"].filter(is_scored, role="target")
    if document is not None:
        scores = scores.filter(document_id=document)
    highest = scores.top_k(MOST_WINDOWS, by=[attack, "target_id"])
    rows = highest.collect(engine="streaming")
    return rows.sort(attack, "target_id", descending=True)["target_id"].to_list()


def _read_targets(contents: Contents, ids: pl.Expr) -> pl.DataFrame:
    chapter = pl.col("^window_chapter$")
    targets = contents.read_rows("targets", ids).select(*_COLUMNS, *_TEXTS, chapter)
    if not contents.has_columns("scores", contents.primary):
        return targets.with_columns(score=pl.lit(None, pl.Float64))
    rows = contents.read_rows("scores", ids)
    scores = rows.select("target_id", score=contents.primary)
    return targets.join(scores, on="target_id", how="left")


def _read_samples(contents: Contents, ids: pl.Expr) -> dict[str, list[Row]]:
    """Read the samples of some windows, those at points of a text with where they stand."""
    if "samples" not in contents.tables:
        return {}
    rows = contents.read_rows("samples", ids, model="target")
    rows = rows.sort("view_index", "sample_index")
    key = ["target_id", "model", "view", "view_index"]
    if contents.has_columns("prompts", "cut"):
        prompts = contents.read_rows("prompts", ids).select(*key, "cut", "text")
        rows = rows.join(prompts, on=key, how="left", maintain_order="left")
    if contents.has_columns("features", "leading_words"):
        key = [*key, "sample_index"]
        features = contents.read_rows("features", ids).select(*key, "leading_words")
        rows = rows.join(features, on=key, how="left", maintain_order="left")
    windows = rows.partition_by("target_id", as_dict=True, maintain_order=True)
    return {str(window): samples.to_dicts() for (window,), samples in windows.items()}


def _mark_texts(
    target: Row,
    samples: list[Row],
    longest: Row | None,
) -> Row:
    """Mark what model and text share, in continuations or at the points asked about."""
    answered = [row for row in samples if row["candidate"]]
    continued = [row for row in answered if row["view"] in _CONTINUED]
    if continued and target["reference"]:
        index = longest["longest_sample_index"] if longest else None
        with_run = [row for row in continued if row["sample_index"] == index][:1]
        n_words = longest["longest_words"] if longest and with_run else None
        marked = _mark_shared_run(target, with_run or continued)
        return marked | {"longest_words": n_words}
    points = [row for row in answered if row.get("cut")]
    if points and target["target"]:
        return {"points": [*_split_at_points(target["target"], points)]}
    return {}


def _mark_shared_run(target: Row, samples: list[Row]) -> Row:
    """Choose the sample that shares the longest run, and cut what is long."""
    whole_prefix = target["prefix"] or ""
    prefix, n_left_out = cut(whole_prefix, _LONGEST_PREFIX, keep_end=True)
    reference, _ = cut(target["reference"], _LONGEST_TEXT)
    runs = [_find_shared_run(reference, cut(row["candidate"])[0]) for row in samples]
    lengths = [stop - start for (start, stop), _ in runs]
    best = lengths.index(max(lengths))
    in_reference, in_sample = runs[best]
    sample = samples[best]
    return {
        "prefix_cut": n_left_out,
        "prefix_shown": prefix,
        "true": _split_pieces(target["reference"], *in_reference),
        "model": _split_pieces(sample["candidate"], *in_sample),
        "sample_index": sample["sample_index"],
        "words_given": len(whole_prefix.split()),
        "quote": reference[slice(*in_reference)],
    }


def _find_shared_run(text: str, sample: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return where the longest run of words that both have stands in each, in characters."""
    words = [*re.finditer(r"\S+", text)]
    sample_words = [*re.finditer(r"\S+", sample)]
    matcher = SequenceMatcher(
        None,
        [word[0] for word in words],
        [word[0] for word in sample_words],
        autojunk=False,
    )
    run = matcher.find_longest_match()
    return (
        _compute_extent(words, run.a, run.size),
        _compute_extent(sample_words, run.b, run.size),
    )


def _compute_extent(
    words: list[re.Match[str]], first: int, size: int
) -> tuple[int, int]:
    if not size:
        return 0, 0
    return words[first].start(), words[first + size - 1].end()


def _split_pieces(text: str, start: int, stop: int) -> Pieces:
    pieces = [
        (text[:start], False),
        (text[start:stop], True),
        (text[stop:], False),
    ]
    return [piece for piece in pieces if piece[0]]


def _split_at_points(text: str, points: list[Row]) -> Iterator[Row]:
    """Split a text in stretches: each point's true words with what the model said there."""
    raw = text.encode()
    end = 0
    first_samples = {row["cut"]: row for row in reversed(points)}
    for start, row in sorted(first_samples.items()):
        if start < end:
            continue
        stop = start + len((row["text"] or "").encode())
        words = raw[start:stop].decode()
        word = words.lstrip()
        yield {"text": raw[end:start].decode() + words.removesuffix(word)}
        answer = row["candidate"].split()[: len(word.split())]
        yield {
            "text": word,
            "said": " ".join(answer),
            "hit": bool(row.get("leading_words")),
        }
        end = stop
    yield {"text": raw[end:].decode()}
