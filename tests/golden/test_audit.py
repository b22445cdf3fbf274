"""Whole audits of the demo's model: the truth is known, so the numbers can be judged."""

import shutil
from importlib.util import find_spec

import polars as pl
import pytest

from tests import runs

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not installed"
)

ATTACK = "samia_matched_v1"


def audit_demo(demo, out, **settings):
    return runs.audit_demo(demo, out, preset="matched", **settings)


def auc(run, attack=ATTACK) -> float:
    return float(
        run["metrics"]
        .filter(attack=attack, metric="roc_auc", slice="all")["value"]
        .item()
    )


@pytest.fixture(scope="module")
def half(demo, tmp_path_factory):
    path = tmp_path_factory.mktemp("half") / "corpus.parquet"
    pl.read_parquet(demo.corpus).head(128).write_parquet(path)
    return str(path)


@pytest.fixture(scope="module")
def vllm_run(demo, half, tmp_path_factory):
    out = tmp_path_factory.mktemp("vllm") / "run"
    return audit_demo(demo, out, engine="vllm", samples=3, input=half)


@pytest.fixture(scope="module")
def two_samples(demo, half, vllm_run, tmp_path_factory):
    """The same run, scored from the first two samples of each target."""
    out = tmp_path_factory.mktemp("two") / "run"
    shutil.copytree(vllm_run.folder, out)
    return audit_demo(demo, out, engine="vllm", samples=2, input=half)


@pytest.fixture(scope="module")
def transformers_run(demo, half, tmp_path_factory):
    out = tmp_path_factory.mktemp("transformers") / "run"
    return audit_demo(demo, out, engine="transformers", samples=2, input=half)


@pytest.fixture(scope="module")
def first_documents(demo, tmp_path_factory):
    """The corpus' first twenty documents, in the other order."""
    path = tmp_path_factory.mktemp("first") / "corpus.parquet"
    pl.read_parquet(demo.corpus).head(20).reverse().write_parquet(path)
    return str(path)


def agreeing(one, other) -> float:
    """Share of equal samples: where two tokens are nearly as likely, the last digits decide."""
    both = one.join(other, on=["target_id", "sample_index"], suffix="_other")
    assert both.height == one.height == other.height
    return float((both["candidate"] == both["candidate_other"]).mean())


def samples_of(run, document_ids):
    chosen = (
        run["targets"]
        .filter(pl.col("document_id").is_in(document_ids))
        .select("target_id")
    )
    return chosen.join(run["samples"], on="target_id").sort("target_id", "sample_index")


def test_the_model_remembers_well_but_not_perfectly_and_nothing_else_separates_the_classes(
    vllm_run,
):
    assert 0.70 <= auc(vllm_run) <= 0.98
    assert vllm_run["unscored"].is_empty()
    assert vllm_run["scores"]["n_samples"].unique().to_list() == [3]
    # Lengths and compressed sizes do not separate members from the others.
    lengths = vllm_run["targets"].select(
        "member", words=pl.col("n_words"), letters=pl.col("target").str.len_chars()
    )
    assert lengths["words"].unique().to_list() == [128]
    mean, spread = (
        lengths.group_by("member")
        .agg(
            mean=pl.col("letters").mean(),
            spread=pl.col("letters").std() / pl.len().sqrt(),
        )
        .select(pl.col("mean").diff().abs().last(), pl.col("spread").sum())
        .row(0)
    )
    assert mean < 3 * spread


def test_samples_do_not_depend_on_what_else_is_in_the_batch(
    vllm_run, demo, first_documents, tmp_path
):
    few = audit_demo(
        demo,
        tmp_path / "run",
        engine="vllm",
        input=first_documents,
        samples=3,
        engine_arg={"max_num_seqs": 7},
    )
    ids = pl.read_parquet(first_documents)["document_id"].to_list()
    assert samples_of(few, ids).height == 60
    assert agreeing(samples_of(few, ids), samples_of(vllm_run, ids)) > 0.9


@pytest.mark.long
def test_two_engines_with_the_same_sampler_give_the_same_text(
    transformers_run, demo, first_documents, tmp_path
):
    exact = audit_demo(
        demo,
        tmp_path / "run",
        engine="vllm",
        input=first_documents,
        samples=2,
        engine_arg={"use_fp64_gumbel": True},
    )
    ids = pl.read_parquet(first_documents)["document_id"].to_list()
    assert agreeing(samples_of(exact, ids), samples_of(transformers_run, ids)) > 0.9


@pytest.mark.long
def test_two_engines_agree_within_sampling_error(two_samples, transformers_run):
    joined = two_samples["scores"].join(
        transformers_run["scores"], on="target_id", suffix="_other"
    )
    difference = joined[ATTACK] - joined[f"{ATTACK}_other"]
    assert abs(difference.mean()) < 4 * difference.std() / len(difference) ** 0.5
    widths = [
        run["metrics"]
        .filter(attack=ATTACK, metric="roc_auc", slice="all")
        .select(pl.col("high") - pl.col("low"))
        for run in (two_samples, transformers_run)
    ]
    assert (
        abs(auc(two_samples) - auc(transformers_run))
        < max(width.item() for width in widths) / 2
    )
