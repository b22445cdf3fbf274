"""What all attacks show together: the learned combination, and dataset inference; CoDeC and others.

A small model is trained on windows of books, half of them by lot never seen, the others
two or four times. It is audited once by all attacks on log-probabilities. Then texts
are drawn from these, many times: as teachers of the combination, and as sets that were
seen, in part or not at all. ``usage`` (DUCI) and ``agreement`` (PRISM) have made-up
scores.

    python -m benches.sets [simulations] [codec] [usage] [agreement] [--keep FOLDER]
    [--runs N]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from benches.pairs import DATA
from benches.power import FOREIGN, train_model
from benches.results import append_results, versions

import mia_batch
from mia_batch.attacks.attack import CODEC
from mia_batch.inference.comparison import collection_test
from mia_batch.inference.estimates import (
    Flagged,
    contamination_rate,
    null_threshold,
    usage_share,
)
from mia_batch.inference.findings import DecisionRule
from mia_batch.inference.paired import agreement
from mia_batch.inference.sets import combine, infer_dataset
from mia_batch.schemas import Role
from mia_batch.settings import nested
from mia_batch.stats.intervals import (
    auc_difference,
    clopper_pearson,
    roc_auc,
    roc_curve,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMES = {0: 800, 2: 400, 4: 400}  # windows seen so often
OTHERS, WORDS = 3000, 64
SHOTS = 3  # windows before each text, where CoDeC asks
PACKED, PASSES = 4, 3  # windows of a row of a model that learnt texts behind others
TEACHERS = (50, 100, 200)  # of each class
SIZES = (40, 80, 160)  # texts of a set
ALONE = "min_k_plus_plus_20_v1"  # the attack that such runs rest on by default
OF_TWO_MODELS = ("reference_", "ez_mia", "wbc")

Figure = dict[str, Any]


def write_corpus(folder: Path) -> tuple[list[str], list[str]]:
    """Cut books into windows and decide by lot how often each is seen; return what is."""
    draw, texts = Random(5), []
    for book in sorted((DATA / "books").glob("*.txt")):
        if book.stem not in FOREIGN:
            words = book.read_text("utf-8").split()
            starts = range(0, len(words) - WORDS + 1, WORDS)
            texts += [" ".join(words[start : start + WORDS]) for start in starts]
    draw.shuffle(texts)
    times = [rung for rung, n in TIMES.items() for _ in range(n)]
    draw.shuffle(times)
    asked, others = texts[: len(times)], texts[len(times) : len(times) + OTHERS]
    # unseen
    pl.DataFrame({"text": texts[-SHOTS:]}).write_parquet(folder / "shots.parquet")
    corpus = pl.DataFrame({"text": asked, "times": times})
    corpus = corpus.with_columns(member=pl.col("times") > 0)
    corpus.write_parquet(folder / "corpus.parquet")
    often = [text for text, n in zip(asked, times, strict=True) for _ in range(n)]
    return often, others


def train(folder: Path) -> None:
    """Train a model, and a smaller one that saw no asked window."""
    often, others = write_corpus(folder)
    texts = [*pl.read_parquet(folder / "corpus.parquet")["text"], *others]
    if not (folder / "reference").exists():
        train_model(
            folder / "model", texts, [*often, *others], {"hidden": 128, "layers": 2}
        )
        train_model(folder / "reference", texts, others, {"hidden": 64, "layers": 1})


def audit(folder: Path) -> pl.DataFrame:
    """Score all windows by all attacks on log-probabilities."""
    run: mia_batch.Run = mia_batch.audit(
        **nested(
            {
                "input": str(folder / "corpus.parquet"),
                "model": str(folder / "model"),
                "reference_model": str(folder / "reference"),
                "out": str(folder / "run"),
                "evidence": "logprobs",
                "engine": "transformers",
            }
        )
    )
    return pl.DataFrame(run["scores"])


def packed(folder: Path) -> None:
    """Train a model on the same windows, some at a time, so that texts stand behind others."""
    often, others = write_corpus(folder)
    if not (folder / "packed").exists():
        draw, rows, seen = Random(6), list[str](), [*often, *others]
        for _ in range(PASSES):
            draw.shuffle(seen)
            rows += [
                "\n\n".join(seen[at : at + PACKED])
                for at in range(0, len(seen), PACKED)
            ]
        texts = [*pl.read_parquet(folder / "corpus.parquet")["text"], *others]
        train_model(folder / "packed", texts, rows, {"hidden": 128, "layers": 2})


def codec(folder: Path) -> Iterator[Figure]:
    """The share of windows that become less likely after others, by how often they were seen."""
    packed(folder)
    for model, passes in (("model", 1), ("packed", PASSES)):
        run = mia_batch.audit(
            **nested(
                {
                    "input": str(folder / "corpus.parquet"),
                    "model": str(folder / model),
                    "nonmember_shots": str(folder / "shots.parquet"),
                    "out": str(folder / f"run-codec-{model}"),
                    "attacks": f"{CODEC},recall_prefix_v1,loss_v1",
                    "engine": "transformers",
                }
            )
        )
        label = run["scores"]["member"].to_numpy()
        for times in TIMES:
            own = run["scores"].filter(times=times)[CODEC].drop_nulls()
            limits = clopper_pearson(int(own.sum()), own.len())
            share = {"share": own.mean(), "low": limits.low, "high": limits.high}
            yield {
                "case": "CoDeC",
                "model": model,
                "seen": passes * times,
                "texts": own.len(),
            } | share
        for name in (CODEC, "recall_prefix_v1", "loss_v1"):
            auc = roc_auc(label, run["scores"][name].to_numpy())
            yield {"case": name, "model": model, "auc": auc}


def drawn(
    rng: np.random.Generator, scores: pl.DataFrame, **roles: tuple[Any, int]
) -> pl.DataFrame:
    """Draw texts of some numbers of times seen for each role, none of them twice."""
    order, parts = scores[rng.permutation(scores.height).tolist()], list[pl.DataFrame]()
    for role, (times, n) in roles.items():
        part = order.filter(pl.col("times").is_in(times)).head(n)
        order = order.join(part, on="target_id", how="anti", maintain_order="left")
        name = role.partition("__")[0]
        known = pl.lit(None, pl.Boolean) if name == "target" else pl.col("member")
        parts.append(
            part.with_columns(role=pl.lit(name, Role), truth="member", member=known)
        )
    return pl.concat(parts)


def combinations(
    rng: np.random.Generator,
    scores: pl.DataFrame,
    sets: dict[str, list[str]],
    runs: int,
) -> Iterator[Figure]:
    """What the combination finds of 400 members and 400 others, beside the best of its teachers."""
    for what, attacks in sets.items():
        for n in TEACHERS:
            found: list[list[float]] = []
            for _ in range(runs):
                frame = drawn(
                    rng,
                    scores,
                    calibration__members=((2, 4), n),
                    calibration__others=((0,), n),
                    target__members=((2, 4), 400),
                    target__others=((0,), 400),
                )
                found.append(_compared(frame, attacks))
            mean = np.mean(found, axis=0)
            names = ("auc", "auc_best", "tpr_1", "tpr_1_best", "low", "high")
            figures = {
                name: round(float(each), 4)
                for name, each in zip(names, mean, strict=True)
            }
            yield {"case": f"combination, {what}", "teachers": n, **figures}


def _compared(frame: pl.DataFrame, attacks: list[str]) -> list[float]:
    made = combine(frame.lazy(), attacks, seed=0)
    is_teacher = (frame["role"] == "calibration").to_numpy()
    label = frame["truth"].to_numpy()
    values = frame.select(attacks).fill_null(strategy="min").to_numpy()
    areas = [roc_auc(label[is_teacher], each[is_teacher]) for each in values.T]
    asked = (
        label[~is_teacher],
        made[~is_teacher],
        values[~is_teacher, int(np.argmax(areas))],
    )
    difference = auc_difference(*asked)
    tpr = [roc_curve(asked[0], each).at_fpr(0.01).tpr for each in asked[1:]]
    limits = difference.interval
    return [
        *(roc_auc(asked[0], each) for each in asked[1:]),
        *tpr,
        *((limits.low, limits.high) if limits else (np.nan, np.nan)),
    ]


def dataset_inference(
    rng: np.random.Generator,
    scores: pl.DataFrame,
    sets: dict[str, list[str]],
    runs: int,
) -> Iterator[Figure]:
    """How often a set has p <= 0.05: never seen, a fifth of it seen twice, all of it."""
    for what, attacks in sets.items():
        for n in SIZES:
            for share in (0.0, 0.2, 1.0):
                seen = round(share * n)
                roles = {"target__seen": ((2,), seen), "target__not": ((0,), n - seen)}
                p = []
                for seed in range(runs):
                    frame = drawn(rng, scores, **roles, non_member=((0,), n))
                    plan = DecisionRule(
                        primary=ALONE, level="collection", null_set="", seed=seed
                    )
                    made = infer_dataset(frame.lazy(), attacks, plan, separable=False)
                    one = frame[ALONE].to_numpy()
                    if made.test is not None and made.paper_p_value is not None:
                        alone = collection_test(one[:n], one[n:], seed).p_value
                        p.append([made.test.p_value, made.paper_p_value, alone])
                rates = (np.array(p) <= 0.05).mean(axis=0).round(4).tolist()
                rate = dict(zip(("rate", "paper", "one_attack"), rates, strict=True))
                yield {"case": what, "texts": n, "share": share, "sets": len(p), **rate}


def simulated(folder: Path, runs: int) -> Iterator[Figure]:
    """Draw sets and teachers from one audit, many times."""
    scores, rng = audit(folder), np.random.default_rng(5)
    names = [name for name in scores.columns if name.endswith("_v1")]
    names = [name for name in names if scores[name].count() > scores.height // 2]
    sets = {
        "attacks on both models": names,
        "attacks on one model": [
            name for name in names if not name.startswith(OF_TWO_MODELS)
        ],
    }
    yield from dataset_inference(rng, scores, sets, runs)
    yield from combinations(rng, scores, sets, runs // 20)


def usage(runs: int) -> Iterator[Figure]:
    """Estimate how many of 200 texts are members, 30 % by lot, whose scores are higher by 1 or 2.

    With DUCI's threshold as published and here, and with that of an FPR of 5 %.
    """
    rng = np.random.default_rng(0)
    for effect in (1.0, 2.0):
        for n in (25, 50, 100, 200):
            found: dict[str, list[tuple[float, bool]]] = {
                "paper": [],
                "here": [],
                "fpr": [],
            }
            for run in range(runs):
                member = rng.random(200) < 0.3
                sets = [
                    rng.normal(mean)
                    for mean in (effect * member, np.zeros(n), [effect] * n)
                ]
                tried = np.unique(np.concatenate(sets[1:]))
                below = [
                    np.sort(each).searchsorted(tried, "right") / n for each in sets[1:]
                ]
                at = {"paper": tried[np.argmax(below[0] - below[1])]}
                at["fpr"] = null_threshold(sets[1], 0.05)[1]
                made = {"here": usage_share(*sets, seed=run, blind_warns=False)}
                for name, threshold in at.items():
                    flagged = (
                        Flagged(int((each > threshold).sum()), each.size)
                        for each in sets
                    )
                    made[name] = contamination_rate(*flagged, blind_warns=False)
                for name, each in made.items():
                    if each.value is not None:
                        inside = each.low <= member.mean() <= each.high
                        found[name].append((abs(each.value - member.mean()), inside))
            for name, rows in found.items():
                error, covers = np.mean(rows, axis=0).round(3).tolist()
                case = {"case": f"usage, {name}", "effect": effect, "calibration": n}
                yield case | {"estimates": len(rows), "error": error, "covers": covers}


def agreement_shares(runs: int) -> Iterator[Figure]:
    """Count how often sets of 100 texts are certified at 0.05 as never learnt.

    Scores are difficulty, memory and noise; memory of the two models that learnt is
    alike or not.
    """
    rng = np.random.default_rng(2)
    for case in (
        "never learnt",
        "learnt, alike",
        "learnt, half alike",
        "learnt, not alike",
    ):
        share = {"never learnt": 0, "learnt, alike": 1, "learnt, half alike": 0.5}.get(
            case, 0
        )
        certified = 0
        for _ in range(runs):
            hard, memory, other = rng.normal(size=(3, 100))
            kept = share**0.5 * memory + (1 - share) ** 0.5 * other
            kept = 0 if case == "never learnt" else kept
            scores = np.stack([hard + kept, hard, hard + memory], axis=1)
            scores += 0.3 * rng.normal(size=scores.shape)
            p_value = agreement(scores, np.arange(100))[2]
            certified += p_value is not None and p_value <= 0.05
        yield {
            "case": f"agreement, {case}",
            "sets": runs,
            "certified": certified / runs,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["simulations", "codec"])
    parser.add_argument(
        "--keep", type=Path, help="folder of models and runs, used again"
    )
    parser.add_argument("--runs", type=int, default=200, help="sets drawn of each kind")
    options = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        if {"simulations", "codec"} & {*options.what}:
            train(folder)
        if "simulations" in options.what:
            figures += simulated(folder, options.runs)
        if "codec" in options.what:
            figures += codec(folder)
        if "usage" in options.what:
            figures += usage(options.runs)
        if "agreement" in options.what:
            figures += agreement_shares(options.runs)
    for figure in figures:
        print(figure)
    append_results(
        "sets", {"runs": options.runs, "figures": figures} | versions("scikit-learn")
    )


if __name__ == "__main__":
    main()
