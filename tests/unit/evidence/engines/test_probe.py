"""Texts whose log-probabilities are known to be finite and causal, asked of each model first."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mia_batch.errors import SettingsError
from mia_batch.evidence.engines.registry import check_probes, load_engine, probes
from mia_batch.evidence.request import EngineSpec
from mia_batch.models.weights import check_weights
from tests.adapters import save_adapter
from tests.architectures import ARCHITECTURES, made, saved
from tests.checkpoints import byte_level_tokenizer, change, save_tokenizer, times
from tests.engine_conformance import text_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from mia_batch.evidence.request import EvidenceKind

pytestmark = pytest.mark.usefixtures("one_thread")

NAN = float("nan")


def spec(model: Path | str, **changes: Any) -> EngineSpec:
    options = {"engine": "transformers", "kind": "logprobs"}
    return EngineSpec(model=str(model), **(options | changes))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_random_model_of_any_architecture_passes(architecture: str, tmp_path: Path):
    model = str(saved(tmp_path, architecture))
    check_weights(model)
    engine = load_engine(spec(model))
    engine.submit(text_request(0, [0, 50, 51]))
    (answer,) = engine.step()
    assert answer.error is None


@pytest.mark.parametrize("kind", ["samples", "logprobs"])
@pytest.mark.parametrize(
    ("changed", "dtype", "words"),
    [
        (
            times(NAN, "1.mlp.up_proj"),
            "float32",
            r"not finite numbers .* in model\.layers\.1\.mlp\.up",
        ),
        (
            times(NAN, "lm_head"),
            "float32",
            r"not finite numbers .* in lm_head\.weight; give anothe",
        ),
        (times(1e30, "0.mlp"), "float32", "not finite numbers, though its weights are; give anoth"),
        (
            times(1e6, "1.mlp.up"),
            "float16",
            "'dtype': .* has or computes values too large for float16; take bfloat16 or float32",
        ),
        (
            times(3e4, "0.mlp.up", "0.mlp.down"),
            "float16",
            "'dtype': .* has or computes values too large for float16",
        ),
    ],
)
def test_a_model_whose_numbers_are_not_finite_is_refused_with_their_cause(
    checkpoint: Path,
    tmp_path: Path,
    kind: EvidenceKind,
    changed: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    dtype: str,
    words: str,
):
    model = change(shutil.copytree(checkpoint, tmp_path / "model"), changed)
    with pytest.raises(SettingsError, match=words):
        load_engine(spec(model, kind=kind, dtype=dtype))


def test_an_adapter_whose_numbers_are_not_finite_is_named_before_its_base(
    checkpoint: Path, tmp_path: Path
):
    adapter = change(save_adapter(tmp_path, checkpoint), times(NAN, "0.self_attn.q_proj.lora_B"))
    with pytest.raises(SettingsError, match=r"lora_B\.weight; give another checkpoint"):
        load_engine(spec(adapter))


@pytest.mark.filterwarnings("ignore")  # transformers warns, too
@pytest.mark.parametrize("kind", ["samples", "logprobs"])
def test_a_model_that_looks_at_later_tokens_is_refused(tmp_path: Path, kind: EvidenceKind):
    made("Bert", initializer_range=0.2).save_pretrained(tmp_path)
    save_tokenizer(byte_level_tokenizer(), tmp_path)
    with pytest.raises(
        SettingsError, match=r"looks at later tokens, so it has no .*; give a causal"
    ):
        load_engine(spec(tmp_path, kind=kind))


@pytest.mark.parametrize(
    ("dtype", "moved", "is_refused"),
    [
        ("float32", 1e-4, False),
        ("float32", 2e-3, True),
        ("bfloat16", 0.1, False),
        ("bfloat16", 0.5, True),
    ],
)
def test_log_probabilities_may_move_as_much_as_rounding_explains(
    dtype: str, moved: float, is_refused: bool
):
    said = np.linspace(-9, -1, 11, dtype=np.float32)
    other = said + np.float32(moved)
    other[-1] -= 5  # of another token
    refused = pytest.raises(SettingsError, match="'m' looks at later tokens")
    with refused if is_refused else nullcontext():
        check_probes("m", None, dtype, [said, other])


def test_the_texts_differ_in_their_last_token_and_fit_the_context():
    one, other = probes(600, 256)
    assert one[:-1] == other[:-1]
    assert one[-1] != other[-1]
    assert len(one) == len(other) == 12
    assert [len(each) for each in probes(5, 7)] == [7, 7]
    assert max(map(max, probes(5, 7))) < 5
