"""Audits of the demo's model from log-probabilities: its members, and a paper's procedure."""

import shutil
import zlib
from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest

from mia_batch.attacks import ONE_PASS
from mia_batch.inference.memory import VERBATIM_WORDS
from mia_batch.kernels import foreseen_words
from mia_batch.models.tokens import Tokenizer
from tests.runs import audit, audit_demo, found, planned
from tests.texts import king_james_passages

ATTACKS = ("loss_v1", "min_k_20_v1", "min_k_plus_plus_20_v1", "extraction_v1")
N_TEXTS = 40


@pytest.fixture(scope="module")
def members_run(demo, tmp_path_factory):
    """Short suffixes after whole prefixes, as sampling begins them."""
    folder = tmp_path_factory.mktemp("members")
    pl.read_parquet(demo.corpus).head(64).write_parquet(folder / "corpus.parquet")
    return audit_demo(
        demo,
        folder / "run",
        input=str(folder / "corpus.parquet"),
        engine="transformers",
        evidence="both",
        samples=4,
        attacks=f"samia_matched_v1,extraction_top_k_v1,{','.join(ATTACKS)}",
        prefix_ratio=0.9,  # few words to sample
        extraction_tokens=2,
        extraction_prefix_tokens=1000,
    )


@pytest.mark.parametrize("attack", ATTACKS)
def test_members_score_higher(members_run, attack):
    found = members_run["metrics"].filter(attack=attack, metric="roc_auc", slice="all")
    assert found["low"].item() > 0.6


def test_one_pass_per_view_and_model(members_run):
    assert members_run.manifest.passes == {"target text": 64, "target extraction": 64}


def test_samples_reproduce_suffixes_as_often_as_their_probabilities_say(
    members_run, demo
):
    """Under top-k, as the samples were drawn; a null score is a probability of 0 here."""
    tokenizer = Tokenizer.load(str(demo.model))
    wanted = (
        members_run["logprobs"]
        .filter(view="extraction")
        .select("target_id", "token_ids")
    )
    score = pl.col("extraction_top_k_v1")
    p = members_run["scores"].select("target_id", p=score.exp().fill_null(0.0))
    rows = (
        members_run["samples"]
        .join(members_run["targets"], on="target_id")
        .join(wanted, on="target_id")
        .join(p, on="target_id")
    )
    reproduced = sum(
        tokenizer.encode_after(prefix, candidate)[2][:2] == ids
        for prefix, candidate, ids in rows.select(
            "prefix", "candidate", "token_ids"
        ).iter_rows()
    )
    expected, spread = rows.select(
        expected=pl.col("p").sum(),
        spread=(pl.col("p") * (1 - pl.col("p"))).sum().sqrt(),
    ).row(0)
    assert expected > 20
    assert abs(reproduced - expected) < 4 * spread


@pytest.fixture(scope="module")
def by_default(demo, tmp_path_factory):
    """What a run does where a model and texts are all that is given; two windows of a document."""
    folder = tmp_path_factory.mktemp("default")
    corpus = pl.read_parquet(demo.corpus).head(64).with_row_index()
    pairs = corpus.group_by(pl.col("index") // 2, maintain_order=True).agg("text")
    texts = pairs.select(
        document_id=pl.format("d{}", "index"), text=pl.col("text").list.join(" ")
    )
    texts.write_parquet(folder / "corpus.parquet")
    settings: dict[str, object] = {"input": str(folder / "corpus.parquet")}
    settings |= {
        "model": str(demo.model),
        "window_words": 60,
        "continue_strongest": 40,
        "out": str(folder / "run"),
    }
    return settings, audit(**settings)


def test_one_pass_is_the_default_here_and_the_strongest_texts_are_continued_first(
    by_default,
):
    settings, run = by_default
    assert run.manifest.passes == {"target text": run["targets"]["target"].count()}
    wanted = [name for name in ONE_PASS if not name.startswith(("reference", "wbc"))]
    assert run.manifest.made["scores"]["attacks"] == wanted
    assert run.manifest.plan["primary"] == "min_k_plus_plus_20_v1"
    assert {*run["samples"]["view"]} == {"recital"}
    plan = {"out": "elsewhere", "report": False}
    for name, value in {"probes": 4, "samples": 2}.items():
        assert (
            "probe_leading_rarity_v1"
            in planned(settings | plan | {name: value})["attacks"]
        )
    for key, given in {"evidence": "samples", "temperature": 0.5}.items():
        assert "token_hits_v1" in planned(settings | plan | {key: given})["attacks"]
    assert "loss_v1" in planned(settings | plan | {"attacks": "loss_v1"})["attacks"]
    score = run.manifest.plan["primary"]
    scored = run["scores"].drop_nulls(score)
    place = pl.col(score).rank("ordinal", descending=True).over("document_id")
    ordered = scored.with_columns(place=place).sort(
        "place", score, descending=[False, True]
    )
    assert ordered.head(40)["place"].n_unique() > 1
    assert {*run["samples"]["target_id"]} == {*ordered.head(40)["target_id"]}
    assert run["samples"].height == run["features"].height == 40


def test_what_comes_out_of_the_strongest_is_evidence_of_documents_and_no_share(
    by_default,
):
    _, run = by_default
    words = (
        run["features"]
        .join(run["targets"], on="target_id")
        .with_columns(cut=foreseen_words("prefix", "reference").struct.field("cut"))
        .select("document_id", "longest_block_start", "longest_block_words", "cut")
    )
    counted: dict[str, int] = {}
    for document, start, n_words, cut in words.iter_rows():
        n_cut = sum(start <= place < start + n_words for place in cut)
        n_left = n_words - n_cut if n_words >= VERBATIM_WORDS else n_words
        counted[document] = max(n_left, counted.get(document, 0))
    rollup = run["rollup"].filter(level="document").drop_nulls("longest_words")
    assert dict(rollup.select("key", "longest_words").iter_rows()) == counted
    assert rollup["longest_words"].max() >= 20
    assert run["rollup"]["share_verbatim"].null_count() == run["rollup"].height
    assert found(run, "verbatim", subject="targets")["n_highest"] == 40
    n = rollup.filter(pl.col("longest_words") >= 20).height
    assert f"Of 32 documents, {n} come" in run.answer


def test_a_run_by_default_that_lost_what_was_recited_asks_for_that_alone(
    by_default, tmp_path
):
    settings, run = by_default
    folder = shutil.copytree(run.folder, tmp_path / "run")
    before = run["samples"].sort("target_id")
    for name in ("samples", "features"):
        for path in (folder / name).glob("*recital*"):
            path.unlink()
    again = audit(**settings | {"out": str(folder)})
    assert again["samples"].sort("target_id").equals(before)
    assert again.manifest.passes == run.manifest.passes
    assert again["rollup"].equals(run["rollup"])


def test_an_attack_that_is_named_later_reads_the_pass_that_is_there(
    by_default, tmp_path
):
    settings, run = by_default
    folder = shutil.copytree(run.folder, tmp_path / "run")
    named = audit(**settings | {"out": str(folder), "attacks": "loss_v1,perplexity_v1"})
    assert named.manifest.passes == run.manifest.passes
    assert named.manifest.evidence["long_texts"] == "stride"
    assert named["scores"]["loss_v1"].equals(run["scores"]["loss_v1"])


def wikimia_scores(
    text: str,
    logprobs: Sequence[float],
    lowercase: Sequence[float],
    reference: Sequence[float] | None = None,
) -> dict[str, float]:
    """Scores of the Min-K% paper's procedure for one text, by attack; higher means member.

    Shi et al. (2024), section 4.2 and the authors' code: natural log-probabilities of
    all tokens but the first of the whole text, of the lowercased text, and of the text
    under a smaller model. The code gives losses, lower for members, and minus
    log-perplexity of the lowercased text over that of the text; both are turned here,
    which keeps their order.
    """
    loss, lower = -np.mean(logprobs), -np.mean(lowercase)
    perplexity = np.exp(loss)
    scores = {
        "loss_v1": -loss,
        "perplexity_v1": -perplexity,
        "loss_zlib_v1": -np.log(perplexity) / len(zlib.compress(bytes(text, "utf-8"))),
        "lowercase_ratio_v1": -1 / (np.log(np.exp(lower)) / np.log(perplexity)),
    }
    if reference is not None:
        scores["reference_token_difference_v1"] = -(loss - -np.mean(reference))
    for ratio_ in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        k_length = int(len(logprobs) * ratio_)
        lowest = np.sort(logprobs)[: max(k_length, 1)]
        scores[f"min_k_{round(ratio_ * 100)}_v1"] = np.mean(lowest)
    return {name: float(score) for name, score in scores.items()}


def test_the_min_k_papers_procedure(demo, tmp_path):
    texts = king_james_passages(64, n=N_TEXTS)
    labels = [number % 2 for number in range(N_TEXTS)]
    pl.DataFrame({"input": texts, "label": labels}).write_ndjson(
        tmp_path / "corpus.jsonl"
    )
    run = audit_demo(
        demo,
        tmp_path / "run",
        input=str(tmp_path / "corpus.jsonl"),
        text_column="input",
        preset="min-k",
        engine="transformers",
        reference_model=str(demo.reference),
        neighbours=1,
    )
    text_of = dict(run["targets"].select("target_id", "target").iter_rows())
    plain = run["logprobs"].filter(pl.col("view") != "neighbour")
    views = plain.with_columns(seen=pl.concat_str("model", "view", separator=" "))
    numbers = views.pivot("seen", index="target_id", values="logprob")
    assert numbers.height == run["scores"].height == N_TEXTS
    scores = {row["target_id"]: row for row in run["scores"].iter_rows(named=True)}
    for row in numbers.iter_rows(named=True):
        references = wikimia_scores(
            text_of[row["target_id"]],
            *(
                row[seen]
                for seen in ("target text", "target lowercase", "reference text")
            ),
        )
        assert len(references) == 12
        ours = {name: scores[row["target_id"]][name] for name in references}
        assert ours == pytest.approx(references, abs=1e-6)
