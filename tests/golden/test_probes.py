"""Probes of the demo's model: how strong, for how many tokens, and what their weights rest on."""

from importlib.util import find_spec

import polars as pl
import pytest

from mia_batch.attacks.from_samples import PROBE_ATTACKS
from tests.runs import audit_demo

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not installed"
)

NAMES = [attack.name for attack in PROBE_ATTACKS]
ATTACKS = ",".join(NAMES)


@pytest.fixture(scope="module")
def probed(demo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("probes")
    pl.read_parquet(demo.corpus).head(128).write_parquet(folder / "half.parquet")
    half = str(folder / "half.parquet")
    return audit_demo(demo, folder / "run", attacks=ATTACKS, engine="vllm", input=half)


def test_probes_find_every_member_for_few_tokens(probed):
    rows = (
        probed["metrics"]
        .filter(metric="roc_auc", slice="all")
        .select("attack", "value")
    )
    found = dict(rows.filter(pl.col("attack").is_in(NAMES)).iter_rows())
    assert found.keys() == {*NAMES}
    assert min(found.values()) >= 0.98
    decoded = probed["samples"]["n_tokens"].sum() / probed["scores"].height
    assert decoded <= 150


def test_transformers_gives_the_same_answers(demo, probed, tmp_path):
    texts = pl.read_parquet(demo.corpus).head(16)
    texts.write_parquet(tmp_path / "some.parquet")
    some = str(tmp_path / "some.parquet")
    settings = {"attacks": ATTACKS, "input": some}
    here = audit_demo(demo, tmp_path / "run", engine="transformers", **settings)[
        "samples"
    ]
    there = probed["samples"].filter(
        pl.col("target_id").is_in(here["target_id"].implode())
    )
    assert here.height == there.height
    agreeing = float((here["candidate"] == there["candidate"]).mean())
    # Where two tokens are nearly as likely, the last digits decide
    assert agreeing > 0.95


def test_another_runs_rarity_makes_a_score_depend_on_the_text_alone(
    demo, probed, tmp_path
):
    pl.read_parquet(demo.corpus).head(4).write_parquet(tmp_path / "some.parquet")
    samples = {
        "samples_from": str(probed.path("samples")),
        "attacks": ATTACKS,
        "samples": 1,
    }

    def scores(name: str, **settings: object) -> pl.DataFrame:
        found: pl.DataFrame = audit_demo(demo, tmp_path / name, **samples, **settings)[
            "scores"
        ]
        return found.select("target_id", *NAMES)

    some = str(tmp_path / "some.parquet")
    half = probed.manifest.settings["input"]
    of_all = scores("all", input=half, rarity_from=probed.folder)
    of_some = scores("some", input=some, rarity_from=probed.folder)
    assert of_some.equals(
        of_some.select("target_id").join(of_all, on="target_id", maintain_order="left")
    )
    assert not of_some.equals(scores("alone", input=some))
