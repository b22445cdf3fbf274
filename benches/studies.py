"""The papers' studies, reproduced small: docs/studies.md has the figures.

    sweep          SaMIA, figures 3 and 4: prefix ratio and samples, on the demo's model
    contamination  Min-K% paper, section 6: copies, size and learning rate
    outliers       its figure 4: texts unlike or like the others, among more and more of them
    books          its section 5: a threshold that known books choose
    unlearning     its section 7: a model that learnt texts in part, and ways to forget them
    spv            SPV-MIA, figures 4 and 5, tables 2 and 3: prompts, noise, epsilon, adapters
    privacy        PrivLM-Bench: an encoder, a decoder and an encoder-decoder, with and without DP
    tunings        PrivLM-Bench, section 4.4: one decoder tuned in every way, with and without DP

Models are made here from passages of Python's documentation that the demo's model never
saw; books that stand beside the repository are what is unlike them. A study that is
there goes on.

    python -m benches.studies [NAME ...] [--demo demo] [--keep build/studies]
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import polars as pl
from benches.pairs import DATA
from benches.results import append_results
from click.testing import CliRunner

from mia_batch.cli.main import command
from mia_batch.extras.sets.demo import build_passages, hash_order

N_INSERTED, N_OTHERS, N_KNOWN, N_ASKED = 240, 1200, 25, 20
WORDS = 64
SHARED = 8  # words in a row that a passage has in common with none of the demo's
FIGURES = ("attack", "value", "low", "high")


class Place(NamedTuple):
    """Where the demo is, and where what is made here is kept."""

    demo: Path
    keep: Path

    @property
    def model(self) -> Path:
        return self.demo / "model"

    def table(self, name: str, rows: pl.DataFrame) -> Path:
        path = self.keep / f"{name}.parquet"
        if not path.exists():
            rows.write_parquet(path)
        return path


def invoke(*asked: str, **settings: object) -> None:
    """Run a command as a user does; several values of a setting are given one after another."""
    given = [*asked]
    for setting, value in settings.items():
        for each in value if isinstance(value, list) else [value]:
            given += [
                f"--{setting.replace('_', '-')}",
                *([] if each is True else [str(each)]),
            ]
    done = CliRunner().invoke(command, given, catch_exceptions=False)
    print(done.output, flush=True)
    if done.exit_code:
        raise SystemExit(done.exit_code)


def study(name: str, out: Path, **settings: object) -> pl.DataFrame:
    invoke("study", name, out=out, **settings)
    return pl.read_parquet(out / "study.parquet")


def store(name: str, table: pl.DataFrame, *values: str, **about: object) -> None:
    shown = table.filter(metric="roc_auc") if "metric" in table.columns else table
    rows = shown.select(*values).rows()
    append_results("studies", {"study": name, **about, "columns": values, "rows": rows})


@cache
def new_passages(demo: Path) -> pl.DataFrame:
    """Passages of the documentation that have no eight words in a row in common with the demo's."""

    def runs(text: str) -> set[tuple[str, ...]]:
        return {*zip(*(text.split()[at:] for at in range(SHARED)), strict=False)}

    texts = pl.read_parquet(demo / "corpus.parquet")["text"]
    known = set[tuple[str, ...]]().union(*map(runs, texts))
    passages = build_passages(None, WORDS)
    new = [known.isdisjoint(runs(text)) for text in passages["text"]]
    return hash_order(passages.filter(pl.Series(new)), "x")


def windows(*books: str) -> pl.DataFrame:
    """Windows of books, in a drawn order."""
    words = [
        (DATA / "books" / f"{book}.txt").read_text("utf-8").split() for book in books
    ]
    found = [
        " ".join(of[at : at + WORDS]) for of in words for at in range(0, len(of), WORDS)
    ]
    Random(0).shuffle(found)
    return pl.DataFrame({"text": found})


def halves(texts: pl.DataFrame, n: int) -> pl.DataFrame:
    """Take so many texts, every other one a member."""
    member = pl.int_range(pl.len()) % 2 == 0
    return texts.select("text").head(n).with_columns(member=member)


def sweep(at: Place) -> None:
    over = ["prefix-ratio=0.25,0.5,0.75", "samples=1,2,3,5,10"]
    attacks = "samia_matched_v1,samia_matched_n2_v1"
    how = {"input": at.demo / "corpus.parquet", "preset": "matched", "attacks": attacks}
    found = study("sweep", at.keep / "sweep", over=over, model=at.model, **how)
    store("sweep", found, "prefix_ratio", "samples", *FIGURES)


def contamination(at: Place) -> None:
    texts = new_passages(at.demo)
    chosen = at.table("chosen", texts.head(N_INSERTED))
    into = at.table("into", texts.slice(N_INSERTED, N_OTHERS))
    over = ["size=200,1000", "learning-rate=1e-4,1e-3"]
    how = {"input": chosen, "into": into, "base": at.model, "attacks": "min-k,loss"}
    how["schedule"] = "linear"
    found = study(
        "contamination", at.keep / "contamination", over=over, copies_mean=4, **how
    )
    store("contamination", found, "model", "copies", *FIGURES, "n_members")


def outliers(at: Place) -> None:
    """Insert Spanish, documentation, or further windows of the same books among English books."""
    english = windows(
        "jane_eyre", "moby_dick", "dracula", "great_expectations", "frankenstein"
    )
    into = at.table("english", english.slice(1000))
    kinds = {
        "spanish": windows("don_quijote"),
        "documentation": new_passages(at.demo),
        "alike": english.head(1000),
    }
    for kind, texts in kinds.items():
        copies = pl.col("member").cast(pl.Int64).alias("k")
        chosen = at.table(kind, halves(texts, 400).with_columns(copies))
        how: dict[str, object] = {
            "input": chosen,
            "copies": "k",
            "into": into,
            "base": at.model,
        }
        how |= {
            "over": ["size=100,500,2500"],
            "learning_rate": 1e-3,
            "schedule": "linear",
            "engine": "transformers",
            "attacks": "min-k,loss",
        }
        found = study(
            "contamination", at.keep / f"inserted-{kind}", max_tokens=128, **how
        )
        whole = found.filter(pl.col("copies").is_null())
        store("outliers", whole, "model", *FIGURES, inserted=kind)


def books(at: Place) -> None:
    demo = pl.read_parquet(at.demo / "corpus.parquet")
    sides = [
        demo.filter(member=side).drop("group").head(N_KNOWN + N_ASKED)
        for side in (1, 0)
    ]
    labelled = at.table("known", pl.concat(side.head(N_KNOWN) for side in sides))
    unknown = pl.concat(side.tail(N_ASKED) for side in sides).rename(
        {"member": "truth"}
    )
    how: dict[str, object] = {
        "known": labelled,
        "input": at.table("asked", unknown),
        "model": at.model,
    }
    how |= {
        "window_words": 32,
        "primary": "min_k_20_v1",
        "non_members_known": "drawn by lot",
    }
    found = study("books", at.keep / "books", **how)
    truth = unknown.select(pl.col("document_id").alias("key"), "truth")
    found = found.join(truth, on="key", how="left", maintain_order="left")
    store("books", found, "kind", "truth", "share", "p_value", "verdict")


def tuned(
    at: Place, name: str, data: Path, base: Path | None = None, **recipe: object
) -> Path:
    """Tune the base of this bench, or another model, as a user does."""
    out = at.keep / "models" / name
    usual = {"method": "full", "held_out": 0, "learning_rate": 1e-3}
    invoke("finetune", base=base or based(at), data=data, out=out, **(usual | recipe))
    return out


@cache
def based(at: Place) -> Path:
    """Let the demo's model learn passages that no other model here learns: what is tuned below."""
    rest = at.table("rest", new_passages(at.demo).slice(1300).select("text"))
    return tuned(at, "base", rest, at.model, epochs=3)


def ascended(start: Path, texts: pl.Series, out: Path, steps: int) -> Path:
    """Unlearn by gradient ascent on the texts' loss, a batch of 20 a step (plain SGD)."""
    if out.exists():
        return out
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (
        each.from_pretrained(start) for each in (AutoModelForCausalLM, AutoTokenizer)
    )
    tokenizer.pad_token = tokenizer.eos_token
    descent = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        batch = tokenizer(
            [texts[(20 * step + n) % len(texts)] for n in range(20)],
            return_tensors="pt",
            padding=True,
            return_token_type_ids=False,
        )
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        (-model(**batch, labels=labels).loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        descent.step()
        descent.zero_grad()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def unlearning(at: Place) -> None:
    """Forget 60 of 180 texts that were learnt in part; 40 others were never learnt."""
    texts, epochs = new_passages(at.demo).select("text"), 24
    forgotten, kept, others, never = (
        texts.slice(start, n) for start, n in ((0, 60), (60, 120), (180, 60), (240, 40))
    )
    sides = [
        each.with_columns(member=pl.lit(value))
        for each, value in ((forgotten, True), (never, False))
    ]
    asked, kept_at = at.table("forgotten", pl.concat(sides)), at.table("kept", kept)
    before = tuned(
        at, "before", at.table("both", pl.concat([forgotten, kept])), epochs=epochs
    )
    retrained = tuned(at, "retrained", kept_at, epochs=epochs)
    models = at.keep / "models"
    ways = {
        "nothing": before,
        "tuned on others": tuned(
            at, "on-others", at.table("others", others), before, epochs=5
        ),
        "6 steps of ascent": ascended(
            before, forgotten["text"], models / "ascent-6", 6
        ),
        "retrained, another seed": tuned(
            at, "other-seed", kept_at, epochs=epochs, seed=1
        ),
    }
    columns = (
        "set",
        "measure",
        "run",
        "versus",
        "statistic",
        "n",
        "value",
        "low",
        "high",
    )
    for name, model in ways.items():
        out = at.keep / f"unlearning-{model.name}"
        how = {"input": asked, "before": before, "model": model, "retrained": retrained}
        found = study("unlearning", out, samples=4, engine="transformers", **how)
        store("unlearning", found, *columns, after=name)


def spv(at: Place) -> None:
    """Attack a model of 150 of 300 passages, one or two things changed at a time from `fixed`."""
    texts = new_passages(at.demo).select("text")
    asked = at.table("private", halves(texts, 300))
    sources = {
        "identical": texts.slice(400, 1000),
        "domain": windows("sherlock_holmes").head(1000),
        "irrelevant": windows("don_quijote").head(1000),
    }
    path = {name: at.table(f"prompts-{name}", rows) for name, rows in sources.items()}
    lora = {"method": "lora", "rank": 16, "learning_rate": 2e-3, "epochs": 5}
    ways: dict[str, dict[str, object]] = {
        "lora": lora,
        "full": lora | {"method": "full", "learning_rate": 3e-4},
        "ia3": lora | {"method": "ia3", "learning_rate": 2e-2},
        "epsilon-60": lora | {"epsilon": 60},
        "epsilon-15": lora | {"epsilon": 15},
    }
    model = {name: tuned(at, name, asked, None, **way) for name, way in ways.items()}
    usual: dict[str, object] = {
        "input": asked,
        "reference_model": based(at),
        "preset": "spv",
    }
    usual |= {"paraphrases": 3}
    usual |= {
        "attacks": "loss,reference_ratio_v1,self_prompt_difference_v1,spv_embedding_v1"
    }
    usual |= {"tuning_rate": 2e-3, "tuning_rank": 16, "primary": "spv_embedding_v1"}
    usual |= {"engine": "transformers", "generation_tokens": 96}
    fixed = {
        "model": model["lora"],
        "prompts_from": path["identical"],
        "generations": 200,
    }
    of_sources = f"prompts-from={','.join(map(str, path.values()))}"
    sweeps = {
        "adapters": ["model=" + ",".join(map(str, model.values()))],
        "number": [of_sources, "generations=50,200"],
        "length": [of_sources, "prompt-tokens=4,48"],
        "noise": ["noise=0.02,0.1,0.5"],
    }
    for name, over in sweeps.items():
        changed = [each.partition("=")[0].replace("-", "_") for each in over]
        how = usual | {
            setting: value for setting, value in fixed.items() if setting not in changed
        }
        found = study("sweep", at.keep / f"spv-{name}", over=over, **how)
        stems = [
            pl.col(each).cast(pl.String).str.extract(r"([^/]+?)(\.parquet)?$")
            for each in changed
        ]
        store(f"spv {name}", found.with_columns(stems), *changed, *FIGURES)


def privacy(at: Place) -> None:
    """Tune three bases of random weights on labels of a coin, with and without privacy."""
    from tests.bases import save_bases

    bases, draw = save_bases(at.keep / "bases"), Random(0)
    rows = [
        " ".join(text.split()[:8])
        for text in windows("jane_eyre", "moby_dick")["text"][:300]
    ]
    coin = pl.DataFrame({"text": rows, "label": [draw.choice("01") for _ in rows]})
    out = at.keep / "privacy"
    invoke("privacy", base=[bases[name] for name in ("bert", "llama", "t5")], task="classification",
           data=at.table("coin", coin), target_column="label", epsilon=["none", 8, 1], spv=True,
           shadows=2, canaries=0, epochs=20, batch_size=16, max_tokens=64, learning_rate=3e-3,
           out=out)  # fmt: skip
    # A path; variants name it
    found = pl.read_parquet(out / "summary.parquet").drop("base")
    store("privacy", found, *(name for name in found.columns if found[name].count()))


def tunings(at: Place) -> None:
    """Tune the demo's model in every way on passages that it does not hold, with canaries."""
    out = at.keep / "tunings"
    passages = at.table("passages", new_passages(at.demo).head(200))
    methods = ["full", "lora", "ia3", "prefix", "p-tuning", "prompt"]
    invoke("privacy", base=at.model, task="generation", data=passages, tuning=methods,
           epsilon=["none", 8], shadows=0, canaries=4, repetitions=4, epochs=5, batch_size=16,
           max_tokens=64, out=out)  # fmt: skip
    found = pl.read_parquet(out / "summary.parquet").drop("base")
    store("tunings", found, *(name for name in found.columns if found[name].count()))


PARTS = (sweep, contamination, outliers, books, unlearning, spv, privacy, tunings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [part.__name__ for part in PARTS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--demo", type=Path, default=Path("demo"))
    parser.add_argument("--keep", type=Path, default=Path("build/studies"))
    asked = parser.parse_args()
    if unknown := {*asked.names} - {*names}:
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    asked.keep.mkdir(parents=True, exist_ok=True)
    parts = {part.__name__: part for part in PARTS}
    for name in asked.names or names:
        parts[name](Place(asked.demo, asked.keep))


if __name__ == "__main__":
    main()
