"""Reference implementations of the kernels, written from their definitions for clarity alone."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import combinations
from typing import Any

from uniseg.derived import alphabetic
from uniseg.wordbreak import words as segments

from mia_batch.kernels import Group, WordRule, fields
from mia_batch.second import fold
from tests import reference_scores

SPLIT: Mapping[WordRule, Callable[[str], list[str]]] = {
    "whitespace": str.split,
    "space": lambda text: [word for word in text.split(" ") if word != ""],
    "rouge": lambda text: re.findall("[a-z0-9]+", text.lower()),
    "unicode": lambda text: [
        word for word in segments(text) if any(map(_is_alphanumeric, word))
    ],
    "script": lambda text: [word for run in text.split() for word in _in_run(run)],
    "folded": lambda text: [fold(word) for word in SPLIT["script"](text)],
}
QUICK_RULES: Sequence[WordRule] = ("whitespace", "space", "rouge")
"""Those whose references do for texts of any length."""
LENGTHS = range(2, 13)


_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u3005\u3007\u3041-\u312f\u31a0-\u31bf"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\ua4cf\ua980-\ua9ff\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff]+"
)


def _in_run(run: str) -> Iterator[str]:
    """Words of a run without white space, by scripts."""
    if _UNSPACED.search(run) is None:
        yield run
        return
    for stretch in re.split(f"({_UNSPACED.pattern})", run):
        if _UNSPACED.fullmatch(stretch):
            yield from SPLIT["unicode"](stretch)
        elif any(map(_is_alphanumeric, stretch)):
            yield stretch


def _is_alphanumeric(character: str) -> bool:
    return alphabetic(character) or unicodedata.category(character).startswith("N")


def features(
    candidate: str | None,
    reference: str | None,
    rule: WordRule,
    groups: Iterable[Group],
    min_words: int = 8,
) -> Mapping[str, int | None]:
    """Every field that ``pair_features`` gives for these groups, in its order."""
    names = list(fields(groups).to_schema())
    if candidate is None or reference is None:
        return dict.fromkeys(names)
    whole = of_candidate(candidate, reference, rule, min_words)
    cut = cut_text(candidate, len(SPLIT[rule](reference)), rule)
    matched = of_candidate(cut, reference, rule, min_words)
    every = whole | {f"{name}_matched": number for name, number in matched.items()}
    return {name: every[name] for name in names}


def compared(rows: Iterable[Mapping[str, int | None]]) -> list[dict[str, int | None]]:
    """Rows without what depends on Python's own zlib, where that is not the classic one."""
    return [
        {
            name: row[name]
            for name in row
            if reference_scores.CLASSIC_ZLIB or "zlib" not in name
        }
        for row in rows
    ]


def cut_text(text: str, n_words: int, rule: WordRule) -> str:
    if len(SPLIT[rule](text)) <= n_words:
        return text
    return next(
        text[:end]
        for end in range(len(text) + 1)
        if SPLIT[rule](text[:end]) == SPLIT[rule](text)[:n_words]
    )


def of_candidate(
    candidate: str, reference: str, rule: WordRule, min_words: int
) -> dict[str, int | None]:
    left, right = SPLIT[rule](candidate), SPLIT[rule](reference)
    n_words, word = longest_run(tuple(left), tuple(right))
    n_characters, character = longest_run(candidate, reference)
    return dict(
        {"words_candidate": len(left), "words_reference": len(right)}
        | {"zlib_candidate": reference_scores.compressed(left)}
        | {
            f"overlap_{n}": reference_scores.overlap(left, right, n)
            for n in reference_scores.SIZES
        }
        | {"lcs_words": longest_common_subsequence(left, right)}
        | {"distinct_candidate": len(set(left)), "distinct_reference": len(set(right))}
        | {
            "characters_candidate": len(candidate),
            "characters_reference": len(reference),
        }
        | {
            f"characters_overlap_{n}": reference_scores.overlap(candidate, reference, n)
            for n in (3, 5)
        }
        | {"leading_words": agreeing(left, right)}
        | {"leading_characters": agreeing(candidate, reference)}
        | {"longest_block_words": n_words, "longest_block_start": word}
        | {"longest_block_chars": n_characters, "longest_block_chars_start": character}
        | {"near_verbatim_words": near_verbatim(left, right, min_words)}
        | {f"covered_{length}": covered(left, right, length) for length in LENGTHS}
        | {
            f"covered_reference_{length}": covered(right, left, length)
            for length in LENGTHS
        }
    )


def agreeing(left: Sequence[str], right: Sequence[str]) -> int:
    """Length of the longest start that both have."""
    return next(n for n in range(len(left), -1, -1) if left[:n] == right[:n])


def spans(items: Sequence[str]) -> Iterator[tuple[int, int]]:
    return combinations(range(len(items) + 1), 2)


def longest_run(
    candidate: Sequence[str], reference: Sequence[str]
) -> tuple[int, int | None]:
    """Length of the longest run that both have, and its first start in the reference."""
    runs = {candidate[start:end] for start, end in spans(candidate)}
    shared = [span for span in spans(reference) if reference[slice(*span)] in runs]
    start, end = max(
        shared, key=lambda span: (span[1] - span[0], -span[0]), default=(0, 0)
    )
    return end - start, start if end > start else None


def near_verbatim(
    candidate: Sequence[str], reference: Sequence[str], min_words: int
) -> int:
    """Words of Python's own matching blocks, whose ties are ours too."""
    matcher = SequenceMatcher(None, reference, candidate, autojunk=False)
    sizes = [block.size for block in matcher.get_matching_blocks()]
    return sum(size for size in sizes if size >= min_words)


def covered(side: Sequence[str], other: Sequence[str], length: int) -> int:
    runs = {tuple(other[start:end]) for start, end in spans(other)}
    return len(
        {
            at
            for start, end in spans(side)
            if end - start >= length and tuple(side[start:end]) in runs
            for at in range(start, end)
        }
    )


def longest_common_subsequence(left: Sequence[str], right: Sequence[str]) -> int:
    """Lin (2004), section 3.1, by dynamic programming over the prefixes of both."""
    row = [0] * (len(right) + 1)
    for word in left:
        above, row = row, [0]
        for at, other in enumerate(right):
            row.append(above[at] + 1 if word == other else max(above[at + 1], row[at]))
    return row[-1]


def shared_runs(
    text: str | None, others: Sequence[str | None], n: int, rule: WordRule
) -> tuple[int | None, int | None, int | None]:
    """Places of runs of n words, those that others have, and who has the first such run."""
    if text is None:
        return None, None, None
    here, *held = ([*ngrams(SPLIT[rule](each or ""), n)] for each in (text, *others))
    holders = [
        next((at for at, other in enumerate(held) if run in other), None)
        for run in here
    ]
    shared = [holder for holder in holders if holder is not None]
    return len(holders), len(shared), next(iter(shared), None)


def ngrams(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    return (tuple(words[at : at + n]) for at in range(len(words) - n + 1))


def near_verbatim_passages(
    generation: str, book: str, rule: WordRule
) -> list[tuple[int, int, int]]:
    """Python's matching blocks, joined and kept in the two passes of arXiv:2601.02671.

    Each with its first word, the one behind its last, and how many of them are
    verbatim.
    """
    matcher = SequenceMatcher(
        None, SPLIT[rule](book), SPLIT[rule](generation), autojunk=False
    )
    parts = [(a, a + n, b, b + n, n) for a, b, n in matcher.get_matching_blocks() if n]
    for gap, misalignment, min_words in ((2, 1, 20), (10, 3, 100)):
        joined: list[tuple[int, int, int, int, int]] = []
        for part in parts:
            last = joined[-1] if joined else part
            gaps = part[0] - last[1], part[2] - last[3]
            near = max(gaps) <= gap and abs(gaps[0] - gaps[1]) <= misalignment
            if joined and near:
                joined[-1] = (last[0], part[1], last[2], part[3], last[4] + part[4])
            else:
                joined.append(part)
        parts = [part for part in joined if part[4] >= min_words]
    return [(part[0], part[1], part[4]) for part in parts]


def book_coverage(
    book: str,
    asked: Iterable[tuple[str | None, str | None]],
    rule: WordRule,
    k: int,
    m: int,
) -> dict[str, Any]:
    """Algorithm 1 of arXiv:2603.20957 over generations and what was asked, word by word.

    Passages have their first word, the one behind their last, and how many there are.
    """
    words = SPLIT[rule](book)
    covered: set[int] = set()
    spans: set[tuple[int, int]] = set()
    for generation, instruction in asked:
        runs = {*ngrams(SPLIT[rule](instruction or ""), m)}
        for start, end in longest_spans(words, SPLIT[rule](generation or ""), k):
            given = {
                at + n
                for at in range(start, end - m + 1)
                if tuple(words[at : at + m]) in runs
                for n in range(m)
            }
            left = [at for at in range(start, end) if at not in given]
            covered |= {
                at for piece in consecutive(left) if len(piece) >= k for at in piece
            }
            spans.add((start, end))
    blocks = consecutive(sorted(covered))
    long = long_spans(spans)
    return {
        "coverage": len(covered) / len(words) if words else None,
        "words_book": len(words),
        "covered_words": len(covered),
        "longest_block_words": max(map(len, blocks), default=0),
        "longest_span_words": max((end - start for start, end in spans), default=0),
        "n_long_spans": len(long),
        "blocks": [(block[0], block[-1] + 1, len(block)) for block in blocks],
        "long_spans": [(start, end, end - start) for start, end in long],
    }


def longest_spans(
    left: Sequence[str], right: Sequence[str], k: int
) -> Iterator[tuple[int, int]]:
    """Spans of the left that the right has too and that could be longer on neither side."""
    for at in range(len(left)):
        for other in range(len(right)):
            n_words = agreeing(left[at:], right[other:])
            begins = not (at and other and left[at - 1] == right[other - 1])
            if begins and n_words >= k:
                yield at, at + n_words


def consecutive(numbers: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def long_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ends of spans of more than 20 words, longest first, where none before overlaps them."""
    longest = {
        start: max(end for first, end in spans if first <= start)
        for span in spans
        for start in range(*span)
    }
    chosen: list[tuple[int, int]] = []
    for start in sorted(longest, key=lambda start: (start - longest[start], start)):
        end = longest[start]
        if end - start > 20 and all(end <= a or b <= start for a, b in chosen):
            chosen.append((start, end))
    return sorted(chosen)
