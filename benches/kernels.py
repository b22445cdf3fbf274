"""The kernels beside other implementations, on the same pairs.

All take turns; shown are medians over the rounds, and the least and the most, of CPU
time on one core and of wall time on two. Before a rival is timed its scores are held
against ours.

    python -m benches.kernels [--pairs N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl
from benches.pairs import DATA, Prose, make_pairs
from benches.results import append_results, commit, machine, versions
from benches.rivals import RIVALS, Rival
from rich.console import Console
from rich.table import Table

from mia_batch.kernels import GROUPS, RarityTable, pair_features, zlib_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mia_batch.kernels import Group

LENGTHS = (100, 300, 1_000, 3_000, 10_000, 30_000, 65_536)
LENGTH_BYTES = 1_000_000
"""Bytes in all candidates of one length."""
ROUNDS = 15
TWO_CORES_WANTED = 1.7
PACKAGES = ("polars", *(rival.package for rival in RIVALS if rival.package))

Row = dict[str, Any]


def take_turns(
    ways: Mapping[str, Callable[[], object]],
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Seconds of each way in each round, of CPU time if not told otherwise."""
    seconds = defaultdict(list)
    for _ in range(rounds):
        for name, way in ways.items():
            began = clock()
            way()
            seconds[name].append(clock() - began)
    return seconds


def rival_row(rival: Rival, pairs: pl.DataFrame) -> Row:
    """Time a rival and ours, and hold their scores together."""
    candidates, references = pairs["candidate"].to_list(), pairs["reference"].to_list()
    differing, most = rival.differences(pairs)
    seconds = take_turns(
        {
            "theirs": lambda: rival.score(candidates, references),
            "ours": lambda: rival.ours(pairs),
        },
        rival.rounds,
    )
    ratios = [one / other for one, other in zip(*seconds.values(), strict=True)]
    return {
        "against": rival.name,
        "us a pair": 1e6 * median(seconds["theirs"]) / pairs.height,
        "ours": 1e6 * median(seconds["ours"]) / pairs.height,
        "ratio": median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "wanted": rival.wanted,
        "scores": (
            f"{differing} differ, by at most {most:.1g}" if differing else "equal"
        ),
    }


def features(pairs: pl.DataFrame, *groups: Group) -> pl.DataFrame:
    return pairs.select(pair_features("candidate", "reference", groups=groups))


def group_rows(pairs: pl.DataFrame) -> list[Row]:
    """Time each group beside the counts of words, which every choice of groups has."""
    alone = [group for group in GROUPS if group != "matched"]
    choices: dict[str, Sequence[Group]] = {
        "words": [],
        **{group: [group] for group in alone},
    }
    choices |= {"all but matched": alone, "everything": GROUPS}
    seconds = take_turns(
        {name: partial(features, pairs, *groups) for name, groups in choices.items()}
    )
    costs = {name: 1e6 * median(each) / pairs.height for name, each in seconds.items()}
    bases = dict.fromkeys(alone, "words") | {"everything": "all but matched"}
    return [
        {
            "groups": name,
            "us a pair": cost,
            "more than": base,
            "by": cost - costs.get(base, cost),
        }
        for name, cost in costs.items()
        for base in [bases.get(name, "")]
    ]


def rarity_row(pairs: pl.DataFrame) -> Row:
    """Time weights by rarity beside the same overlap without."""
    groups = pairs.select("candidate", row=pl.int_range(pl.len()))
    table = RarityTable.count([groups], n_groups=pairs.height, words="whitespace")
    weigh = table.weigh("candidate", "reference", words="whitespace")
    seconds = take_turns(
        {
            "unweighted": partial(features, pairs, "unigrams", "ngrams"),
            "weighed": partial(pairs.select, weigh),
        }
    )
    ratios = [one / other for other, one in zip(*seconds.values(), strict=True)]
    costs = {name: 1e6 * median(each) / pairs.height for name, each in seconds.items()}
    return {
        "unigrams, ngrams: us a pair": costs["unweighted"],
        "rarity": costs["weighed"],
        "ratio": median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }


def length_rows(prose: Prose) -> list[Row]:
    """Time texts of one length, as they come and looped."""
    rows = []
    for looped in (False, True):
        source = make_pairs(prose, Random(0), 250, looped=looped)
        for n_bytes in LENGTHS:
            pairs = of_length(source, n_bytes, looped=looped)
            seconds = take_turns(
                {
                    "overlap, lcs": partial(
                        features, pairs, "unigrams", "ngrams", "lcs"
                    ),
                    "overlap, lcs, zlib": partial(
                        features, pairs, "unigrams", "ngrams", "lcs", "zlib"
                    ),
                    "everything": partial(features, pairs, *GROUPS),
                    "zlib_size": partial(pairs.select, zlib_size("candidate")),
                },
                rounds=5,
            )
            total = sum(len(text.encode()) for text in pairs["candidate"]) / 1e6
            speeds = {
                f"{name}, MB/s": total / median(each) for name, each in seconds.items()
            }
            rows.append(
                {"texts": "looped" if looped else "prose", "bytes": n_bytes} | speeds
            )
    return rows


def of_length(source: pl.DataFrame, n_bytes: int, *, looped: bool) -> pl.DataFrame:
    """Some megabyte of candidates of one length, those of one reference together."""
    texts = [text.encode() + b" " for text in source["candidate"]]
    whole = b"".join(texts)
    candidates = [
        text * (n_bytes // len(text) + 1) if looped else whole[at * n_bytes :]
        for at, text in zip(range(LENGTH_BYTES // n_bytes), cycle(texts), strict=False)
    ]
    references = source["reference"].sample(
        len(candidates), with_replacement=True, seed=0
    )
    return pl.DataFrame(
        {
            "candidate": [
                text[:n_bytes].decode(errors="ignore") for text in candidates
            ],
            "reference": references.sort(),
        }
    )


def core_row(pairs: pl.DataFrame) -> Row:
    """Time everything on one core and on two, in processes of their own that take turns."""
    taken: dict[str, list[list[float]]] = {"1": [], "2": []}
    with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
        pairs.write_ipc(file.name)
        command = [sys.executable, "-m", "benches.kernels", "--time", file.name]
        for _ in range(5):
            for cores, seconds in taken.items():
                environment = os.environ | {"RAYON_NUM_THREADS": cores}
                seconds.append(
                    json.loads(subprocess.check_output(command, env=environment))
                )
    (wall, cpu), (wall_of_two, cpu_of_two) = (
        zip(*seconds, strict=True) for seconds in taken.values()
    )
    ratios = [one / two for one, two in zip(wall, wall_of_two, strict=True)]
    return {
        "us a pair, one core": 1e6 * median(wall) / pairs.height,
        "two cores": 1e6 * median(wall_of_two) / pairs.height,
        "CPU time, times that of one": median(cpu_of_two) / median(cpu),
        "ratio": median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "wanted": TWO_CORES_WANTED,
    }


def time_everything(path: Path) -> list[float]:
    """Take seconds of wall and of CPU time, the least, on as many cores as Rayon is given."""
    pairs = pl.read_ipc(path)
    way = partial(features, pairs, *GROUPS)
    clocks = (time.perf_counter, time.process_time)
    return [
        min(take_turns({"everything": way}, 3, clock)["everything"]) for clock in clocks
    ]


def size_rows() -> list[Row]:
    """Time sizes beside stock zlib, which Rust does: its stream is used again for every text."""
    command = ["cargo", "bench", "--quiet", "--locked", "--package", "mia-kernels"]
    done = subprocess.run(
        [*command, "--", "--json"], check=True, stdout=subprocess.PIPE, text=True
    )
    found = [
        json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")
    ]
    return [
        {
            "texts": row["text"],
            "bytes": row["bytes"],
            "MB/s": 1e3 / row["ns_per_byte"],
            "times faster than zlib": row["ratio"],
        }
        for row in found
    ]


def rounded(row: Row) -> Row:
    """Keep four digits."""
    return {
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in row.items()
    }


def show(console: Console, title: str, rows: list[Row]) -> None:
    """Print rows of the same columns."""
    table = Table(title=title, title_justify="left")
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(shown, row.values()))
    console.print(table)


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.{0 if value >= 100 else 2}f}"
    return str(value)


def main() -> None:
    """Print every table and store them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--time", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.time:
        print(time_everything(given.time))
    elif DATA.is_dir():
        bench(given.pairs)
    else:
        print("skipped: no real text in ../shared/data")


def bench(n_pairs: int) -> None:
    os.environ["RAYON_NUM_THREADS"] = "1"  # read at the first call of a kernel
    prose = Prose()
    pairs, looped, many = (
        make_pairs(prose, Random(seed), n, looped=seed == 1)
        for seed, n in enumerate([n_pairs, n_pairs // 2, 4 * n_pairs])
    )
    found = versions(*PACKAGES) | {"python's zlib": zlib.ZLIB_RUNTIME_VERSION}
    console = Console(width=140)
    console.print(
        f"{machine()}; commit {commit()};", ", ".join(map(" ".join, found.items()))
    )
    tables: dict[str, Callable[[], list[Row]]] = {
        "One core": lambda: [rival_row(rival, pairs) for rival in RIVALS],
        "One core, looped texts": lambda: [
            rival_row(rival, looped) for rival in RIVALS
        ],
        "One core, each group": lambda: group_rows(pairs),
        "One core, weighed by rarity": lambda: [rarity_row(pairs)],
        "One core, by length": lambda: length_rows(prose),
        "Everything on two cores": lambda: [core_row(many)],
        "Size beside stock zlib": size_rows,
    }
    results = {}
    for title, table in tables.items():
        results[title] = [rounded(row) for row in table()]
        if results[title]:
            show(console, title, results[title])
    append_results("kernels", {"versions": found, "pairs": n_pairs} | results)


if __name__ == "__main__":
    main()
