"""The llama.cpp engine, on checkpoints whose weights transformers reads too."""

import shutil
from contextlib import closing
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines import registry
from mia_batch.evidence.engines.registry import choose_engine, load_engine
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import EngineSpec
from tests import engine_conformance as conformance
from tests.checkpoints import BOS_ID, change, save_checkpoint, times
from tests.gguf_files import dequantise, needs_llama_cpp, save_gguf

pytestmark = [needs_llama_cpp, pytest.mark.usefixtures("one_thread")]
EVERYTHING = frozenset(
    {
        "rank",
        "top_logprob",
        "support_mass",
        "vocabulary_mean",
        "vocabulary_variance",
    }
)
QUANTISATIONS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")


@pytest.fixture(scope="module")
def gguf(checkpoint, tmp_path_factory):
    return save_gguf(checkpoint, tmp_path_factory.mktemp("gguf") / "model.gguf")


def build_spec(model, kind="logprobs", **changed):
    return EngineSpec(engine="llama-cpp", kind=kind, model=str(model), **changed)


def opened(model, kind="logprobs", **changed):
    return closing(load_engine(build_spec(model, kind, **changed)))


def started(model, tmp_path_factory, kind, **changed):
    log = tmp_path_factory.mktemp("log") / "engine.log"
    return EngineProcess(build_spec(model, kind, **changed), log=log)


@pytest.fixture(scope="module")
def samples_engine(gguf, tmp_path_factory):
    with started(gguf, tmp_path_factory, "samples") as engine:
        yield engine


class TestSamples(conformance.SamplesConformance):
    dtype = "F32"

    @pytest.fixture
    def engine(self, samples_engine):
        return samples_engine


@pytest.fixture(scope="module")
def logprobs_engine(gguf, tmp_path_factory):
    with started(gguf, tmp_path_factory, "logprobs", columns=EVERYTHING) as engine:
        yield engine


class TestLogprobs(conformance.LogprobsConformance):
    dtype = "F32"
    rtol = 3e-5  # llama.cpp looks some functions up in tables of halves

    @pytest.fixture
    def engine(self, logprobs_engine):
        return logprobs_engine


def read_all(engine, requests):
    return conformance.token_values(engine, requests)


@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_numbers_are_the_same_to_the_bit_whatever_is_read_beside_them(
    checkpoint, tmp_path, quantisation
):
    model = save_gguf(checkpoint, tmp_path / "model.gguf", quantisation)
    texts = conformance.texts(24)
    requests = [conformance.text_request(i, ids) for i, ids in enumerate(texts)]
    with opened(model) as engine:
        assert engine.info.dtype == quantisation
        together = read_all(engine, requests)
        turned = read_all(engine, requests[::-1])
        alone: dict[int, Any] = {}
        for request in requests:
            alone |= read_all(engine, [request])
    with opened(model, engine_args={"max_num_seqs": 2, "n_threads": 2}) as engine:
        few_streams = read_all(engine, requests)
    for number in range(len(texts)):
        expected = alone[number]["logprob"]
        for values in (together, turned, few_streams):
            np.testing.assert_array_equal(values[number]["logprob"], expected)


@pytest.mark.parametrize(
    ("quantisation", "most_on_average"),
    [("F16", 0.005), ("BF16", 0.05), ("Q8_0", 0.1), ("Q4_0", 0.15), ("Q4_1", 0.15)],
)
def test_log_probabilities_are_near_those_of_the_weights_taken_apart(
    checkpoint, tmp_path, quantisation, most_on_average
):
    model = save_gguf(checkpoint, tmp_path / "model.gguf", quantisation)
    same_weights = dequantise(model, checkpoint, tmp_path / "taken-apart")
    reference = AutoModelForCausalLM.from_pretrained(same_weights, dtype=torch.float32)
    texts = [ids for ids in conformance.texts(24) if len(ids) > 30]
    with opened(model, columns=EVERYTHING) as engine:
        values = read_all(
            engine,
            [
                conformance.text_request(i, ids, columns=EVERYTHING)
                for i, ids in enumerate(texts)
            ],
        )
    differences = []
    for number, ids in enumerate(texts):
        with torch.inference_mode():
            logits = reference(torch.tensor([ids])).logits[0, :-1].double()
        exact = logits.log_softmax(-1).numpy()
        rows = range(len(ids) - 1)
        differences.append(values[number]["logprob"] - exact[rows, ids[1:]])
        means = (np.exp(exact) * exact).sum(axis=1)
        differences_of_others = [
            values[number]["top_logprob"] - exact.max(axis=1),
            values[number]["vocabulary_mean"] - means,
        ]
        assert np.abs(differences_of_others).mean() < most_on_average
    assert np.abs(np.concatenate(differences)).mean() < most_on_average


def test_samples_depend_on_no_number_of_streams(gguf):
    prompts = conformance.prompts(9)
    requests = [
        conformance.request(number, prompt, n=5 + 30 * (number == 2))
        for number, prompt in enumerate(prompts)
    ]
    outputs = []
    for n_streams in (2, 4, 16):
        arguments = {"max_num_seqs": n_streams}
        with opened(gguf, "samples", engine_args=arguments) as engine:
            outputs.append(conformance.outputs(engine, requests))
    assert outputs[0] == outputs[1] == outputs[2]


def test_points_of_a_text_are_answered_from_one_reading(gguf, monkeypatch):
    text = max(conformance.texts(40), key=len)
    requests = [
        conformance.request(number, text[:length], max_tokens=1)
        for number, length in enumerate(range(len(text), 5, -3))
    ]
    with opened(gguf, "samples") as engine:
        n_rows = 0
        streams = engine._open_streams(len(text))
        read_rows = streams.read

        def count(rows):
            nonlocal n_rows
            n_rows += len(rows.tokens)
            return read_rows(rows)

        monkeypatch.setattr(streams, "read", count)
        together = conformance.outputs(engine, requests)
        assert len(text) <= n_rows < len(text) + 8
        monkeypatch.undo()
        for request in requests[::9]:
            alone = conformance.outputs(engine, [request])[request.request_id]
            assert alone == together[request.request_id]


def test_a_text_is_answered_once_it_is_read_and_another_takes_its_stream(gguf):
    long, *short = sorted(conformance.texts(12), key=len)[::-1]
    requests = [
        conformance.text_request(number, ids)
        for number, ids in enumerate([long, *short])
    ]
    # Room for the logits of 32 tokens, so that long texts take several calls
    settings = {"engine_args": {"max_num_seqs": 2}, "logits_bytes": 32 * 4 * 600}
    with opened(gguf, **settings) as engine:
        for request in requests:
            engine.submit(request)
        answered: list[int] = []
        while len(answered) < len(requests):
            answered += [answer.request_id for answer in engine.step()]
    assert sorted(answered) == [*range(len(requests))]
    # The longest shares its stream with none, and the other stream is never idle
    assert answered != sorted(answered)
    assert 0 < answered.index(0) < len(answered) - 1


def test_texts_longer_than_the_streams_get_longer_ones(tmp_path):
    long = save_checkpoint(tmp_path / "long", max_position_embeddings=4096)
    model = save_gguf(long, tmp_path / "model.gguf")
    ids = [BOS_ID, *[40 + (7 * n) % 500 for n in range(2999)]]
    with opened(model) as engine:
        values = read_all(
            engine,
            [
                conformance.text_request(0, ids[:200]),
                conformance.text_request(1, ids),
            ],
        )
    exact = conformance.exact_logprobs(long, ids)[range(2999), ids[1:]]
    np.testing.assert_allclose(values[1]["logprob"], exact, rtol=1e-4, atol=5e-3)
    np.testing.assert_array_equal(values[0]["logprob"], values[1]["logprob"][:199])


REFUSALS = [
    ({"dtype": "float16"}, "dtype: .* has its own number format"),
    ({"tensor_parallel_size": 2}, "tensor_parallel_size: "),
    ({"engine_args": {"max_num_batched": 2}}, "no argument 'max_num_batched'"),
    ({"engine_args": {"n_threads": 0}}, "n_threads is 0; give a whole number from 1"),
    ({"engine_args": {"max_num_seqs": "4"}}, "max_num_seqs is '4'"),
    ({"engine_args": {"max_model_len": 999}}, "above the model's context of 256"),
    ({"columns": frozenset({"noise"})}, "cannot compute noise on embeddings"),
]


@pytest.mark.parametrize(("changed", "sentence"), REFUSALS)
def test_what_it_cannot_do_is_refused_in_a_sentence(gguf, changed, sentence):
    with pytest.raises(SettingsError, match=sentence):
        load_engine(build_spec(gguf, **changed))


def test_noise_is_refused_and_never_left_out(gguf):
    requests = [
        conformance.text_request(0, [BOS_ID, 50, 51], noise=0.1),
        conformance.text_request(1, [BOS_ID, 50, 51]),
    ]
    with opened(gguf) as engine:
        noisy, plain = conformance.answers(engine, requests).values()
    assert noisy.error == "engine llama-cpp cannot compute noise on embeddings"
    assert plain.error is None


def test_memory_that_does_not_suffice_is_said_before_it_is_taken(gguf, monkeypatch):
    monkeypatch.setattr(registry, "available_memory", lambda: 100 << 10)
    with pytest.raises(EngineError, match="MiB may be taken; set a smaller max_model"):
        load_engine(build_spec(gguf))


def test_a_file_without_a_tensor_is_refused_by_llama_cpp(gguf, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf.read_bytes().replace(b"blk.1.attn_q", b"blk.1.attn_z", 1))
    with pytest.raises(EngineError, match=r"llama.cpp cannot open .*attn_q"):
        load_engine(build_spec(path))


def test_weights_that_are_not_finite_are_refused(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "broken")
    nan = float("nan")
    change(folder, times(nan, "lm_head"))
    model = save_gguf(folder, tmp_path / "model.gguf")
    with pytest.raises(SettingsError, match="not finite numbers; give another file"):
        load_engine(build_spec(model))


def test_the_engine_is_chosen_by_the_files_form(gguf, checkpoint):
    engine_by_kind = {
        kind: choose_engine("auto", kind, frozenset(), model=str(gguf))[0]
        for kind in ("samples", "logprobs")
    }
    assert engine_by_kind == {"samples": "llama-cpp", "logprobs": "llama-cpp"}
    kinds = {"rank", "question", "nudge"}
    assert choose_engine("auto", "logprobs", frozenset(kinds), model=str(gguf))[0] == (
        "llama-cpp"
    )
    for engine, model, sentence in [
        ("transformers", gguf, "engine transformers opens checkpoints, and "),
        ("auto", gguf, "cannot compute noise on embeddings; give a checkpoint of"),
    ]:
        with pytest.raises(SettingsError, match=sentence):
            choose_engine(engine, "logprobs", frozenset({"noise"}), model=str(model))
    with pytest.raises(SettingsError, match="none gives fills of GGUF files"):
        choose_engine("auto", "fills", frozenset(), model=str(gguf))
    assert choose_engine("auto", "logprobs", frozenset(), model=str(checkpoint))[0] != (
        "llama-cpp"
    )


def test_without_the_library_a_sentence_names_it_and_the_other_way(gguf, monkeypatch):
    monkeypatch.setattr(
        registry,
        "find_spec",
        lambda name: None if name == "llama_cpp" else find_spec(name),
    )
    with pytest.raises(SettingsError) as refused:
        choose_engine("auto", "logprobs", frozenset(), model=str(gguf))
    assert str(refused.value) == (
        "engine: no engine can run here: for llama-cpp, the package llama_cpp is not"
        " installed (pip install 'mia-batch[llama-cpp]'); or start llama-server or"
        " Ollama with the file and give its address with --base-url"
    )
