"""Fine-tuned targets whose training is known: attacks with reference models that the run makes.

A base model is trained on books. LoRA adapters of it are tuned on half of the windows
of another book, for several numbers of epochs, and each is audited with preset ``spv``.
Reference models come from what the target says after first words of a third book
(``domain``) or of books in Spanish (``irrelevant``), from other windows of the private
book (``identical``), and from shadow models.

    python -m benches.finetuned [--keep FOLDER] [--epochs 4 8 16] [--shadows 16]
    python -m benches.finetuned generations --large --epochs 8

The first measures four things: a table as Table 1 of the SPV-MIA paper, by epochs; the
reference of generations beside one of identically distributed texts; LiRA with shadow
models, and whether its p-values are uniform on texts that were not seen; and TPR at 1 %
FPR of members beside that of non-members, which is what the released code of SPV-MIA
prints. The second, with a base of 4.5 million weights, asks how many generations are
best, and how often they are learnt.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
from benches.pairs import DATA
from benches.power import train_model
from benches.results import append_results, machine, versions

import mia_batch
from mia_batch.attacks import defaults
from mia_batch.extras.sets.demo import DemoSettings
from mia_batch.extras.tune.jobs import finetune
from mia_batch.recipes import Recipe
from mia_batch.settings import nested
from mia_batch.stats.intervals import auc_difference, auc_interval, roc_curve

PRIVATE, DOMAIN, IRRELEVANT = "great_expectations", "sherlock_holmes", "don_quijote"
WORDS = 64
N_TEXTS, N_PUBLIC, N_SHADOWED = 400, 400, 1000
SIZES = {
    "small": (6000, {"hidden": 128, "layers": 2, "seed": 5}),
    "large": (9000, {"hidden": 256, "layers": 4, "seed": 5}),
}
"""Windows that a base learns, and how large it is."""
GENERATIONS = (
    (500, 4),
    (1000, 4),
    (2000, 2),
    (2000, 4),
    (6000, 1),
    (6000, 4),
    (12000, 1),
)
"""How many generations a reference learns, and how often."""
RATE, RANK, PARAPHRASES, NEIGHBOURS = 2e-3, 16, 5, 10
COLUMNS = [
    *("loss_v1", "min_k_20_v1", "min_k_plus_plus_20_v1", "neighbour_difference_v1"),
    *("detect_gpt_v1", "reference_token_difference_v1", "candidate_difference_v1"),
    *(
        "self_prompt_difference_v1",
        "spv_semantic_v1",
        "spv_embedding_v1",
        "spv_neighbour_v1",
    ),
    *("spv_released_v1", "ez_mia_v1", "wbc_v1"),
]
SHADOWED = [
    name for name in defaults("spv", ("logprobs",)) if name.startswith(("lira", "rmia"))
]


def windows(book: str) -> list[str]:
    words = (DATA / "books" / f"{book}.txt").read_text("utf-8").split()
    return [
        " ".join(words[at : at + WORDS])
        for at in range(0, len(words) - WORDS + 1, WORDS)
    ]


def write_texts(folder: Path, n_base: int) -> None:
    """Deal the books out, once."""
    draw = Random(0)
    private = windows(PRIVATE)
    draw.shuffle(private)
    asked, identical = private[:N_SHADOWED], private[N_SHADOWED : N_SHADOWED + N_PUBLIC]
    coin = [True, False] * (N_SHADOWED // 2)
    draw.shuffle(coin)
    corpus = pl.DataFrame({"text": asked, "member": coin})
    corpus.write_parquet(folder / "thousand.parquet")
    halves = [corpus.filter(member=value).head(N_TEXTS // 2) for value in (True, False)]
    pl.concat(halves).sample(fraction=1, shuffle=True, seed=0).write_parquet(
        folder / "corpus.parquet"
    )
    public = {
        "domain": windows(DOMAIN),
        "irrelevant": windows(IRRELEVANT),
        "identical": identical,
    }
    for name, texts in public.items():
        draw.shuffle(texts)
        pl.DataFrame({"text": texts[:N_PUBLIC]}).write_parquet(
            folder / f"{name}.parquet"
        )
    others = [
        text
        for book in sorted(path.stem for path in (DATA / "books").glob("*.txt"))
        if book not in (PRIVATE, DOMAIN, IRRELEVANT, "du_cote_de_chez_swann")
        for text in windows(book)
    ]
    draw.shuffle(others)
    pl.DataFrame({"text": others[:n_base]}).write_parquet(folder / "base.parquet")


def texts_of(folder: Path) -> tuple[list[str], list[str]]:
    """What the base learns, and that with the public texts."""
    seen = pl.read_parquet(folder / "base.parquet")["text"].to_list()
    public = [
        pl.read_parquet(folder / f"{name}.parquet") for name in ("domain", "irrelevant")
    ]
    return seen, [*seen, *pl.concat(public)["text"]]


def train_masked(folder: Path) -> None:
    """Train a masked model that fills gaps on other books."""
    from transformers import BertConfig, BertForMaskedLM

    from mia_batch.extras.sets.demo import save, train, train_tokenizer

    seen, texts = texts_of(folder)
    settings = DemoSettings(seed=0, context=512)
    tokenizer = train_tokenizer(texts, settings.vocabulary)
    tokenizer.add_special_tokens(["<|mask|>"])
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=settings.context,
    )
    masked = BertForMaskedLM(config)
    mask = tokenizer.token_to_id("<|mask|>")
    train(
        masked, [tokenizer.encode(text).ids for text in seen[:4000]], settings, 1, mask
    )
    save(masked, tokenizer, folder / "masked")


def audited(
    folder: Path, name: str, data: str, recipe: Recipe, **settings: Any
) -> mia_batch.Run:
    """Tune a target on the members of a set, and audit it."""
    began = time.monotonic()
    made = finetune(
        base=str(folder / "base"),
        data=folder / f"{data}.parquet",
        out=folder / f"target-{name}",
        recipe=recipe,
    )
    run = mia_batch.audit(
        **nested(
            dict(
                input=str(folder / f"{data}.parquet"),
                model=str(folder / f"target-{name}"),
                reference_model=str(folder / "base"),
                masked_model=str(folder / "masked"),
                engine="transformers",
                preset="spv",
                tuning_rate=RATE,
                tuning_rank=RANK,
                paraphrases=PARAPHRASES,
                neighbours=NEIGHBOURS,
                report=False,
                **settings,
            )
        )
    )
    print(
        f"{run.folder.name}: {made.losses[-1]}, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return run


def measured(run: mia_batch.Run, **how: Any) -> list[dict[str, Any]]:
    """Rows of the table: an attack, its AUC with interval, and both TPR at 1 % FPR."""
    scores, rows = run["scores"], []
    names = [name for name in (*COLUMNS, *SHADOWED) if name in scores.columns]
    for name in names:
        some = scores.filter(pl.col(name).is_not_null())
        member, value = some["member"].to_numpy(), some[name].to_numpy()
        limits = auc_interval(value[member], value[~member])
        curve, reverse = roc_curve(member, value), roc_curve(~member, -value)
        row = {
            "attack": name,
            "auc": curve.area,
            "low": limits.low,
            "high": limits.high,
        }
        row |= {
            "tpr_1": curve.at_fpr(0.01).tpr,
            "tpr_1_non_members": reverse.at_fpr(0.01).tpr,
        }
        rows.append(row | how)
    return rows


def by_epochs(folder: Path, epochs: list[int]) -> list[dict[str, Any]]:
    """Table 1, for each number of epochs, and for early stopping."""
    rows = []
    recipes = {
        f"{n}": Recipe(epochs=n, learning_rate=RATE, rank=RANK, max_tokens=256)
        for n in epochs
    }
    recipes["early"] = Recipe(
        epochs=20, learning_rate=RATE, rank=RANK, max_tokens=256, held_out=0.1
    )
    for name, recipe in recipes.items():
        run = audited(
            folder,
            name,
            "corpus",
            recipe,
            out=str(folder / f"run-{name}"),
            prompts_from=str(folder / "domain.parquet"),
            candidate_from=str(folder / "domain.parquet"),
            generation_tokens=100,
        )
        rows += measured(run, epochs=name, prompts="domain")
    return rows


def with_references(
    folder: Path,
    epochs: str,
    prompts: str,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Audit a target beside references of its generations, and of texts, of one source."""
    named = "-".join(map(str, (epochs, prompts, *settings.values())))
    run = mia_batch.audit(
        **nested(
            dict(
                input=str(folder / "corpus.parquet"),
                model=str(folder / f"target-{epochs}"),
                reference_model=str(folder / "base"),
                out=str(folder / f"run-{named}"),
                engine="transformers",
                attacks=(
                    "loss_v1,reference_token_difference_v1,self_prompt_difference_v1,"
                    "candidate_difference_v1"
                ),
                prompts_from=str(folder / f"{prompts}.parquet"),
                candidate_from=str(folder / f"{prompts}.parquet"),
                generation_tokens=100,
                tuning_rate=RATE,
                tuning_rank=RANK,
                top_k=0,
                report=False,
                **settings,
            )
        )
    )
    return measured(run, epochs=epochs, prompts=prompts, **settings)


def by_generations(folder: Path, epochs: int) -> list[dict[str, Any]]:
    """References of more and fewer generations, learnt more or less often, beside each other."""
    recipe = Recipe(epochs=epochs, learning_rate=RATE, rank=RANK, max_tokens=256)
    target = folder / f"target-{epochs}"
    finetune(
        base=str(folder / "base"),
        data=folder / "corpus.parquet",
        out=target,
        recipe=recipe,
    )
    rows = []
    for n, times in GENERATIONS:
        learnt = {"generations": n, "tuning_epochs": times}
        rows += with_references(folder, str(epochs), "identical", **learnt)
    return rows


def shadowed(folder: Path, epochs: int, shadows: int) -> dict[str, Any]:
    """LiRA of 1,000 texts beside every attack with one reference, and its p-values."""
    recipe = Recipe(epochs=epochs, learning_rate=RATE, rank=RANK, max_tokens=256)
    single = [
        "loss_v1",
        "min_k_20_v1",
        "reference_token_difference_v1",
        "ez_mia_v1",
        "wbc_v1",
    ]
    single += ["candidate_difference_v1", "self_prompt_difference_v1"]
    run = audited(
        folder,
        "thousand",
        "thousand",
        recipe,
        out=str(folder / "run-thousand"),
        attacks=",".join([*single, *SHADOWED]),
        prompts_from=str(folder / "domain.parquet"),
        candidate_from=str(folder / "domain.parquet"),
        generation_tokens=100,
        shadows=shadows,
        top_k=0,
        tuning_epochs=epochs,
    )
    rows = measured(run, epochs=str(epochs), prompts="domain")
    scores = run["scores"]
    member = scores["member"].to_numpy()
    values = {row["attack"]: scores[row["attack"]].to_numpy() for row in rows}
    best = {
        kind: max(
            (row for row in rows if row["attack"] in of), key=lambda row: row["auc"]
        )
        for kind, of in (("single", single), ("shadows", SHADOWED))
    }
    one, other = (values[best[kind]["attack"]] for kind in ("shadows", "single"))
    gap = auc_difference(member, one, other)
    lead = {"value": gap.value} | ({"low": gap.interval.low} if gap.interval else {})
    return {
        "rows": rows,
        "best": {kind: row["attack"] for kind, row in best.items()},
        "lead_auc": lead,
        "uniform": {name: uniform(values[name][~member]) for name in SHADOWED},
    }


def uniform(values: np.ndarray[Any, Any], splits: int = 200) -> dict[str, float]:
    """Conformal p-values of non-members, half of which stand for the known ones.

    ``share`` at 0.05 and its distance from what is exact, in standard errors over the
    splits.
    """
    draw, shares = np.random.default_rng(0), []
    for _ in range(splits):
        order = draw.permutation(len(values))
        null, asked = values[order[: len(order) // 2]], values[order[len(order) // 2 :]]
        above = (null[None, :] >= asked[:, None]).sum(1)
        p = (1 + above) / (1 + len(null))
        shares.append(float((p <= 0.05).mean()))
    exact = int(0.05 * (1 + len(values) // 2)) / (1 + len(values) // 2)
    error = float(np.std(shares, ddof=1)) / splits**0.5
    return {"share": float(np.mean(shares)), "exact": exact, "standard_error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", default=["epochs", "source", "shadows"])
    parser.add_argument("--keep", type=Path, help="folder for texts, models and runs")
    parser.add_argument("--epochs", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument(
        "--large", action="store_true", help="a base of 4.5 million weights"
    )
    given = parser.parse_args()
    if not DATA.is_dir():
        print("skipped: no real text in ../shared/data")
        return
    print(machine())
    n_base, size = SIZES["large" if given.large else "small"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "corpus.parquet").exists():
            write_texts(folder, n_base)
        if not (folder / "base").exists():
            seen, texts = texts_of(folder)
            train_model(folder / "base", texts, seen, size)
        if "generations" not in given.what and not (folder / "masked").exists():
            train_masked(folder)
        figures: dict[str, Any] = {}
        middle = given.epochs[len(given.epochs) // 2]
        if "epochs" in given.what:
            figures["epochs"] = by_epochs(folder, given.epochs)
            show(figures["epochs"])
        if "source" in given.what:
            figures["source"] = [
                row
                for prompts in ("irrelevant", "identical")
                for row in with_references(folder, str(middle), prompts)
            ]
            show(figures["source"])
        if "generations" in given.what:
            figures["generations"] = by_generations(folder, middle)
            print(pl.DataFrame(figures["generations"]))
        if "shadows" in given.what:
            figures["shadows"] = shadowed(folder, given.epochs[0], given.shadows)
            show(figures["shadows"]["rows"])
            print(
                {
                    name: each
                    for name, each in figures["shadows"].items()
                    if name != "rows"
                }
            )
    append_results(
        "finetuned", figures | {"versions": versions("mia-batch", "peft", "torch")}
    )


def show(rows: list[dict[str, Any]]) -> None:
    table = pl.DataFrame(rows, infer_schema_length=None)
    by = pl.format("{} {}", "epochs", "prompts")
    with pl.Config(tbl_rows=60, tbl_cols=20, float_precision=3):
        print(table.with_columns(by=by).pivot("by", index="attack", values="auc"))
        print(table.with_columns(by=by).pivot("by", index="attack", values="tpr_1"))


if __name__ == "__main__":
    main()
