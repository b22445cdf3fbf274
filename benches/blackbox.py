"""How well memory shows where only text, or a few log-probabilities, come back: a 47 M model.

The model under ``../shared/models/manuals-47m`` reads each window once; from that one
pass follows what it would say to any request at any token, and so what each way of
asking would find. With ``--audit N`` the program itself asks N windows each of 0, 8 and
16 copies, and their scores are compared with those of the one pass over the same
windows.

    python -m benches.blackbox [--keep FILE] [--audit N [--nudge NATS]]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import torch
from benches.pairs import DATA
from benches.results import append_results
from transformers import AutoModelForCausalLM

import mia_batch
from mia_batch.attacks import get
from mia_batch.attacks.from_samples import with_expected
from mia_batch.models.tokens import Tokenizer
from mia_batch.prompts import probes, tokens
from mia_batch.settings import Settings, nested
from mia_batch.stats.intervals import auc_interval, roc_curve

MODEL = DATA.parent / "models" / "manuals-47m"
NUDGE = Settings.model_fields["nudge"].default
RUNGS = (4, 8, 16, 32, 64)
LISTED = 20
POINTS = Settings.model_fields["token_points"].default
ASKED = (0, 8, 16)
"""Copies of the windows that the program itself asks."""
ATTACKS = ("token_hits_v1", "token_hits_less_expected_v1")
ONE_PASS = " from one pass"
EQUAL = 1e-9  # less than any single answer makes
EXPECTED = {
    "next tokens, nudge 0, less expected": (0, False),
    f"next tokens, nudge {NUDGE:g}, less expected": (NUDGE, False),
    "next tokens, nudge 0, less expected, texts apart": (0, True),
    f"next tokens, nudge {NUDGE:g}, less expected, texts apart": (NUDGE, True),
}
"""By `token_hits_less_expected_v1`: the nudge, and whether each text is a group of its own."""


def windows() -> pl.DataFrame:
    found = pl.read_ndjson(MODEL / "windows.jsonl")
    return found.select(target_id="id", target="text", copies="copies", group="book")


def places(texts: pl.DataFrame, tokenizer: Tokenizer) -> pl.DataFrame:
    """Say which token follows each point of a text, and the numbers of the points."""
    words = probes(texts, n=4096, every=1, n_words=1, words="script")
    points = {
        "token": tokens(texts, n=4096, tokenizer=(str(MODEL), None, "model")),
        "word": words,
    }
    found = []
    for kind, made in points.items():
        asked = made.filter(pl.col("reason").is_null()).join(texts, on="target_id")
        cut = pl.col("target").cast(pl.Binary).bin.head(pl.col("cut")).cast(pl.String)
        before = tokenizer.count_tokens(asked.select(cut).to_series().to_list())
        place = pl.Series("place", before, pl.Int64)
        found.append(asked.select("target_id", place, pl.col("view_index").alias(kind)))
    return found[0].join(found[1], on=["target_id", "place"], how="full", coalesce=True)


@torch.inference_mode()
def read(texts: pl.DataFrame) -> pl.DataFrame:
    """Read each text once: a row a token, with its log-probability and those of its rivals."""
    tokenizer = Tokenizer.load(str(MODEL))
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    rows = []
    for name, text in texts.select("target_id", "target").iter_rows():
        ids = torch.tensor(tokenizer.encode_prompts([text]))
        found = model(ids).logits[0, :-1].log_softmax(-1)
        own = found.gather(1, ids[0, 1:, None])[:, 0]
        mean = (found.exp() * found).sum(-1)
        columns = {"logprob": own, "mean": mean, "top": found.topk(LISTED).values}
        columns["true_token"] = ids[0, 1:]
        columns["variance"] = (found.exp() * (found - mean[:, None]) ** 2).sum(-1)
        columns["rival"] = found.scatter(1, ids[0, 1:, None], -torch.inf).max(-1).values
        row = pl.DataFrame({each: value.numpy() for each, value in columns.items()})
        rows.append(
            row.select(
                target_id=pl.lit(name), place=pl.int_range(1, pl.len() + 1)
            ).hstack(row)
        )
    return pl.concat(rows).join(
        places(texts, tokenizer), on=["target_id", "place"], how="left"
    )


def centred(listed: int, *, named: bool = False) -> pl.Expr:
    """Say what `probe_centred_v1` makes of a point where so many tokens are listed.

    ``named``: only the likeliest token and the true one, which is asked for by name.
    """
    own, top = pl.col("logprob"), pl.col("top").list.head(listed)
    said = pl.concat_list(top, own).list.unique() if named else top
    p = said.list.eval(pl.element().exp())
    left = (1 - p.list.sum()).clip(lower_bound=1e-4).log()
    bound = pl.min_horizontal(said.list.max() if named else said.list.min(), left)
    mean = said.list.eval(pl.element().exp() * pl.element()).list.sum()
    known = pl.lit(named) | (own >= said.list.min())
    return (
        pl.when(known).then(own).otherwise(bound)
        - mean
        - (1 - p.list.sum()).clip(0) * bound
    )


def ways() -> dict[str, tuple[pl.Expr, pl.Expr]]:
    """Ways of asking: which tokens, and the score of each, of which a text's is the mean."""
    own, behind = pl.col("logprob"), pl.col("rival") - pl.col("logprob")
    usual = pl.col("token") < POINTS
    found = {"loss_v1 (one pass)": (pl.lit(value=True), own)}
    for nudge in (0, 1, 2, 3, 4, NUDGE, 6, 8):
        found[f"next tokens, nudge {nudge:g}"] = (
            usual,
            (behind < nudge).cast(pl.Float64),
        )
    for n in (32, 64, 128):
        found[f"next tokens, nudge {NUDGE:g}, {n} points"] = (
            pl.col("token") < n,
            (behind < NUDGE).cast(pl.Float64),
        )
    for n in (32, 64, 128):
        at = pl.col("word") < n
        found[f"first token of words, greedy, {n} points"] = (
            at,
            (behind < 0).cast(pl.Float64),
        )
        found[f"probe_loss_v1, exact, {n} points"] = (at, own)
        found[f"probe_centred_v1, 5 listed, {n} points"] = (at, centred(5))
        found[f"probe_centred_v1, 20 listed, {n} points"] = (at, centred(20))
        found[f"probe_centred_v1, named, {n} points"] = (at, centred(1, named=True))
        found[f"probe_centred_v1, exact, {n} points"] = (at, own - pl.col("mean"))
    return found


def expected(
    rows: pl.DataFrame,
    nudge: float,
    *,
    texts: pl.DataFrame | None = None,
    apart: bool = False,
) -> pl.DataFrame:
    """Score by `token_hits_less_expected_v1`, books as groups, or each text as one (``apart``)."""
    texts = (windows() if texts is None else texts).with_columns(
        text=pl.int_range(pl.len())
    )
    group = "text" if apart else pl.col("group").rank("dense")
    texts = texts.select("target_id", group=group, counted=pl.lit(value=True))
    said = rows.filter(pl.col("token") < POINTS)
    answers = said.lazy().select(
        "target_id",
        model=pl.lit("target"),
        view=pl.lit("token"),
        words_candidate=1,
        leading_characters=(pl.col("rival") - pl.col("logprob") < nudge).cast(
            pl.UInt32
        ),
        characters_candidate=1,
        characters_reference=1,
        true_token=pl.col("true_token").cast(pl.UInt64),
    )
    attack = get("token_hits_less_expected_v1")
    made = (
        with_expected(answers, texts)
        .group_by("target_id")
        .agg(attack.expr.alias("score"))
    )
    return made.collect()


def scores(rows: pl.DataFrame) -> pl.DataFrame:
    """Score each text in each way."""
    found = windows().select("target_id", "copies")
    for name, (nudge, apart) in EXPECTED.items():
        made = expected(rows, nudge, apart=apart).rename({"score": name})
        found = found.join(made, on="target_id", how="left")
    for name, (which, term) in ways().items():
        mean = rows.filter(which).group_by("target_id").agg(term.mean().alias(name))
        found = found.join(mean, on="target_id", how="left")
    return found


def measured(table: pl.DataFrame, name: str) -> dict[str, Any]:
    """AUC at each number of copies, against windows that were never seen."""
    found: dict[str, Any] = {"way": name}
    for rung in RUNGS:
        some = table.filter(
            pl.col("copies").is_in([0, rung]), pl.col(name).is_not_null()
        )
        member, value = (some["copies"] > 0).to_numpy(), some[name].to_numpy()
        if member.all() or not member.any():
            continue
        limits = auc_interval(value[member], value[~member])
        found[str(rung)] = round(roc_curve(member, value).area, 3)
        found[f"{rung} interval"] = [round(limits.low, 3), round(limits.high, 3)]
    return found


def audited(rows: pl.DataFrame, n: int, nudge: float) -> dict[str, Any]:
    """Have the program ask some windows, and compare their scores with those of one pass."""
    mixed = (
        windows()
        .filter(pl.col("copies").is_in(ASKED))
        .sample(fraction=1, shuffle=True, seed=0)
    )
    some = mixed.filter(pl.int_range(pl.len()).over("copies") < n)
    with tempfile.TemporaryDirectory() as scratch:
        corpus, out = Path(scratch) / "corpus.parquet", Path(scratch) / "run"
        renamed = some.rename({"target_id": "document_id", "target": "text"})
        renamed.with_columns(member=pl.col("copies") > 0).write_parquet(corpus)
        given = {
            "input": str(corpus),
            "model": str(MODEL),
            "out": str(out),
            "nudge": nudge,
        }
        run = mia_batch.audit(
            **nested(given | {"evidence": "samples", "report": False})
        )
        said = run["scores"].select(*ATTACKS, target_id="document_id")
        costs = run.attacks.filter(attack=ATTACKS[0]).select("tokens", "seconds")
    hits = rows.filter(pl.col("token") < POINTS).group_by("target_id")
    read = expected(rows.join(some, on="target_id", how="semi"), nudge, texts=some)
    read = hits.agg(
        token_hits_v1=(pl.col("rival") - pl.col("logprob") < nudge).mean()
    ).join(read.rename({"score": "token_hits_less_expected_v1"}), on="target_id")
    both = said.join(read, on="target_id", suffix=ONE_PASS).join(some, on="target_id")
    apart = {name: (pl.col(name) - pl.col(name + ONE_PASS)).abs() for name in ATTACKS}
    return {
        "nudge": nudge,
        "windows": dict(some["copies"].value_counts().sort("copies").iter_rows()),
        **costs.row(0, named=True),
        "largest_difference": (
            both.select(each.max() for each in apart.values()).row(0, named=True)
        ),
        "equal": (
            both.select((each < EQUAL).sum() for each in apart.values()).row(
                0, named=True
            )
        ),
        "auc": [measured(both, name + of) for name in ATTACKS for of in ("", ONE_PASS)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--keep", type=Path, help="file for what the model gives each token"
    )
    parser.add_argument(
        "--audit", type=int, help="only: windows of a kind for the program to ask"
    )
    parser.add_argument(
        "--nudge", type=float, default=NUDGE, help="of --audit, in nats"
    )
    given = parser.parse_args()
    if not MODEL.is_dir():
        print("skipped: no model in ../shared/models")
        return
    if given.keep and given.keep.exists():
        rows = pl.read_parquet(given.keep)
    else:
        rows = read(windows())
        if given.keep:
            rows.write_parquet(given.keep)
    if given.audit:
        found = audited(rows, given.audit, given.nudge)
        print(found)
        append_results("blackbox", {"audit": found})
        return
    table = scores(rows)
    lines = [measured(table, name) for name in (*ways(), *EXPECTED)]
    for line in lines:
        print(f"{line['way']:48}", *(f"{line[str(rung)]:.3f}" for rung in RUNGS))
    append_results("blackbox", {"ways": lines})


if __name__ == "__main__":
    main()
