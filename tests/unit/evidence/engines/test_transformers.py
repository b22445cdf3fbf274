from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines import transformers as engine_module
from mia_batch.evidence.engines.transformers import TransformersSamples
from mia_batch.evidence.request import EngineSpec
from tests.engine_conformance import SamplesConformance, ids, outputs, prompts, request

if TYPE_CHECKING:
    from pathlib import Path

    from mia_batch.evidence.process import EngineProcess
    from mia_batch.evidence.request import Answer

pytestmark = pytest.mark.usefixtures("one_thread")


def started(checkpoint: Path, **changes: Any) -> TransformersSamples:
    spec = EngineSpec(engine="transformers", kind="samples", model=str(checkpoint), **changes)
    return TransformersSamples(spec)


def all_results(engine: TransformersSamples, n: int) -> dict[int, Answer]:
    found: dict[int, Answer] = {}
    while len(found) < n:
        found |= {result.request_id: result for result in engine.step()}
    return found


class TestTransformers(SamplesConformance):
    @pytest.fixture
    def engine(self, transformers_engine: EngineProcess) -> EngineProcess:
        return transformers_engine


def test_an_end_that_only_the_generation_config_names_ends_a_text(
    checkpoint: Path, tmp_path: Path, transformers_engine: EngineProcess
):
    each = request(0, [0], n=20, max_tokens=30)
    plain = outputs(transformers_engine, [each])[0]
    common = max(range(2, 600), key=lambda token: sum(token in ids(p) for p in plain))
    folder = tmp_path / "model"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [common]}))
    engine = started(folder)
    engine.submit(each)
    for cut, whole in zip(all_results(engine, 1)[0].continuations, plain, strict=True):
        if common in ids(whole):
            assert ids(cut) == ids(whole)[: ids(whole).index(common) + 1]
            assert cut.finish_reason == "stop"
        else:
            assert cut == whole


def test_when_memory_runs_out_batches_are_halved_and_nothing_is_lost(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, transformers_engine: EngineProcess
):
    engine = started(checkpoint, engine_args={"batch_size": 16})
    tried: list[int] = []

    def decode(batch: list[Any]) -> Any:
        tried.append(len(batch))
        if len(batch) > 3:
            raise torch.OutOfMemoryError
        return TransformersSamples._decode(engine, batch)

    monkeypatch.setattr(engine, "_decode", decode)
    requests = [request(i, prompt, n=2) for i, prompt in enumerate(prompts(8))]
    for each in requests:
        engine.submit(each)
    found = {key: result.continuations for key, result in all_results(engine, 8).items()}
    assert tried[:4] == [16, 8, 4, 2]
    assert found == outputs(transformers_engine, requests)


def test_memory_that_does_not_suffice_for_one_sequence_ends_the_engine(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    engine = started(checkpoint)

    def decode(_: list[Any]) -> Any:
        msg = "[enforce fail] DefaultCPUAllocator: can't allocate memory"
        raise RuntimeError(msg)

    monkeypatch.setattr(engine, "_decode", decode)
    engine.submit(request(0, [0, 5], n=2, max_tokens=30))
    assert engine.step() == []
    with pytest.raises(EngineError, match=r"one sequence of 2 \+ 30 tokens; set a smaller"):
        engine.step()


def test_batches_keep_within_main_memory(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_module, "available_memory", lambda: 2**21)
    engine = started(checkpoint)
    sizes: list[int] = []

    def decode(batch: list[Any]) -> Any:
        sizes.append(len(batch))
        return TransformersSamples._decode(engine, batch)

    monkeypatch.setattr(engine, "_decode", decode)
    engine.submit(request(0, [0], n=30, max_tokens=31))
    all_results(engine, 1)
    # Numbers a token: 2 layers of 1 key and 1 value head of 32, twice, and 16 times 64.
    row_bytes = 32 * (2 * 2 * 32 * 2 + 16 * 64) * 4 + 600 * 32
    assert sizes == [2**20 // row_bytes] * 6 == [5] * 6


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"tensor_parallel_size": 2}, SettingsError, "'tensor_parallel_size': .* engine vllm"),
        ({"engine_args": {"bach_size": 8}}, SettingsError, "'engine_arg': .* 'bach_size'"),
        ({"engine_args": {"batch_size": 0}}, SettingsError, "'engine_arg': batch_size is 0"),
        ({"engine_args": {"max_model_len": "9"}}, SettingsError, "max_model_len is '9'; give a"),
        ({"engine_args": {"max_model_len": 257}}, SettingsError, "above .* context of 256"),
        ({"engine_args": {"attn_implementation": "x"}}, EngineError, "cannot load .*Error: "),
    ],
)
def test_a_wrong_setting_is_named(
    checkpoint: Path, changes: dict[str, Any], kind: type[Exception], words: str
):
    with pytest.raises(kind, match=words):
        started(checkpoint, **changes)


def test_broken_weights_are_named(checkpoint: Path, tmp_path: Path):
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:1000])
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    with pytest.raises(EngineError, match=f"cannot load '{tmp_path}'"):
        started(tmp_path)
