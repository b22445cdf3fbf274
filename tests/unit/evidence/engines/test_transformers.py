"""The transformers engine, its sampler, scores and chunks of logits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import logsumexp
from scipy.stats import chisquare
from torch import Tensor
from transformers import PreTrainedModel

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines import transformers as engine_module
from mia_batch.evidence.engines.transformers import (
    VOCABULARY,
    ChunkedLogits,
    SeededSampler,
    TransformersLogprobs,
    TransformersSamples,
    entry_bytes,
    keep_likeliest,
    score_tokens,
)
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import Answer, Decoding, Engine, EngineSpec, Request
from tests.architectures import ARCHITECTURES, made
from tests.checkpoints import BOS_ID
from tests.engine_conformance import (
    LogprobsConformance,
    SamplesConformance,
    exact_logprobs,
    ids,
    outputs,
    prompts,
    request,
    text_request,
    texts,
    token_values,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def spec_of(checkpoint: Path, kind: Any, **changes: Any) -> EngineSpec:
    return EngineSpec(engine="transformers", kind=kind, model=str(checkpoint), **changes)


def started(checkpoint: Path, **changes: Any) -> TransformersSamples:
    return TransformersSamples(spec_of(checkpoint, "samples", **changes))


def started_logprobs(checkpoint: Path, **changes: Any) -> TransformersLogprobs:
    return TransformersLogprobs(spec_of(checkpoint, "logprobs", **changes))


def all_results(engine: Engine, n: int) -> dict[int, Answer]:
    found: dict[int, Answer] = {}
    while len(found) < n:
        found |= {result.request_id: result for result in engine.step()}
    return found


def answered(engine: Engine, requests: list[Request]) -> dict[int, Answer]:
    for each in requests:
        engine.submit(each)
    return all_results(engine, len(requests))


class TestTransformers(SamplesConformance):
    @pytest.fixture
    def engine(self, transformers_engine):
        return transformers_engine


def test_an_end_that_only_the_generation_config_names_ends_a_text(
    checkpoint, tmp_path, transformers_engine
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
    checkpoint, monkeypatch, transformers_engine
):
    engine = started(checkpoint, engine_args={"batch_size": 16})
    tried = out_of_memory(monkeypatch, engine, "_decode")
    requests = [request(i, prompt, n=2) for i, prompt in enumerate(prompts(8))]
    found = {key: result.continuations for key, result in answered(engine, requests).items()}
    assert tried[:4] == [16, 8, 4, 2]
    assert found == outputs(transformers_engine, requests)


def out_of_memory(monkeypatch: pytest.MonkeyPatch, engine: Engine, method: str) -> list[int]:
    """Let batches of more than three run out of memory; the sizes of all that are tried."""
    tried: list[int] = []
    own = getattr(engine, method)

    def limited(batch: list[Any], *columns: Any) -> Any:
        tried.append(len(batch))
        if len(batch) > 3:
            raise torch.OutOfMemoryError
        return own(batch, *columns)

    monkeypatch.setattr(engine, method, limited)
    return tried


@pytest.mark.parametrize(
    ("start", "method", "asked", "words"),
    [
        (
            started,
            "_decode",
            {"max_tokens": 30, "n": 2},
            r"one sequence of 2 \+ 30 tokens; set a s",
        ),
        (started_logprobs, "_answers", None, "one text of 3 tokens; set a smaller"),
    ],
)
def test_memory_that_does_not_suffice_for_one_ends_the_engine(
    checkpoint, monkeypatch, start, method, asked, words
):
    engine = start(checkpoint)

    def fail(*_):
        raise RuntimeError(why)

    monkeypatch.setattr(engine, method, fail)
    why = "[enforce fail] DefaultCPUAllocator: can't allocate memory"
    for i in range(1 if asked else 2):
        engine.submit(request(i, [0, 5], **asked) if asked else text_request(i, [BOS_ID, 50, 51]))
    assert engine.step() == []
    with pytest.raises(EngineError, match=words):
        engine.step()
    why = "a kernel is missing"  # what is not about memory is not hidden
    engine.submit(text_request(9, [BOS_ID, 50, 51]) if asked is None else request(9, [0, 5]))
    with pytest.raises(RuntimeError, match=why):
        engine.step()


def test_batches_keep_within_main_memory(checkpoint, monkeypatch):
    monkeypatch.setattr(engine_module, "available_memory", lambda: 2**21)
    engine = started(checkpoint)
    sizes: list[int] = []

    def decode(batch):
        sizes.append(len(batch))
        return TransformersSamples._decode(engine, batch)

    monkeypatch.setattr(engine, "_decode", decode)
    engine.submit(request(0, [0], n=30, max_tokens=31))
    all_results(engine, 1)
    # Numbers a token: 2 layers of 1 key and 1 value head of 32, twice, and 16 times 64.
    row_bytes = 32 * (2 * 2 * 32 * 2 + 16 * 64) * 4 + 600 * 32
    assert sizes == [2**20 // row_bytes] * 6 == [5] * 6


@pytest.mark.parametrize(
    ("start", "changes", "kind", "words"),
    [
        (start, *each)
        for start in (started, started_logprobs)
        for each in (
            ({"tensor_parallel_size": 2}, SettingsError, "'tensor_parallel_size': .* engine vllm"),
            ({"engine_args": {"batch_size": 0}}, SettingsError, "'engine_arg': batch_size is 0"),
        )
    ]
    + [
        (started, {"engine_args": {"bach_size": 8}}, SettingsError, "'engine_arg': .* 'bach_size'"),
        (started, {"engine_args": {"max_model_len": "9"}}, SettingsError, "is '9'; give a"),
        (started, {"engine_args": {"max_model_len": 257}}, SettingsError, "above .* context of 25"),
        (started, {"engine_args": {"attn_implementation": "x"}}, EngineError, "cannot load .*Erro"),
        (
            started_logprobs,
            {"columns": frozenset({"support_mass"}), "decoding": Decoding(temperature=0.5)},
            SettingsError,
            "'temperature': .* leave the setting at 1",
        ),
    ],
)
def test_a_wrong_setting_is_named(checkpoint, start, changes, kind, words):
    with pytest.raises(kind, match=words):
        start(checkpoint, **changes)


def test_broken_weights_are_named(checkpoint, tmp_path):
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:1000])
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    with pytest.raises(EngineError, match=f"cannot load '{tmp_path}'"):
        started(tmp_path)


EVERYTHING = VOCABULARY | {"rank", "support_mass"}
TOP_K = 20


@pytest.fixture(scope="module")
def transformers_logprobs(checkpoint, tmp_path_factory):
    spec = spec_of(
        checkpoint,
        "logprobs",
        decoding=Decoding(top_k=TOP_K),
        columns=EVERYTHING,
        logits_bytes=2 << 20,
        engine_args={"batch_size": 16},
    )
    with EngineProcess.start(spec, log=tmp_path_factory.mktemp("log") / "engine.log") as engine:
        yield engine


class TestTransformersLogprobs(LogprobsConformance):
    @pytest.fixture
    def engine(self, transformers_logprobs):
        return transformers_logprobs


def test_mean_variance_ranks_and_support_mass_are_those_of_float64(
    checkpoint, transformers_logprobs
):
    asked = texts(30)
    requests = [text_request(i, ids, columns=EVERYTHING) for i, ids in enumerate(asked)]
    n_ranks = n_other = 0
    for i, values in token_values(transformers_logprobs, requests).items():
        exact = exact_logprobs(checkpoint, asked[i])
        p = np.exp(exact)
        mean = (p * exact).sum(axis=1)
        variance = (p * (exact - mean[:, None]) ** 2).sum(axis=1)
        own = exact[range(len(exact)), asked[i][1:]]
        most_likely = np.sort(exact, axis=1)[:, -TOP_K:]
        kept = np.where(own >= most_likely[:, 0], logsumexp(most_likely, axis=1), np.nan)
        rank = 1 + (exact > own[:, None]).sum(axis=1)
        np.testing.assert_allclose(values["vocabulary_mean"], mean, rtol=0, atol=1e-4)
        np.testing.assert_allclose(values["vocabulary_variance"], variance, rtol=0, atol=1e-4)
        np.testing.assert_allclose(values["support_mass"], kept, rtol=1e-6, atol=1e-5)
        assert values["rank"].dtype == np.uint32
        n_ranks += len(rank)
        n_other += int((values["rank"] != rank).sum())
    assert n_other <= 0.01 * n_ranks  # two logits closer than float32 can tell


def test_the_smallest_logits_memory_still_takes_one_token_at_a_time(
    checkpoint, transformers_logprobs
):
    asked = text_request(0, texts(4)[3])
    tokens = answered(started_logprobs(checkpoint, logits_bytes=1), [asked])[0].tokens
    assert tokens is not None
    assert tokens.keys() == {"logprob"}  # what is not asked for is not there
    expected = token_values(transformers_logprobs, [asked])[0]["logprob"]
    np.testing.assert_allclose(tokens["logprob"].tolist(), expected, rtol=1e-6, atol=1e-5)


def test_each_text_gets_the_numbers_it_wants_and_no_others(checkpoint):
    engine = started_logprobs(checkpoint, columns=VOCABULARY | {"rank"})
    wishes = [frozenset[str](), frozenset({"vocabulary_mean", "support_mass"}), {"rank"}] * 2
    asked = [
        text_request(number, each, columns=frozenset(wanted))
        for number, (each, wanted) in enumerate(zip(texts(6), wishes, strict=True))
    ]
    found = answered(engine, asked)
    for number, wanted in enumerate(wishes):
        both = VOCABULARY if "vocabulary_mean" in wanted else frozenset()
        assert (found[number].tokens or {}).keys() == {"logprob"} | both | ({"rank"} & wanted)


def test_when_memory_runs_out_batches_are_halved_and_no_text_is_lost(
    checkpoint, monkeypatch, transformers_logprobs
):
    engine = started_logprobs(checkpoint, engine_args={"batch_size": 8})
    tried = out_of_memory(monkeypatch, engine, "_answers")
    requests = [text_request(i, each) for i, each in enumerate(texts(8))]
    found = answered(engine, requests)
    assert tried[:3] == [8, 4, 2]
    for key, expected in token_values(transformers_logprobs, requests).items():
        tokens: Any = found[key].tokens
        np.testing.assert_allclose(
            tokens["logprob"].tolist(), expected["logprob"], rtol=1e-6, atol=1e-5
        )


def test_weights_that_are_no_numbers_fail_each_text_with_a_reason(checkpoint, tmp_path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    torch.nn.init.constant_(model.model.embed_tokens.weight[50], torch.nan)
    model.save_pretrained(tmp_path)
    engine = started_logprobs(tmp_path)
    engine.submit(text_request(0, [BOS_ID, 50]))
    (result,) = all_results(engine, 1).values()
    assert result.tokens is None
    assert result.error is not None
    assert "not a finite number" in result.error


CPU = torch.device("cpu")
LOGITS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 12)),
    elements=st.floats(-8, 8, width=32),
)


def kept_reference(logits: list[float], top_k: int, top_p: float) -> set[int]:
    """Top-k, then top-p over what is left, one token at a time, in exact order of likelihood."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    if top_k:
        weakest = logits[order[min(top_k, len(order)) - 1]]
        order = [token for token in order if logits[token] >= weakest]
    weights = [math.exp(logits[token]) for token in order]
    kept: set[int] = set()
    mass = 0.0
    for token, weight in zip(order, weights, strict=True):
        if kept and mass >= top_p:
            break
        kept.add(token)
        mass += weight / sum(weights)
    return kept


def kept(logits: torch.Tensor, top_k: int, top_p: float) -> list[set[int]]:
    finite = keep_likeliest(logits, top_k, top_p).isfinite()
    return [set(row.nonzero()[:, 0].tolist()) for row in finite]


def draw(logits: torch.Tensor, seeds: list[int], decoding: Decoding, steps: int = 1) -> list[int]:
    """The last of some draws, one per row."""
    sampler = SeededSampler(decoding, seeds, CPU)
    no_ids = torch.empty(0)
    scores = [sampler(no_ids, logits) for _ in range(steps)][-1]
    assert (scores == 0).sum(-1).tolist() == [1] * len(seeds)
    return scores.argmax(-1).tolist()


@given(LOGITS, st.integers(0, 14))
def test_top_k_keeps_what_the_reference_implementation_keeps(values, top_k):
    expected = [kept_reference(row, top_k, 1.0) for row in values.tolist()]
    assert kept(torch.from_numpy(values), top_k, 1.0) == expected


@given(st.permutations(range(8)), st.integers(0, 9), st.floats(0.05, 0.95))
def test_top_p_keeps_what_the_reference_implementation_keeps(ranks, top_k, top_p):
    logits = [0.37 * rank for rank in ranks]
    assert kept(torch.tensor([logits]), top_k, top_p) == [kept_reference(logits, top_k, top_p)]


def test_top_p_counts_the_mass_within_top_k():
    probabilities = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    assert kept(probabilities.log(), 0, 0.5) == [{0, 1}]
    assert kept(probabilities.log(), 2, 0.5) == [{0}]  # 0.4 of 0.7


def test_one_token_always_stays_and_all_where_nothing_is_asked():
    assert kept(torch.zeros(1, 3), 0, 1e-6) in ([{0}], [{1}], [{2}])
    logits = torch.tensor([[1.0, -2.0, 0.5]])
    assert torch.equal(keep_likeliest(logits, 0, 1.0), logits)


@given(st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=6))
def test_a_row_is_drawn_alike_in_every_batch(seeds):
    logits = torch.linspace(-1, 1, 50).repeat(len(seeds), 1)
    together = draw(logits, seeds, Decoding(), steps=3)
    alone = [draw(logits[:1], [seed], Decoding(), steps=3)[0] for seed in seeds]
    assert together == alone


def test_at_temperature_0_the_most_likely_token_is_taken_whatever_the_seed():
    logits = torch.tensor([[0.0, 3.0, 2.9], [1.0, -1.0, 0.999]]).repeat(50, 1)
    greedy = Decoding(temperature=0, top_k=2, top_p=0.5)
    assert draw(logits, list(range(100)), greedy, steps=2) == [1, 0] * 50


@pytest.mark.parametrize(
    "decoding", [Decoding(), Decoding(temperature=0.5, top_k=6, top_p=0.9), Decoding(top_k=0)]
)
def test_tokens_are_drawn_by_their_probabilities(decoding):
    logits = torch.linspace(-2, 2, 12).repeat(20_000, 1)
    drawn = draw(logits, list(range(20_000)), decoding)
    warm = [2 * (2 * token / 11 - 1) / decoding.temperature for token in range(12)]
    left = sorted(kept_reference(warm, decoding.top_k, decoding.top_p))
    weights = np.exp([warm[token] for token in left])
    counts = np.bincount(drawn, minlength=12)
    assert counts.sum() == counts[left].sum()
    assert chisquare(counts[left], 20_000 * weights / weights.sum()).pvalue > 0.001


ALL = Decoding(top_k=0)


def scored(
    logits: list[float], token: int, decoding: Decoding = ALL, columns: frozenset[str] = EVERYTHING
) -> dict[str, float]:
    found = score_tokens(torch.tensor([logits]), torch.tensor([token]), columns, decoding)
    return {name: values.item() for name, values in found.items()}


def test_three_tokens_by_hand():
    """Probabilities 1/2, 1/4, 1/4: mean -(1/2 + 2/4 + 2/4) ln 2, squared distances all ln 2 / 2."""
    found = scored([math.log(0.5), math.log(0.25), math.log(0.25)], 1)
    assert found["logprob"] == pytest.approx(math.log(0.25), abs=1e-6)
    assert found["vocabulary_mean"] == pytest.approx(-1.5 * math.log(2), abs=1e-6)
    assert found["vocabulary_variance"] == pytest.approx((math.log(2) / 2) ** 2, abs=1e-6)
    assert found["rank"] == 2  # a tie is not larger
    assert found["support_mass"] == 0.0


@pytest.mark.parametrize(
    ("decoding", "kept"),
    [
        (Decoding(top_k=1), 0.4),
        (Decoding(top_k=2), 0.8),  # a tie for the second rank stays
        (Decoding(top_k=3), 0.8),
        (Decoding(top_k=9), 1.0),
        (Decoding(top_k=0, top_p=0.7), 0.8),
        (Decoding(top_k=3, top_p=0.4), 0.4),
    ],
)
def test_the_support_mass_is_of_the_tokens_that_decoding_keeps(decoding, kept):
    logits = [math.log(p) for p in (0.2, 0.4, 0.2, 0.15, 0.05)]
    assert scored(logits, 1, decoding)["support_mass"] == pytest.approx(math.log(kept), abs=1e-6)


@pytest.mark.parametrize("decoding", [Decoding(top_k=1), Decoding(top_k=0, top_p=0.5)])
def test_a_token_that_decoding_leaves_out_has_no_support_mass(decoding):
    assert math.isnan(scored([0.0, 1.0], 0, decoding)["support_mass"])
    assert set(scored([0.0, 1.0], 0, columns=frozenset())) == {"logprob"}


@pytest.mark.parametrize("never", [-math.inf, float(np.finfo(np.float32).min), -1e9])
def test_tokens_that_the_model_rules_out_do_not_spoil_mean_and_variance(never):
    found = scored([0.0, never, 0.0], 0)
    assert found["logprob"] == pytest.approx(-math.log(2), abs=1e-6)
    assert found["vocabulary_mean"] == pytest.approx(-math.log(2), abs=1e-6)
    assert found["vocabulary_variance"] == pytest.approx(0.0, abs=1e-6)


def test_mean_and_variance_of_logits_far_from_zero_lose_nothing():
    logits = [44.0, 38.0, 38.0, 38.0, 38.0]
    moved = [x - 44 for x in logits]
    assert scored(logits, 1, columns=VOCABULARY) == scored(moved, 1, columns=VOCABULARY)


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(2, 40)),
        elements=st.floats(-60, 60, width=32),
    ),
    st.data(),
)
def test_everything_agrees_with_float64(logits, data):
    n, vocab_size = logits.shape
    tokens = data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=n, max_size=n))
    top_k = data.draw(st.integers(0, vocab_size))
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    own = exact[range(n), tokens]
    p = np.exp(exact)
    mean = (p * exact).sum(axis=1)
    weakest = np.sort(logits, axis=1)[:, [-top_k]]
    found = score_tokens(
        torch.from_numpy(logits.copy()), torch.tensor(tokens), EVERYTHING, Decoding(top_k=top_k)
    )
    np.testing.assert_allclose(found["logprob"], own, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(found["vocabulary_mean"], mean, rtol=1e-6, atol=1e-5)
    variance = (p * (exact - mean[:, None]) ** 2).sum(axis=1)
    np.testing.assert_allclose(found["vocabulary_variance"], variance, rtol=1e-5, atol=1e-6)
    larger = logits > logits[range(n), tokens][:, None]
    np.testing.assert_array_equal(found["rank"], 1 + larger.sum(axis=1))
    is_kept = logits >= weakest
    kept = np.log(np.where(is_kept, p, 0.0).sum(axis=1))
    kept[~is_kept[range(n), tokens]] = np.nan
    np.testing.assert_allclose(found["support_mass"], kept, rtol=1e-6, atol=1e-5)
    assert (found["logprob"] <= 0).all()
    assert not (found["support_mass"] > 0).any()


def test_sorting_the_vocabulary_is_counted_as_memory():
    sorting = entry_bytes(frozenset({"support_mass"}), Decoding(top_p=0.9))
    assert sorting > entry_bytes(EVERYTHING, Decoding())


# Chunked logits of tiny random models of many architectures, against the models' own.


def text(n_tokens: int, step: int = 7) -> Tensor:
    return torch.arange(3, 3 + step * n_tokens, step)[None] % 600


@torch.inference_mode()
def own_logits(model: PreTrainedModel, token_ids: Tensor) -> Tensor:
    logits: Tensor = model(token_ids).logits[0]
    return logits


@torch.inference_mode()
def in_chunks(model: PreTrainedModel, token_ids: Tensor, places: Tensor, most: int = 8) -> Tensor:
    return torch.cat(list(ChunkedLogits(model).chunks(token_ids, places, most)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_padded_text_has_the_logits_that_the_model_gives_it_alone(architecture):
    model = made(architecture, **ARCHITECTURES[architecture])
    long, short = text(60), text(25, step=11)
    padded = torch.cat([short, torch.zeros((1, 35), dtype=torch.long)], dim=1)
    found = in_chunks(model, torch.cat([long, padded]), torch.arange(60, 85))
    torch.testing.assert_close(found, own_logits(model, short), rtol=1e-4, atol=1e-4)


def test_the_model_itself_stays_as_it_was():
    model = made("Llama")
    before = own_logits(model, text(20))
    in_chunks(model, text(20), torch.arange(20))
    torch.testing.assert_close(own_logits(model, text(20)), before, rtol=0, atol=0)


def test_a_model_that_cannot_be_taken_apart_runs_whole(monkeypatch):
    model = made("Llama")
    monkeypatch.setattr(model, "get_decoder", lambda: model.model.layers[0])
    logits = ChunkedLogits(model)
    assert not logits.may_batch
    found = in_chunks(model, text(30), torch.arange(4, 30))
    torch.testing.assert_close(found, own_logits(model, text(30))[4:], rtol=1e-4, atol=1e-4)


def test_a_head_that_gives_other_logits_is_not_used(monkeypatch):
    model = made("Llama")
    whole = model.forward

    def forward(*args, **kwargs):  # scales by the length of the text
        output = whole(*args, **kwargs)
        n_tokens = (args[0] if args else kwargs["input_ids"]).shape[1]
        output.logits = output.logits * (1 if n_tokens > 8 else 2)
        return output

    monkeypatch.setattr(model, "forward", forward)
    assert not ChunkedLogits(model).may_batch


def test_a_model_that_only_gives_all_logits_at_once_is_an_error(monkeypatch):
    model = made("Llama")
    whole = model.forward
    monkeypatch.setattr(model, "get_decoder", lambda: model.model.layers[0])
    monkeypatch.setattr(model, "forward", lambda ids, use_cache: whole(ids, use_cache=use_cache))
    with pytest.raises(EngineError, match=r"a LlamaForCausalLM in parts \(.*\); take engine vllm"):
        ChunkedLogits(model)


@pytest.mark.parametrize(("kind", "may_pad"), [("longrope", False), ("default", True)])
def test_texts_are_not_padded_where_embeddings_depend_on_the_longest(kind, may_pad):
    scaled = {
        "short_factor": [1.0] * 16,
        "long_factor": [2.0] * 16,
        "original_max_position_embeddings": 64,
        "factor": 4.0,
    }
    rope = {"rope_type": kind, "rope_theta": 10000.0, **(scaled if kind == "longrope" else {})}
    assert ChunkedLogits(made("Phi3", rope_parameters=rope)).may_pad is may_pad
