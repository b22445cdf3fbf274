"""Texts that go on by themselves can be foreseen; what people wrote cannot."""

from itertools import product
from pathlib import Path
from random import Random

import polars as pl
import pytest

from mia_batch import corpus
from mia_batch.inference.memory import count_run_words

CLASSICS = Path(corpus.__file__).with_name("yardstick.jsonl")
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
]
UNITS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ROMAN = [
    f"{ten}{unit}"
    for ten, unit in product(
        ["X", "XX", "XXX"], ["I", "II", "III", "IV", "V", "VI", "VII"]
    )
]
NAMES = Random(0).sample(
    ["".join(letters) for letters in product("bdfgk", "aeiou", "lmnrst")], 60
)
REFRAIN = "row brothers row, the stream runs fast, and the daylight is nearly past;"
SELF_CONTINUING = {
    "numbers": " ".join(str(n) for n in range(1, 100)),
    "downwards by seven": " ".join(str(n) for n in range(1000, 0, -7)),
    "squares": " ".join(str(n * n) for n in range(1, 100)),
    "decimals": " ".join(f"{n / 10:.1f}" for n in range(5, 120)),
    "hexadecimal": " ".join(f"{n:04x}" for n in range(240, 340)),
    "primes": " ".join(
        str(n) for n in range(2, 600) if all(n % k for k in range(2, n))
    ),
    "powers": " ".join(str(2**n) for n in range(59)),
    "number words": " ".join(f"{ten}-{unit}" for ten, unit in product(TENS, UNITS)),
    "hundreds": " ".join(
        f"two hundred and {ten}-{unit}," for ten, unit in product(TENS, UNITS)
    ),
    "unknown language": " ".join(
        f"{unit}und{ten}" for ten, unit in product(NAMES[9:16], NAMES[:9])
    ),
    "calendar": ", ".join(
        f"{month} {day}" for month, day in product(MONTHS, range(1, 29))
    ),
    "weekdays": " ".join(f"{DAYS[n % 7]}, the {n % 30 + 1}th;" for n in range(90)),
    "clock": " ".join(f"{n // 4:02}:{n % 4 * 15:02}" for n in range(20, 96)),
    "timetable": "\n".join(
        f"{n // 60}:{n % 60:02} Oakley Ashford Dover" for n in range(300, 900, 20)
    ),
    "multiplication": " ".join(
        f"{a} times {b} is {a * b}." for a, b in product((2, 3, 4), range(1, 13))
    ),
    "rows of numbers": "\n".join(f"{a} {a * a} {a**3}" for a in range(1, 40)),
    "letters": " ".join(
        f"({letter}) of part ({letter})" for letter in "abcdefghijklmnopqrstuvwxyz"
    ),
    "roman": " ".join(f"Chapter {number}." for number in ROMAN * 2),
    "list of duties": " ".join(
        f"{n}. The tenant of room {n} shall keep no dogs." for n in range(1, 30)
    ),
    "code": "\n".join(f"    case {n}: return names[{n}];" for n in range(1, 40)),
    "getters": "\n".join(
        f"def get_{n}(self):\n    return self._{n}" for n in NAMES[:40]
    ),
    "conjugation": " ".join(f"I {n}, you {n}, we {n}, they {n};" for n in NAMES[:20]),
    "refrain": " ".join([REFRAIN] * 8),
    "litany": " ".join(
        f"Saint {name}, pray for us and have mercy on us." for name in NAMES[:20]
    ),
}


def count_words_of(prefix, run):
    """Words of a run that count, and those that could be foreseen, after a prefix."""
    n_words = pl.lit(len(run.split()), pl.UInt32)
    counted_words = count_run_words(pl.lit(prefix), pl.lit(run), n_words, "whitespace")
    return pl.select(counted_words).item()


def n_left(text, n_prefix=32, n_words=64):
    """Words that count of those after the first ``n_prefix``, all of which came out."""
    words = text.split(" ")
    prefix, run = " ".join(words[:n_prefix]), " ".join(words[n_prefix:][:n_words])
    return count_words_of(prefix, run)["n_left"]


@pytest.mark.parametrize("kind", SELF_CONTINUING)
def test_nothing_counts_of_a_text_that_anyone_could_go_on_with(kind):
    assert n_left(SELF_CONTINUING[kind]) <= 7


REPEATED = ["King James Bible, passage 9"]  # "a time to ..."


def test_every_word_counts_of_what_models_know_by_heart_but_what_it_repeats():
    """Genesis, the preamble, first pages of novels; and passages from the middle of books."""
    texts = pl.read_ndjson(CLASSICS).select("document_id", "text").rows()
    repeated_names = []
    for name, text in texts:
        n_words = len(" ".join(text.split(" ")[24:64]).split())
        if n_left(text, 24, 40) < n_words:
            repeated_names.append(name)
    assert (len(texts), repeated_names) == (115, REPEATED)


def test_tables_that_nobody_can_foresee_count():
    dice = Random(0)
    numbers = " ".join(str(dice.randrange(10, 100)) for _ in range(96))
    assert n_left(numbers) == 64
    index = " ".join(f"{name}, {dice.randrange(9, 400)};" for name in NAMES)
    assert n_left(index) == 64


def test_a_list_within_prose_is_cut_out_of_it():
    first = (
        "The lamps were lit late because nobody could find a ladder long enough for our"
        " street"
    )
    days = " ".join(
        f"{month} {day}" for month, day in product(MONTHS[:2], range(1, 15))
    )
    reference = f"{days} {first}"
    counted_words = count_words_of(days.replace("January", "March"), reference)
    assert counted_words["n_left"] == 16  # the 16 words of the sentence
    assert counted_words["n_foreseen"] > 50


def test_a_run_without_text_keeps_its_words():
    assert count_words_of("", "") == {"n_left": 0, "n_foreseen": 0}
    missing = pl.lit(None, pl.String)
    counted_words = count_run_words(missing, missing, pl.lit(30, pl.UInt32), "folded")
    assert pl.select(counted_words).item() == {"n_left": 30, "n_foreseen": 0}
