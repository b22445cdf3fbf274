"""Bounds of extraction against the exact probability, on small models that can be enumerated."""

from dataclasses import replace
from functools import cache
from itertools import product
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM

from mia_batch.cli.main import command
from mia_batch.cli.show import rank_passages
from mia_batch.errors import SettingsError
from mia_batch.evidence.engines.transformers import Pretrained
from mia_batch.evidence.request import EngineSpec
from mia_batch.extras.bounds import (
    Nearness,
    bound,
    bound_run,
    memory_check,
    memory_needed,
    samples_needed,
)
from mia_batch.models.tokens import Tokenizer
from mia_batch.observer import Observer
from mia_batch.pipeline.custody import verify

VOCABULARY, LENGTH, END = 3, 4, 2


class Table:
    """A model with a distribution of its own after every text."""

    def __init__(self, seed, sharpness):
        self.seed, self.sharpness = seed, sharpness
        self.texts, self.known = [()], {}

    def after(self, text):
        if text not in self.known:
            rng = np.random.default_rng([self.seed, len(text), *text])
            logits = self.sharpness * rng.standard_normal(VOCABULARY)
            self.known[text] = np.exp(logits) / np.exp(logits).sum()
        return self.known[text]

    def __call__(self, parents, tokens):
        if parents is not None:
            parents_and_tokens = zip(parents, tokens, strict=True)
            self.texts = [
                (*self.texts[parent], token) for parent, token in parents_and_tokens
            ]
        return np.array([self.after(text) for text in self.texts])


def edits_between(first, second, *, moved):
    """Levenshtein by its recursion; without ``moved``, Hamming where what is missing differs."""
    if not moved:
        return sum(a != b for a, b in zip(first, second, strict=False)) + abs(
            len(first) - len(second)
        )
    if not first or not second:
        return len(first) + len(second)
    rest = edits_between(first[1:], second[1:], moved=True) + (first[0] != second[0])
    fewer = (
        edits_between(first[1:], second, moved=True),
        edits_between(first, second[1:], moved=True),
    )
    return min(rest, *(1 + n for n in fewer))


def passage_of(number: int) -> tuple[Table, Nearness, int]:
    """A table with what is near on it, and how wide it is searched: all drawn from a number."""
    rng = np.random.default_rng(number)
    table = Table(number, sharpness=rng.choice([0.5, 2.0, 5.0]))
    near = Nearness(
        truth=rng.integers(0, VOCABULARY - 1, LENGTH),
        within=int(rng.integers(0, 3)),
        edits=bool(number % 3),
        ends=(END,) if number % 2 else (),
    )
    return table, near, int(rng.integers(1, 6))


@cache
def is_near(text, truth, within, edits):
    return edits_between(text, truth, moved=edits) <= within


def exact_in(table: Table, near: Nearness) -> float:
    """Add up the probabilities of all samples that are near."""
    truth, total = tuple(near.truth.tolist()), 0.0
    for every in product(range(VOCABULARY), repeat=LENGTH):
        stop = next(
            (position for position, token in enumerate(every) if token in near.ends),
            LENGTH,
        )
        if any(every[stop + 1 :]):
            continue  # one of those that stop here stands for all
        if is_near(every[:stop], truth, near.within, near.edits):
            said_tokens = every[: stop + 1]
            total += np.prod(
                [
                    table.after(said_tokens[:position])[token]
                    for position, token in enumerate(said_tokens)
                ]
            )
    return total


def test_bounds_hold_in_hundreds_of_passages():
    exceeded, errors, gaps = 0, [], []
    for number in range(500):
        table, near, width = passage_of(number)
        bounds_of_passage = bound(table, near, width=width, draws=10, seed=number)
        exact = exact_in(table, near)
        assert bounds_of_passage.lower <= exact <= bounds_of_passage.upper
        exceeded += exact > bounds_of_passage.likely_upper
        errors.append(bounds_of_passage.estimate - exact)
        gaps.append(bounds_of_passage.upper - bounds_of_passage.lower)
    # Of 2.5 % of them more come by chance once in a thousand such tests
    assert exceeded <= 25
    assert abs(np.mean(errors)) <= 4 * np.std(errors) / np.sqrt(len(errors))
    assert np.mean(gaps) > 0.05  # so that there was something to be wrong about


def test_edits_and_the_sum_of_a_case_by_hand():
    near = Nearness(truth=np.array([0, 1]), within=1, edits=True, ends=(2,))
    rows = near.add_tokens(near.first, np.array([1]))
    # "1" is one edit from "", from "0" and from "0 1"
    assert rows.tolist() == [[1, 1, 1]]
    probabilities = np.array([[0.5, 0.25, 0.25]])

    def model(parents, _tokens):
        return probabilities.repeat(1 if parents is None else len(parents), 0)

    bounds_of_passage = bound(model, near, width=9, draws=0)
    # "0 0", "0 1", "1 1", and "0" and "1" that end; "1 0" and "" are two edits away.
    exact = 0.5 * 0.5 + 0.5 * 0.25 + 0.25 * 0.25 + 0.5 * 0.25 + 0.25 * 0.25
    assert exact == 0.625
    assert bounds_of_passage.lower <= exact <= bounds_of_passage.upper
    assert bounds_of_passage.estimate == exact


def test_samples_needed():
    assert samples_needed(0.5, 0.5) == samples_needed(0.9, 0.5) == 1
    assert samples_needed(0.1, 0.5) == 7  # 1 - 0.9 ** 6 = 0.469, 1 - 0.9 ** 7 = 0.522
    assert samples_needed(0.0, 0.5) == inf


SHORT = {
    "extraction_tokens": 3,
    "extraction_prefix_tokens": 6,
    "top_k": 0,
    "temperature": 0.5,
}


def keep_top(logits, top_k):
    """Probabilities of the likeliest tokens at temperature 0.5; 0: of all."""
    logits = logits.double() / 0.5
    lowest_kept = logits.sort().values[-top_k]
    return logits.masked_fill(logits < lowest_kept, -inf).softmax(-1)


def test_passages_of_a_run_are_bounded_with_its_model_unless_that_is_elsewhere(
    copied_of, texts, controls, monkeypatch
):
    settings, run, _ = copied_of(texts)
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype="float32")
    tokenizer, targets = Tokenizer.load(settings["model"]), run["targets"]
    exact = pl.DataFrame()
    for top_k in (model.config.vocab_size * 3 // 4, 0):
        sampling = SHORT | {"top_k": top_k}
        exact = bound_run(
            run, Observer(), sampling, passages=9, distance="hamming", within=0
        )
        assert (
            exact["target_id"].to_list() == rank_passages(run, 9)["target_id"].to_list()
        )
        for row in exact.iter_rows(named=True):
            target = targets.row(
                by_predicate=pl.col("target_id") == row["target_id"], named=True
            )
            special, prompt, truth = tokenizer.encode_after(
                target["prefix"], target["reference"]
            )
            ids, p = special + prompt[-6:], 1.0
            for token in truth[:3]:
                with torch.inference_mode():
                    logits = model(torch.tensor([ids])).logits[0, -1].float()
                p *= keep_top(logits, top_k)[token].item()
                ids.append(token)
            assert row["lower"] <= p <= row["upper"]
            assert row["upper"] == pytest.approx(row["lower"], rel=1e-3)
        assert (exact["upper"] > 0).any()
    near = bound_run(run, Observer(), SHORT, passages=9, within=2, width=3)
    assert (near["lower"] <= near["upper"]).all()
    assert (near["upper"] > exact["lower"]).all()
    assert run["bounds"].equals(near)
    assert not verify(run.folder).faults
    again = bound_run(run, Observer(), SHORT | {"extraction_tokens": 500}, passages=1)
    assert again["lower"].to_list() == [None]
    assert "bounds need at least 1 and 500" in again["reason"][0]
    free = 1 << 20
    monkeypatch.setattr("mia_batch.extras.bounds.available_memory", lambda: free)
    with pytest.raises(
        SettingsError, match=r"--width 99 takes 0\.\d GiB of .*; give at most \d+$"
    ):
        bound_run(run, Observer(), SHORT, width=99)
    spec = EngineSpec(engine="transformers", kind="logprobs", model=settings["model"])
    loaded = Pretrained(replace(spec, dtype="float32"))
    # Enough for the second token, and not for the third
    free = memory_needed(loaded, 2 * 9, 8)
    table = bound_run(run, Observer(), SHORT, passages=9, within=2, width=9)
    assert any(
        "--width 9 takes 0.0 GiB" in (reason or "") for reason in table["reason"]
    )
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free * 2, free * 4))
    on_gpu: Any = SimpleNamespace(
        **vars(loaded) | {"on_cpu": False, "device": torch.device("cuda")}
    )
    with pytest.raises(
        SettingsError, match=r"of the GPU's memory, and .*; give at most \d+$"
    ):
        memory_check(on_gpu, 9)(10**6, 8)
    memory_check(on_gpu, 9)(2, 8)
    monkeypatch.undo()
    (row,) = bound_run(run, Observer(), SHORT, passages=1, within=1).to_dicts()
    result = CliRunner().invoke(command, ["show", str(run.folder), "1"])
    logits = (
        f"within 1 of 3 tokens (levenshtein): {row['lower']:.3g} to {row['upper']:.3g}"
    )
    assert logits in " ".join(result.output.split())
    with pytest.raises(SettingsError, match="on this machine"):
        bound_run(controls.run, Observer(), {})
