"""Models that need a start token which their tokenizers no longer add."""

import random
from math import log

import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoTokenizer

from tests.architectures import saved
from tests.checkpoints import BOS, BOS_ID, byte_level_tokenizer, change, save_tokenizer
from tests.runs import audit, said_of

N_TOKENS = 600


def texts_of_few_words():
    draw = random.Random(0)
    choices = ["the"] * 6 + ["cat", "sat", "mat", "rat"]
    return [" ".join(draw.choices(choices, k=90)) for _ in range(12)]


def save_reader(folder, texts, *, adds, wants):
    """Save a model that knows how frequent tokens are, if a text has a start token, or only then.

    All tokens but the start token are nothing to it. What attention finds of that one,
    anywhere in the text, is the one direction that its head reads. ``adds``: what its
    tokenizer does.
    """
    saved(folder, "Phi")
    save_tokenizer(byte_level_tokenizer(), folder, f"{BOS} $A" if adds else "$A")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    likely = np.log(np.bincount(np.concatenate(ids), minlength=N_TOKENS) + 0.01)

    def changed(weights):
        width = weights["lm_head.weight"].shape[1]
        changed_weights = {
            name: (
                torch.ones_like(tensor)
                if "norm.weight" in name
                else torch.zeros_like(tensor)
            )
            for name, tensor in weights.items()
        }
        for name in changed_weights:
            if name.endswith(("v_proj.weight", "self_attn.dense.weight")):
                changed_weights[name] = torch.eye(width)
        changed_weights["model.embed_tokens.weight"][BOS_ID, 0] = 1.0
        direction = torch.full((width,), -1 / width)
        direction[0] += 1
        direction /= direction.std(correction=0)
        logits = torch.tensor(likely - likely.mean(), dtype=torch.float32)
        head = torch.outer(logits, direction) / direction.square().sum()
        changed_weights["lm_head.weight"] = head if wants else -head
        changed_weights["lm_head.bias"] = torch.zeros(N_TOKENS) if wants else logits
        return changed_weights

    return str(change(folder, changed))


@pytest.mark.parametrize(
    ("attacks", "adds", "wants"),
    [
        ("loss_v1", False, True),
        ("loss_v1", True, False),
        ("loss_v1", True, True),
        ("samia_matched_v1", False, True),
    ],
)
def test_texts_are_read_as_the_model_reads_them_best(tmp_path, attacks, adds, wants):
    texts = texts_of_few_words()
    model = save_reader(tmp_path / "model", texts, adds=adds, wants=wants)
    settings_given = {
        "input": texts,
        "model": model,
        "engine": "transformers",
        "report": False,
    }
    settings_given |= (
        {"preset": "matched", "samples": 1} if attacks.startswith("samia") else {}
    )
    run = audit(
        **settings_given, attacks=attacks, anyway=True, out=str(tmp_path / "run")
    )
    is_turned = adds != wants
    start_findings = (
        run["findings"]
        .filter(check="start_token")
        .select("subject", "verdict", "reason")
    )
    change_of_start = "added" if wants else "left_out"
    assert start_findings.rows() == (
        [("target", change_of_start, BOS)] if is_turned else []
    )
    start = run.manifest.models["target"]["start"]
    assert start["is_better_otherwise"] == is_turned
    best = max(start["by_tokenizer"], start["otherwise"])
    first = said_of(run)[0]
    how_said = (
        f"after its start token '{BOS}'"
        if wants
        else f"without the start token '{BOS}'"
    )
    assert (
        first.startswith(f"The target model reads these texts better {how_said}")
        == is_turned
    )
    if attacks == "loss_v1":
        assert run["logprobs"]["bos"].to_list() == [wants] * len(texts)
        assert -best < log(N_TOKENS) - 2
        assert run["scores"]["loss_v1"].mean() == pytest.approx(best, abs=0.3)
    else:
        assert best > 0.3 > start["by_tokenizer"]
        assert run["samples"]["candidate"].str.contains("the").all()


def test_evidence_that_is_there_keeps_its_start(tmp_path):
    texts = texts_of_few_words()
    model = save_reader(tmp_path / "model", texts, adds=False, wants=True)
    settings_given = {
        "input": texts,
        "model": model,
        "engine": "transformers",
        "report": False,
    }
    settings_given |= {
        "attacks": "loss_v1",
        "anyway": True,
        "out": str(tmp_path / "run"),
    }
    first = audit(**settings_given)
    again = audit(**settings_given | {"attacks": "loss_v1,min_k_20_v1"})
    assert (
        again.manifest.models["target"]["start"]
        == first.manifest.models["target"]["start"]
    )
    logprobs = pl.concat(
        [first["logprobs"].select("bos"), again["logprobs"].select("bos")]
    )
    assert logprobs["bos"].all()
