"""Whole audits of adapters: as the target and as the reference model."""

from __future__ import annotations

import numpy as np
import pytest

import mia_batch
from mia_batch.errors import SettingsError
from tests.adapters import save_adapter, save_merged, slow_logprobs
from tests.checkpoints import BOS_ID
from tests.engine_conformance import exact_logprobs
from tests.unit.pipeline.conftest import documents


def test_an_adapter_is_a_target_and_a_reference_model(checkpoint, tmp_path):
    lora = save_adapter(tmp_path / "lora", checkpoint)
    prefix = save_adapter(tmp_path / "prefix", checkpoint, "prefix", tokenizer=False)
    merged = save_merged(tmp_path / "merged", checkpoint, lora)
    documents(8).write_parquet(tmp_path / "corpus.parquet")
    run = mia_batch.audit(
        input=str(tmp_path / "corpus.parquet"),
        model=str(lora),
        reference_model=str(prefix),
        engine="transformers",
        evidence="both",
        samples=2,
        out=str(tmp_path / "run"),
    )
    assert run["samples"].height > 0
    rows = run["logprobs"].filter(view="text").drop_nulls("logprob")
    assert set(rows["model"]) == {"target", "reference"}
    for model, token_ids, found in rows.select("model", "token_ids", "logprob").iter_rows():
        ids = [BOS_ID, *token_ids]
        if model == "target":
            expected = exact_logprobs(merged, ids)[range(len(ids) - 1), ids[1:]]
        else:
            expected = slow_logprobs(checkpoint, prefix, ids)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_reference_adapter_without_its_base_is_named_before_anything_starts(checkpoint, tmp_path):
    lora = save_adapter(tmp_path / "lora", checkpoint)
    config = lora / "adapter_config.json"
    config.write_text(config.read_text().replace(str(checkpoint), str(tmp_path / "gone")))
    documents(8).write_parquet(tmp_path / "corpus.parquet")
    with pytest.raises(SettingsError, match=r"'reference_model': .*lora' is an adapter of .*gone'"):
        mia_batch.audit(
            input=str(tmp_path / "corpus.parquet"),
            model=str(checkpoint),
            reference_model=str(lora),
            engine="transformers",
            evidence="logprobs",
            out=str(tmp_path / "run"),
        )
