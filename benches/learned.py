"""Does a classifier over per-token figures, learnt on some tuned models, find members of others?

LT-MIA (Ilic et al. 2026, arXiv:2604.03199) says so. Small bases of three families are
tuned by LoRA on half of some texts, drawn by coin; no text is dealt to two families or
learnt by a base. Classifiers learn from two families and are asked about the third, and
about manuals-47m: tuned on half of the windows that it never saw, and, without a base,
as it is, by how often it saw a window. They are compared with the best single attack.
``fit`` reads those runs that there are, and its figures name them.

    python -m benches.learned [families] [manuals] [fit] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from benches.learned_fit import (
    CLASSIFIERS,
    Asked,
    Floats,
    learn,
    measure_lead,
    read_asked,
    standardise,
)
from benches.manuals import MODEL
from benches.manuals import texts as choose_texts
from benches.pairs import DATA
from benches.results import append_results
from numpy.typing import NDArray

import mia_batch
from mia_batch.extras.sets.demo import (
    DemoSettings,
    build_passages,
    save,
    train,
    train_tokenizer,
)
from mia_batch.extras.tune.jobs import finetune
from mia_batch.recipes import Recipe
from mia_batch.settings import nested
from mia_batch.stats.intervals import roc_curve

WORDS = 64
N_TEXTS = 300
BOOKS = ("great_expectations", "sherlock_holmes", "walden")
BASE_BOOKS = ("moby_dick", "republic", "dracula", "jane_eyre", "frankenstein")
N_BASE = {"prose": 4000, "docs": 1900}
RUN = 8
"""Words in a row that an asked text shares with none of the texts of manuals-47m."""
EPOCHS = (2, 4, 8)
FAMILIES = ("llama", "gpt2", "neox")
DOMAINS = ("prose", "docs")
HIDDEN, LAYERS = 128, 2
RATE, RANK = 2e-3, 16
MARKS = {"bos_token_id": "<|begin_of_text|>", "eos_token_id": "<|end_of_text|>"}
ATTACKS = (
    *("loss_v1", "loss_zlib_v1", "min_k_20_v1", "min_k_plus_plus_20_v1"),
    *("gap_k_20_v1", "log_rank_v1", "entropy_v1"),
)
BESIDE_BASE = ("reference_token_difference_v1", "ez_mia_v1", "wbc_v1")
MANUALS = tuple(
    Recipe(epochs=epochs, learning_rate=rate, rank=RANK, batch_size=4, max_tokens=256)
    for epochs, rate in ((1, 3e-4), (2, 1e-3))
)
"""How manuals-47m is tuned: little, and until nearly all members are known."""
COPIES = {0: 100, 4: 40, 8: 40, 16: 40}
"""How many windows of each number of copies manuals-47m is asked about."""
N_SHUFFLES = 20


class Pool(NamedTuple):
    """Texts of one kind that a family's base, and no other model, is tuned on."""

    family: str
    domain: str

    @property
    def name(self) -> str:
        return "-".join(self)


POOLS = tuple(Pool(family, domain) for family in FAMILIES for domain in DOMAINS)


def cut_book(book: str) -> list[str]:
    words = (DATA / "books" / f"{book}.txt").read_text("utf-8").split()
    return [
        " ".join(words[start : start + WORDS])
        for start in range(0, len(words) - WORDS + 1, WORDS)
    ]


def list_runs(text: str) -> set[str]:
    words = text.split()
    return {" ".join(words[i : i + RUN]) for i in range(len(words) - RUN + 1)}


def read_windows() -> pl.DataFrame:
    lines = (MODEL / "windows.jsonl").read_text("utf-8").splitlines()
    return pl.DataFrame([json.loads(line) for line in lines])


def flip_coins(texts: Sequence[str], draw: Random) -> pl.DataFrame:
    coins = [True, False] * (len(texts) // 2)
    draw.shuffle(coins)
    return pl.DataFrame({"text": texts, "member": coins})


def write_texts(folder: Path) -> None:
    """Deal texts out: each to one base, none to be learnt by a base or known to manuals-47m."""
    draw = Random(0)
    elsewhere: set[str] = set()
    for text in read_windows()["text"]:
        elsewhere |= list_runs(text)
    prose = [text for book in BOOKS for text in cut_book(book)]
    prose = [text for text in prose if elsewhere.isdisjoint(list_runs(text))]
    docs = build_passages(None, WORDS)["text"].to_list()
    docs = [" ".join(text.split()) for text in docs]
    base = [text for book in BASE_BOOKS for text in cut_book(book)]
    for texts in (prose, docs, base):
        draw.shuffle(texts)
    asked = {"prose": prose, "docs": docs}
    for pool in POOLS:
        texts = asked[pool.domain]
        dealt, asked[pool.domain] = texts[:N_TEXTS], texts[N_TEXTS:]
        flip_coins(dealt, draw).write_parquet(folder / f"{pool.name}.parquet")
    learnt = base[: N_BASE["prose"]] + asked["docs"][: N_BASE["docs"]]
    draw.shuffle(learnt)
    pl.DataFrame({"text": learnt}).write_parquet(folder / "base.parquet")


def new_model(family: str, vocabulary: int) -> Any:
    """Return an untrained model of a family, without dropout."""
    import torch
    import transformers

    torch.manual_seed(FAMILIES.index(family))
    n_heads = HIDDEN // 64
    shared = {"vocab_size": vocabulary, "initializer_range": 0.05}
    if family == "gpt2":
        gpt2_config = transformers.GPT2Config(
            n_embd=HIDDEN,
            n_layer=LAYERS,
            n_head=n_heads,
            n_positions=512,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **shared,
        )
        return transformers.GPT2LMHeadModel(gpt2_config)
    shared |= {
        "hidden_size": HIDDEN,
        "intermediate_size": 3 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": n_heads,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    if family == "neox":
        return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**shared))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shared))


def train_base(folder: Path, family: str) -> None:
    texts = pl.read_parquet(folder / "base.parquet")["text"].to_list()
    settings = DemoSettings(context=512, seed=FAMILIES.index(family))
    tokenizer = train_tokenizer(texts, settings.vocabulary)
    model = new_model(family, tokenizer.get_vocab_size())
    for name, mark in MARKS.items():
        setattr(model.config, name, tokenizer.token_to_id(mark))
        setattr(model.generation_config, name, tokenizer.token_to_id(mark))
    rows = [tokenizer.encode(f"{text}{MARKS['eos_token_id']}").ids for text in texts]
    train(model, rows, settings, 1, None, print)
    save(model, tokenizer, folder / family)


def audit(
    folder: Path, name: str, corpus: Path, model: Path, base: Path | None
) -> None:
    """Audit texts by one pass of a model, and of its base."""
    out = folder / f"run-{name}"
    if (out / "scores.parquet").exists():
        return
    settings: dict[str, Any] = {
        "input": str(corpus),
        "model": str(model),
        "out": str(out),
        "engine": "transformers",
        "evidence": "logprobs",
        "attacks": [*ATTACKS],
        "continue_strongest": 0,
        "report": False,
    }
    if base is not None:
        settings["reference_model"] = str(base)
        settings["attacks"] += BESIDE_BASE
    mia_batch.audit(**nested(settings))


def make(folder: Path) -> None:
    """Train the bases, tune them, and audit what comes out."""
    for pool in POOLS:
        base = folder / pool.family
        if not base.exists():
            train_base(folder, pool.family)
        corpus = folder / f"{pool.name}.parquet"
        for epochs in EPOCHS:
            start = time.monotonic()
            target = folder / f"{pool.name}-{epochs}"
            recipe = Recipe(
                epochs=epochs, learning_rate=RATE, rank=RANK, max_tokens=256
            )
            finetune(base=str(base), data=corpus, out=target, recipe=recipe)
            audit(folder, target.name, corpus, target, base)
            print(f"{target.name}: {time.monotonic() - start:.0f} s", flush=True)


def tune_manuals(folder: Path) -> None:
    """Tune manuals-47m on half of the windows that it never saw, and audit that."""
    corpus = folder / "manuals.parquet"
    draw = Random(0)
    windows = read_windows().filter(copies=0)["text"].to_list()
    draw.shuffle(windows)
    starts = [" ".join(text.split()[:WORDS]) for text in windows[:N_TEXTS]]
    flip_coins(starts, draw).write_parquet(corpus)
    for recipe in MANUALS:
        target = folder / f"manuals-{recipe.epochs}"
        finetune(base=str(MODEL), data=corpus, out=target, recipe=recipe)
        audit(folder, target.name, corpus, target, MODEL)


def ask_manuals(folder: Path) -> None:
    """Ask manuals-47m itself about windows that it saw so many times, without a base."""
    corpus = folder / "copies.parquet"
    choose_texts("windows", COPIES).write_parquet(corpus)
    audit(folder, "copies", corpus, MODEL, None)


def read_models(folder: Path) -> list[Asked]:
    """Read the runs about tuned models that there are."""
    attacks = (*ATTACKS, *BESIDE_BASE)
    models = []
    for pool in POOLS:
        for epochs in EPOCHS:
            name = f"{pool.name}-{epochs}"
            path = folder / f"run-{name}"
            if (path / "scores.parquet").exists():
                run = mia_batch.Run(path)
                asked = read_asked(run, attacks, pool.family, name, pool.name)
                models.append(asked)
    return models


def average_scores(model: Asked) -> Floats:
    """Average the attacks that read a base, each in its deviations within the model."""
    scores = np.column_stack([model.scores[name] for name in BESIDE_BASE])
    return np.asarray(standardise(scores).mean(1))


def compare(
    learnt_on: Sequence[Asked], asked: Sequence[Asked], *, with_base: bool
) -> dict[str, Any]:
    """Compare classifiers with single attacks on models that they have not seen."""
    attacks = (*ATTACKS, *BESIDE_BASE) if with_base else ATTACKS
    scores = {attack: [model.scores[attack] for model in asked] for attack in attacks}
    if with_base:
        scores["mean, not learnt"] = [average_scores(model) for model in asked]
    for kind in CLASSIFIERS:
        score = learn(kind, learnt_on, with_base=with_base)
        scores[kind] = [score(model) for model in asked]
    by_model = {name: measure_aucs(asked, values) for name, values in scores.items()}
    aucs = {name: float(np.mean(areas)) for name, areas in by_model.items()}
    best = max(attacks, key=aucs.__getitem__)
    return {
        "learnt_on": [model.name for model in learnt_on],
        "asked": [model.name for model in asked],
        "best_attack": best,
        "aucs": rounded(aucs),
        "leads": {
            name: rounded(measure_lead(asked, values, scores[best]))
            for name, values in scores.items()
            if name not in attacks
        },
        "by_model": {
            name: [round(area, 3) for area in by_model[name]]
            for name in (best, *CLASSIFIERS)
        },
    }


def measure_aucs(asked: Sequence[Asked], scores: Sequence[Floats]) -> list[float]:
    return [
        roc_curve(model.is_member, values).area
        for model, values in zip(asked, scores, strict=True)
    ]


def rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {name: round(number, 4) for name, number in numbers.items()}


def compare_by_copies(
    learnt_on: Sequence[Asked], asked: Asked, copies: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Compare without a base, by how often the texts were seen."""
    scores = dict(asked.scores)
    for kind in CLASSIFIERS:
        scores[kind] = learn(kind, learnt_on, with_base=False)(asked)
    rows = []
    for n_copies in sorted(set(copies) - {0}):
        is_compared = np.isin(copies, (0, n_copies))
        some = asked._replace(is_member=asked.is_member[is_compared])
        values = {name: numbers[is_compared] for name, numbers in scores.items()}
        aucs = {
            name: roc_curve(some.is_member, numbers).area
            for name, numbers in values.items()
        }
        best = max(ATTACKS, key=aucs.__getitem__)
        leads = {
            kind: rounded(measure_lead([some], [values[kind]], [values[best]]))
            for kind in CLASSIFIERS
        }
        rows.append(
            {
                "copies": int(n_copies),
                "best_attack": best,
                "aucs": rounded(aucs),
                "leads": leads,
            }
        )
    return rows


def learn_shuffled(
    learnt_on: Sequence[Asked], asked: Sequence[Asked]
) -> dict[str, float]:
    """Learn labels that were dealt anew, several times: the AUC must be one half."""
    aucs = []
    for seed in range(N_SHUFFLES):
        shuffle = np.random.default_rng(seed)
        score = learn("logistic regression", learnt_on, with_base=True, shuffle=shuffle)
        aucs.append(np.mean(measure_aucs(asked, [score(model) for model in asked])))
    error = np.std(aucs, ddof=1) / N_SHUFFLES**0.5
    return rounded({"auc": float(np.mean(aucs)), "standard_error": float(error)})


def evaluate(folder: Path) -> dict[str, Any]:
    """Compare on each family left out, and on manuals-47m, tuned and as it is."""
    models = read_models(folder)
    results: dict[str, Any] = {"families": {}, "without_base": {}, "shuffled": {}}
    for family in FAMILIES:
        learnt_on = [model for model in models if model.family != family]
        asked = [model for model in models if model.family == family]
        if asked and learnt_on:
            results["families"][family] = compare(learnt_on, asked, with_base=True)
            results["without_base"][family] = compare(learnt_on, asked, with_base=False)
            results["shuffled"][family] = learn_shuffled(learnt_on, asked)
    for recipe in MANUALS:
        name = f"manuals-{recipe.epochs}"
        path = folder / f"run-{name}"
        if (path / "scores.parquet").exists():
            run = mia_batch.Run(path)
            tuned = read_asked(run, (*ATTACKS, *BESIDE_BASE), "manuals", name, name)
            results[name] = compare(models, [tuned], with_base=True)
    path = folder / "run-copies"
    if (path / "scores.parquet").exists():
        run = mia_batch.Run(path)
        untuned = read_asked(run, ATTACKS, "manuals", "copies", "copies")
        texts = choose_texts("windows", COPIES)
        copies_by_document = dict(texts.select("document_id", "copies").iter_rows())
        copies = np.array([copies_by_document[name] for name in untuned.documents])
        results["copies"] = compare_by_copies(models, untuned, copies)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "what",
        nargs="*",
        default=["families", "manuals", "fit"],
        choices=["families", "manuals", "fit"],
    )
    parser.add_argument("--keep", type=Path, help="folder for texts, models and runs")
    args = parser.parse_args()
    if not MODEL.is_dir():
        print("skipped: there is no ../shared/models/manuals-47m")
        return
    with TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "base.parquet").exists():
            write_texts(folder)
        if "families" in args.what:
            make(folder)
        if "manuals" in args.what:
            tune_manuals(folder)
            ask_manuals(folder)
        if "fit" in args.what:
            results = evaluate(folder)
            print(json.dumps(results, indent=1))
            append_results("learned", results)


if __name__ == "__main__":
    main()
