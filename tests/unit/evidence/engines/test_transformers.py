"""The transformers engine: sampler, scores, chunks of logits, adapters, noise on embeddings."""

import json
import math
import os
import shutil
import signal
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.stats import chisquare
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines import logits as logit_functions
from mia_batch.evidence.engines import transformers
from mia_batch.evidence.engines.registry import can_turn, load_engine
from mia_batch.evidence.process import EngineProcess, KeptEngine, LocalSource
from mia_batch.evidence.request import (
    Decoding,
    Engine,
    EngineSpec,
    EvidenceKind,
    Request,
)
from mia_batch.models.tokens import Tokenizer
from tests.adapters import (
    KINDS,
    VIRTUAL_TOKENS,
    save_adapter,
    save_gpt2,
    save_merged,
    slow_greedy,
    slow_logprobs,
)
from tests.architectures import ARCHITECTURES, made
from tests.checkpoints import BOS_ID, CONTEXT, TEXTS
from tests.engine_conformance import (
    LogprobsConformance,
    SamplesConformance,
    Started,
    answers,
    exact_logprobs,
    ids,
    outputs,
    prompts,
    request,
    text_request,
    texts,
    token_values,
)
from tests.processes import is_alive

pytestmark = pytest.mark.usefixtures("one_thread")


def spec(model: Path, kind: EvidenceKind = "logprobs", **changes: Any) -> EngineSpec:
    return EngineSpec(engine="transformers", kind=kind, model=str(model), **changes)


def started(checkpoint: Path, **changes: Any) -> transformers.TransformersSamples:
    return transformers.TransformersSamples(spec(checkpoint, "samples", **changes))


def started_logprobs(
    checkpoint: Path, **changes: Any
) -> transformers.TransformersLogprobs:
    return transformers.TransformersLogprobs(spec(checkpoint, "logprobs", **changes))


def assert_near(
    actual: Any, expected: Any, atol: float = 1e-5, rtol: float = 1e-6
) -> None:
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


class TestTransformers(SamplesConformance):
    @pytest.fixture
    def engine(self, transformers_engine):
        return transformers_engine


def test_an_end_that_only_the_generation_config_names_ends_a_text(
    checkpoint, tmp_path, transformers_engine
):
    sample_request = request(0, [0], n=20, max_tokens=30)
    plain = outputs(transformers_engine, [sample_request])[0]
    common = max(range(2, 600), key=lambda token: sum(token in ids(p) for p in plain))
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [common]})
    )
    stopped_outputs = outputs(started(folder), [sample_request])[0]
    for stopped_output, whole in zip(stopped_outputs, plain, strict=True):
        if common in ids(whole):
            end = ids(whole).index(common) + 1
            assert (ids(stopped_output), stopped_output.finish_reason) == (
                ids(whole)[:end],
                "stop",
            )
        else:
            assert stopped_output == whole


def test_when_memory_runs_out_batches_are_halved_and_nothing_is_lost(
    checkpoint, monkeypatch, transformers_engine, transformers_logprobs
):
    engine: Any = started(checkpoint, engine_args={"batch_size": 16})
    batch_sizes = out_of_memory(monkeypatch, engine, "_decode")
    requests = [request(i, prompt, n=2) for i, prompt in enumerate(prompts(8))]
    engine_outputs = outputs(engine, requests)
    assert batch_sizes[:4] == [16, 8, 4, 2]
    assert engine_outputs == outputs(transformers_engine, requests)
    engine = started_logprobs(checkpoint, engine_args={"batch_size": 8})
    batch_sizes = out_of_memory(monkeypatch, engine, "_answers")
    requests = [text_request(i, texts(7)[-1][i:][:50]) for i in range(8)]
    values = token_values(engine, requests)
    assert batch_sizes[:3] == [8, 4, 2]
    for key, expected in token_values(transformers_logprobs, requests).items():
        assert_near(values[key]["logprob"], expected["logprob"])


def out_of_memory(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, method: str, most_rows: int = 3
) -> list[int]:
    """Let batches of more than so many run out of memory; the sizes of all that are tried."""
    batch_sizes: list[int] = []
    own_method = getattr(engine, method)

    def limited(batch: list[Any]) -> Any:
        batch_sizes.append(len(batch))
        if len(batch) > most_rows:
            raise torch.OutOfMemoryError
        return own_method(batch)

    monkeypatch.setattr(engine, method, limited)
    return batch_sizes


@pytest.mark.parametrize(
    ("start", "method", "sample_fields", "words"),
    [
        (
            started,
            "_decode",
            {"max_tokens": 30, "n": 2},
            r"sequence of 2 \+ 30 tokens; set a s",
        ),
        (started_logprobs, "_answers", None, "one text of 3 tokens; set a smaller"),
    ],
)
def test_memory_that_does_not_suffice_for_one_ends_the_engine(
    checkpoint, monkeypatch, start, method, sample_fields, words
):
    engine = start(checkpoint)

    def fail(*_):
        raise RuntimeError(error_text)

    monkeypatch.setattr(engine, method, fail)
    error_text = "[enforce fail] DefaultCPUAllocator: can't allocate memory"
    texts = [text_request(i, [BOS_ID, 50, 51 + i]) for i in range(2)]
    for text_asked in [request(0, [0, 5], **sample_fields)] if sample_fields else texts:
        engine.submit(text_asked)
    assert engine.step() == []
    with pytest.raises(EngineError, match=words):
        engine.step()
    error_text = "a kernel is missing"  # what is not about memory is not hidden
    engine.submit(
        text_request(9, [BOS_ID, 50, 51])
        if sample_fields is None
        else request(9, [0, 5])
    )
    with pytest.raises(RuntimeError, match=error_text):
        engine.step()


def test_the_oldest_brings_those_most_like_it_in_length():
    queue = [[5, 5], [20, 5], [6, 5], [5, 9], [5, 5]]
    oldest, _, near, _, as_long = queue
    assert transformers.take_batch(queue, tuple, lambda n, *_: n <= 3) == [
        oldest,
        as_long,
        near,
    ]
    assert queue == [[20, 5], [5, 9]]


@pytest.mark.parametrize(
    ("lengths", "fits", "padding", "n_together"),
    [
        ([5, 6, 7], lambda n, longest: n * longest <= 20, 1.0, 2),  # padding counts
        ([5, 6, 5, 4], lambda *_: True, 0.0, 2),
        # 2 of 150; with the next 12 of 200
        (
            [48, 50, 50, 40],
            lambda *_: True,
            0.02,
            3,
        ),
        ([5, 5], lambda *_: False, 1.0, 1),  # one always is
        ([], lambda *_: True, 1.0, 0),
    ],
)
def test_how_many_come_together(lengths, fits, padding, n_together):
    assert (
        len(transformers.take_batch([[n] for n in lengths], tuple, fits, padding))
        == n_together
    )


@given(
    st.lists(st.lists(st.integers(1, 20), min_size=2, max_size=2), max_size=20),
    st.integers(1, 8),
    st.integers(1, 60),
    st.sampled_from([0.0, 0.02, 0.2, 1.0]),
)
def test_every_item_is_taken_once_in_batches_that_fit(
    items, most_rows, most_tokens, padding
):
    def fits(n, *longest):
        return n <= most_rows and n * sum(longest) <= most_tokens

    queue, items_done = list(items), []
    while batch := transformers.take_batch(queue, tuple, fits, padding):
        largest = [max(column) for column in zip(*batch, strict=True)]
        assert len(batch) == 1 or fits(len(batch), *largest)
        room = len(batch) * sum(largest)
        assert room - sum(map(sum, batch)) <= padding * room
        items_done += batch
    assert sorted(map(id, items_done)) == sorted(map(id, items))


def test_batches_keep_within_main_memory(checkpoint, monkeypatch):
    monkeypatch.setattr(
        "mia_batch.evidence.engines.registry.available_memory", lambda: 2**21
    )
    engine = started(checkpoint)
    batch_sizes = out_of_memory(monkeypatch, engine, "_decode", most_rows=10**6)
    answers(engine, [request(0, [0], n=30, max_tokens=31)])
    # Numbers a token: 2 layers of 1 key and 1 value head of 32, twice, and 16 times 64.
    row_bytes = 32 * (2 * 2 * 32 * 2 + 16 * 64) * 4 + 600 * 32
    assert batch_sizes == [2**20 // row_bytes] * 6 == [5] * 6


@pytest.mark.parametrize(
    ("start", "changes", "kind", "words"),
    [
        (
            started,
            {"tensor_parallel_size": 2},
            SettingsError,
            "tensor_parallel_size.* engine vllm",
        ),
        (
            started,
            {"engine_args": {"batch_size": 0}},
            SettingsError,
            "engine_arg: batch_size is 0",
        ),
        (
            started,
            {"engine_args": {"bach_size": 8}},
            SettingsError,
            "engine_arg: .* 'bach_size'",
        ),
        (
            started,
            {"engine_args": {"max_model_len": "9"}},
            SettingsError,
            "is '9'; give a",
        ),
        (
            started,
            {"engine_args": {"max_model_len": 257}},
            SettingsError,
            "above .* context of 25",
        ),
        (
            started,
            {"engine_args": {"attn_implementation": "x"}},
            EngineError,
            "cannot load .*Erro",
        ),
        (
            started_logprobs,
            {
                "columns": frozenset({"support_mass"}),
                "decoding": Decoding(temperature=0.5),
            },
            SettingsError,
            "temperature: .* leave the setting at 1",
        ),
    ],
)
def test_a_wrong_setting_is_named(checkpoint, start, changes, kind, words):
    with pytest.raises(kind, match=words):
        start(checkpoint, **changes)


def test_broken_weights_are_named(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(EngineError, match=f"cannot load '{tmp_path}'"):
        started(tmp_path)


EVERYTHING = logit_functions.VOCABULARY | {"rank", "top_logprob", "support_mass"}
TOP_K = 20


@pytest.fixture(scope="module")
def transformers_logprobs(checkpoint, tmp_path_factory):
    engine_spec = spec(
        checkpoint,
        "logprobs",
        decoding=Decoding(top_k=TOP_K),
        columns=EVERYTHING,
        logits_bytes=2 << 20,
        engine_args={"batch_size": 16},
    )
    with EngineProcess(
        engine_spec, log=tmp_path_factory.mktemp("log") / "engine.log"
    ) as engine:
        yield engine


class TestTransformersLogprobs(LogprobsConformance):
    @pytest.fixture
    def engine(self, transformers_logprobs):
        return transformers_logprobs


def test_what_is_computed_is_of_the_tokens_of_its_text(
    checkpoint, transformers_logprobs
):
    """Their values are held to float64 below."""
    token_lists = texts(30)
    requests = [
        text_request(i, ids, columns=EVERYTHING) for i, ids in enumerate(token_lists)
    ]
    n_ranks = n_other = 0
    for i, values in token_values(transformers_logprobs, requests).items():
        exact = exact_logprobs(checkpoint, token_lists[i])
        own_logprobs = exact[range(len(exact)), token_lists[i][1:]]
        assert_near(
            values["vocabulary_mean"], (np.exp(exact) * exact).sum(axis=1), atol=1e-4
        )
        assert values["rank"].dtype == np.uint32
        has_support = values["rank"] <= TOP_K
        assert (np.isnan(values["support_mass"]) != has_support).mean() > 0.99
        n_ranks += len(own_logprobs)
        n_other += int(
            (values["rank"] != 1 + (exact > own_logprobs[:, None]).sum(axis=1)).sum()
        )
    assert n_other <= 0.01 * n_ranks  # two logits closer than float32 can tell


def test_the_smallest_logits_memory_still_takes_one_token_at_a_time(
    checkpoint, transformers_logprobs
):
    one_request = text_request(0, texts(4)[3])
    values = token_values(started_logprobs(checkpoint, logits_bytes=1), [one_request])[
        0
    ]
    assert values.keys() == {"logprob"}  # what is not asked for is not there
    assert_near(
        values["logprob"],
        token_values(transformers_logprobs, [one_request])[0]["logprob"],
    )


def test_on_an_accelerator_answers_come_one_batch_late(
    checkpoint, monkeypatch, transformers_logprobs
):
    engine = started_logprobs(
        checkpoint, columns=EVERYTHING, decoding=Decoding(top_k=TOP_K)
    )
    engine.on_cpu, engine._max_tokens = False, 300
    batch_sizes = out_of_memory(monkeypatch, engine, "_answers", most_rows=99)
    requests = [
        text_request(i, text_item, columns=EVERYTHING)
        for i, text_item in enumerate(texts(40))
    ]
    for text_item in requests:
        engine.submit(text_item)
    steps = [engine.step() for _ in range(len(requests) + 1)]
    assert [len(text_item) for text_item in steps[: len(batch_sizes) + 1]] == [
        0,
        *batch_sizes,
    ]
    expected = token_values(transformers_logprobs, requests)
    for answer in chain.from_iterable(steps):
        for name, values in (answer.tokens or {}).items():
            assert_near(values, expected[answer.request_id][name])


@pytest.mark.parametrize(
    ("may_pad", "noise", "copies", "rows"),
    [(True, 0.0, 1, 2), (False, 0.0, 1, 198), (True, 0.1, 1, 198), (True, 0.0, 200, 4)],
)
def test_points_of_a_text_are_read_in_one_row(
    checkpoint, monkeypatch, may_pad, noise, copies, rows
):
    """Two texts of 100 tokens, half of them in common; the last point of each may come often."""
    # A row gives at most 256 numbers, and a text has 98 points and up to 200 copies of
    # the last.
    engine: Any = started_logprobs(checkpoint)
    engine._logits = SimpleNamespace(may_pad=may_pad, chunks=engine._logits.chunks)
    batch_sizes = out_of_memory(monkeypatch, engine, "_answers", most_rows=999)
    first = texts(7)[-1][:100]
    both_texts = [first, [*first[:50], *first[:50]]]
    points = [
        (text_number, n)
        for text_number in (0, 1)
        for n in [*range(1, 99), *[99] * copies]
    ]
    requests = [
        text_request(
            i, both_texts[text_number][: n + 1], n, noise=noise, is_absolute=True
        )
        for i, (text_number, n) in sorted(
            enumerate(points),
            key=lambda numbered_point: (
                numbered_point[1][0],
                numbered_point[0] * 37 % len(points),
            ),
        )
    ]
    answers_by_id = answers(engine, requests)
    assert (
        sum(batch_sizes)
        == sum(answer.passes for answer in answers_by_id.values())
        == rows
    )
    if not noise:
        exact = [exact_logprobs(checkpoint, text_number) for text_number in both_texts]
        expected = [
            exact[text_number][n - 1, both_texts[text_number][n]]
            for text_number, n in points
        ]
        assert_near(
            [
                (answers_by_id[i].tokens or {})["logprob"][0]
                for i in sorted(answers_by_id)
            ],
            expected,
        )


def test_each_text_gets_the_numbers_it_wants_and_no_others(checkpoint):
    engine = started_logprobs(checkpoint, columns=logit_functions.VOCABULARY | {"rank"})
    wishes = [
        frozenset[str](),
        frozenset({"vocabulary_mean", "support_mass"}),
        {"rank"},
    ] * 2
    requests = [
        text_request(number, token_ids, columns=frozenset(columns_wanted))
        for number, (token_ids, columns_wanted) in enumerate(
            zip(texts(6), wishes, strict=True)
        )
    ]
    values_by_number = token_values(engine, requests)
    for number, columns_wanted in enumerate(wishes):
        vocabulary_columns = (
            logit_functions.VOCABULARY
            if "vocabulary_mean" in columns_wanted
            else frozenset()
        )
        assert values_by_number[number].keys() == {"logprob"} | vocabulary_columns | (
            {"rank"} & columns_wanted
        )


def test_weights_that_are_no_numbers_fail_each_text_with_a_reason(checkpoint, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    torch.nn.init.constant_(model.model.embed_tokens.weight[50], torch.nan)
    model.save_pretrained(tmp_path)
    (result,) = answers(
        started_logprobs(tmp_path), [text_request(0, [BOS_ID, 50])]
    ).values()
    assert result.tokens is None
    assert "not a finite number" in str(result.error)


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
    ids_kept: set[int] = set()
    mass = 0.0
    for token, weight in zip(order, weights, strict=True):
        if ids_kept and mass >= top_p:
            break
        ids_kept.add(token)
        mass += weight / sum(weights)
    return ids_kept


def keep_reference(logits: torch.Tensor, top_k: int, top_p: float) -> list[set[int]]:
    finite = logit_functions.keep_likeliest(logits, top_k, top_p).isfinite()
    return [set(row.nonzero()[:, 0].tolist()) for row in finite]


def draw(
    logits: torch.Tensor, seeds: list[int], decoding: Decoding, steps: int = 1
) -> list[int]:
    """The last of some draws, one per row."""
    sampler = logit_functions.SeededSampler(decoding, seeds, CPU)
    no_ids = torch.empty(0)
    scores = [sampler(no_ids, logits) for _ in range(steps)][-1]
    assert (scores == 0).sum(-1).tolist() == [1] * len(seeds)
    return scores.argmax(-1).tolist()


@given(LOGITS, st.integers(0, 14))
def test_top_k_keeps_what_the_reference_implementation_keeps(values, top_k):
    expected = [kept_reference(row, top_k, 1.0) for row in values.tolist()]
    assert keep_reference(torch.from_numpy(values), top_k, 1.0) == expected


@given(st.permutations(range(8)), st.integers(0, 9), st.floats(0.05, 0.95))
def test_top_p_keeps_what_the_reference_implementation_keeps(ranks, top_k, top_p):
    logits = [0.37 * rank for rank in ranks]
    assert keep_reference(torch.tensor([logits]), top_k, top_p) == [
        kept_reference(logits, top_k, top_p)
    ]


def test_top_p_counts_the_mass_within_top_k_and_one_token_always_stays():
    probabilities = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    assert keep_reference(probabilities.log(), 0, 0.5) == [{0, 1}]
    assert keep_reference(probabilities.log(), 2, 0.5) == [{0}]  # 0.4 of 0.7
    assert keep_reference(torch.zeros(1, 3), 0, 1e-6) in ([{0}], [{1}], [{2}])
    logits = torch.tensor([[1.0, -2.0, 0.5]])
    assert torch.equal(logit_functions.keep_likeliest(logits, 0, 1.0), logits)


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
    "decoding",
    [Decoding(), Decoding(temperature=0.5, top_k=6, top_p=0.9), Decoding(top_k=0)],
)
def test_tokens_are_drawn_by_their_probabilities(decoding):
    logits = torch.linspace(-2, 2, 12).repeat(20_000, 1)
    drawn_tokens = draw(logits, list(range(20_000)), decoding)
    warm = [2 * (2 * token / 11 - 1) / decoding.temperature for token in range(12)]
    ids_left = sorted(kept_reference(warm, decoding.top_k, decoding.top_p))
    weights = np.exp([warm[token] for token in ids_left])
    counts = np.bincount(drawn_tokens, minlength=12)
    assert counts.sum() == counts[ids_left].sum()
    assert chisquare(counts[ids_left], 20_000 * weights / weights.sum()).pvalue > 0.001


WHOLE_DISTRIBUTION = Decoding(top_k=0)


def scored(
    logits: list[float],
    token: int,
    decoding: Decoding = WHOLE_DISTRIBUTION,
    columns: frozenset[str] = EVERYTHING,
) -> dict[str, float]:
    token_scores = logit_functions.score_tokens(
        torch.tensor([logits]), torch.tensor([token]), columns, decoding
    )
    return {name: values.item() for name, values in token_scores.items()}


def test_three_tokens_by_hand():
    """Probabilities 1/2, 1/4, 1/4: mean -(1/2 + 2/4 + 2/4) ln 2, squared distances all ln 2 / 2."""
    token_scores = scored([math.log(0.5), math.log(0.25), math.log(0.25)], 1)
    assert token_scores["logprob"] == pytest.approx(math.log(0.25), abs=1e-6)
    assert token_scores["vocabulary_mean"] == pytest.approx(
        -1.5 * math.log(2), abs=1e-6
    )
    assert token_scores["vocabulary_variance"] == pytest.approx(
        (math.log(2) / 2) ** 2, abs=1e-6
    )
    assert token_scores["top_logprob"] == pytest.approx(math.log(0.5), abs=1e-6)
    assert token_scores["rank"] == 2  # a tie is not larger
    assert token_scores["support_mass"] == 0.0


@pytest.mark.parametrize(
    ("decoding", "mass_kept"),
    [
        (Decoding(top_k=1), 0.4),
        (Decoding(top_k=2), 0.8),  # a tie for the second rank stays
        (Decoding(top_k=3), 0.8),
        (Decoding(top_k=9), 1.0),
        (Decoding(top_k=0, top_p=0.7), 0.8),
        (Decoding(top_k=3, top_p=0.4), 0.4),
    ],
)
def test_the_support_mass_is_of_the_tokens_that_decoding_keeps(decoding, mass_kept):
    logits = [math.log(p) for p in (0.2, 0.4, 0.2, 0.15, 0.05)]
    assert scored(logits, 1, decoding)["support_mass"] == pytest.approx(
        math.log(mass_kept), abs=1e-6
    )


@pytest.mark.parametrize("decoding", [Decoding(top_k=1), Decoding(top_k=0, top_p=0.5)])
def test_a_token_that_decoding_leaves_out_has_no_support_mass(decoding):
    assert math.isnan(scored([0.0, 1.0], 0, decoding)["support_mass"])
    assert set(scored([0.0, 1.0], 0, columns=frozenset())) == {"logprob"}


@pytest.mark.parametrize("never", [-math.inf, float(np.finfo(np.float32).min), -1e9])
def test_tokens_that_the_model_rules_out_do_not_spoil_mean_and_variance(never):
    token_scores = scored([0.0, never, 0.0], 0)
    assert token_scores["logprob"] == pytest.approx(-math.log(2), abs=1e-6)
    assert token_scores["vocabulary_mean"] == pytest.approx(-math.log(2), abs=1e-6)
    assert token_scores["vocabulary_variance"] == pytest.approx(0.0, abs=1e-6)


def test_mean_and_variance_of_logits_far_from_zero_lose_nothing():
    logits = [44.0, 38.0, 38.0, 38.0, 38.0]
    moved = [x - 44 for x in logits]
    assert scored(logits, 1, columns=logit_functions.VOCABULARY) == scored(
        moved, 1, columns=logit_functions.VOCABULARY
    )


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
    own_logprobs = exact[range(n), tokens]
    p = np.exp(exact)
    mean = (p * exact).sum(axis=1)
    weakest = np.sort(logits, axis=1)[:, [-top_k]]
    token_scores = logit_functions.score_tokens(
        torch.from_numpy(logits.copy()),
        torch.tensor(tokens),
        EVERYTHING,
        Decoding(top_k=top_k),
    )
    variance = (p * (exact - mean[:, None]) ** 2).sum(axis=1)
    is_kept = logits >= weakest
    support = np.log(np.where(is_kept, p, 0.0).sum(axis=1))
    support[~is_kept[range(n), tokens]] = np.nan
    assert_near(token_scores["logprob"], own_logprobs)
    assert_near(token_scores["top_logprob"], exact.max(axis=1))
    assert_near(token_scores["vocabulary_mean"], mean)
    assert_near(token_scores["vocabulary_variance"], variance, rtol=1e-5, atol=1e-6)
    assert_near(token_scores["support_mass"], support)
    larger = logits > logits[range(n), tokens][:, None]
    np.testing.assert_array_equal(token_scores["rank"], 1 + larger.sum(axis=1))
    assert (token_scores["logprob"] <= 0).all()
    assert not (token_scores["support_mass"] > 0).any()


def test_sorting_the_vocabulary_is_counted_as_memory():
    sorting = logit_functions.entry_bytes(
        frozenset({"support_mass"}), Decoding(top_p=0.9)
    )
    assert sorting > logit_functions.entry_bytes(EVERYTHING, Decoding())


# Chunked logits of tiny random models of many architectures, against the models' own.


def text(n_tokens: int, step: int = 7) -> Tensor:
    return torch.arange(3, 3 + step * n_tokens, step)[None] % 600


@torch.inference_mode()
def own_logits(model: PreTrainedModel, token_ids: Tensor) -> Tensor:
    logits: Tensor = model(token_ids).logits[0]
    return logits


@torch.inference_mode()
def in_chunks(
    model: PreTrainedModel, token_ids: Tensor, places: Tensor, most_rows: int = 8
) -> Tensor:
    return torch.cat(
        list(transformers.ChunkedLogits(model).chunks(token_ids, places, most_rows))
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_padded_text_has_the_logits_that_the_model_gives_it_alone(architecture):
    model = made(architecture, **ARCHITECTURES[architecture])
    long, short = text(60), text(25, step=11)
    padded = torch.cat([short, torch.zeros((1, 35), dtype=torch.long)], dim=1)
    chunked_logits = in_chunks(model, torch.cat([long, padded]), torch.arange(60, 85))
    torch.testing.assert_close(
        chunked_logits, own_logits(model, short), rtol=1e-4, atol=1e-4
    )


def test_a_model_that_cannot_be_taken_apart_runs_whole_and_stays_as_it_was(monkeypatch):
    model = made("Llama")
    logits_before = own_logits(model, text(20))
    in_chunks(model, text(20), torch.arange(20))
    torch.testing.assert_close(
        own_logits(model, text(20)), logits_before, rtol=0, atol=0
    )
    monkeypatch.setattr(model, "get_decoder", lambda: model.model.layers[0])
    assert not transformers.ChunkedLogits(model).may_batch
    chunked_logits = in_chunks(model, text(30), torch.arange(4, 30))
    torch.testing.assert_close(
        chunked_logits, own_logits(model, text(30))[4:], rtol=1e-4, atol=1e-4
    )


def test_heads_of_other_logits_are_not_used_and_models_of_all_logits_at_once_refused(
    monkeypatch,
):
    model = made("Llama")
    whole = model.forward

    def forward(*args, **kwargs):  # scales by the length of the text
        output = whole(*args, **kwargs)
        n_tokens = (args[0] if args else kwargs["input_ids"]).shape[1]
        output.logits = output.logits * (1 if n_tokens > 8 else 2)
        return output

    monkeypatch.setattr(model, "forward", forward)
    assert not transformers.ChunkedLogits(model).may_batch
    model = made("Llama")
    whole = model.forward
    monkeypatch.setattr(model, "get_decoder", lambda: model.model.layers[0])
    monkeypatch.setattr(
        model, "forward", lambda ids, use_cache: whole(ids, use_cache=use_cache)
    )
    with pytest.raises(
        EngineError, match=r"a LlamaForCausalLM in parts \(.*\); take engine vllm"
    ):
        transformers.ChunkedLogits(model)


@pytest.mark.parametrize(("kind", "may_pad"), [("longrope", False), ("default", True)])
def test_texts_are_not_padded_where_embeddings_depend_on_the_longest(kind, may_pad):
    scaled = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16, "factor": 4.0}
    scaled |= {"original_max_position_embeddings": 64}
    rope = {
        "rope_type": kind,
        "rope_theta": 10000.0,
        **(scaled if kind == "longrope" else {}),
    }
    assert (
        transformers.ChunkedLogits(made("Phi3", rope_parameters=rope)).may_pad
        is may_pad
    )


# Adapters.


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return save_gpt2(tmp_path_factory.mktemp("gpt2"))


def read_logprobs(engine: Started, requests: Iterable[Request]) -> dict[int, Any]:
    return {
        number: token_row["logprob"]
        for number, token_row in token_values(engine, requests).items()
    }


def logprobs(model: Path, token_lists: Sequence[list[int]]) -> list[Any]:
    requests = [text_request(i, token_ids) for i, token_ids in enumerate(token_lists)]
    return [*read_logprobs(load_engine(spec(model)), requests).values()]


def greedy(model: Path, prompts_asked: Sequence[list[int]]) -> list[list[int]]:
    requests = [
        request(i, prompt, max_tokens=12) for i, prompt in enumerate(prompts_asked)
    ]
    engine = load_engine(spec(model, "samples", decoding=Decoding(temperature=0)))
    return [ids(output) for (output,) in outputs(engine, requests).values()]


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3"])
def test_an_adapter_says_what_the_merged_model_says_and_not_what_the_base_says(
    checkpoint, tmp_path, kind
):
    adapter = save_adapter(tmp_path / kind, checkpoint, kind)
    merged = save_merged(tmp_path / "merged", checkpoint, adapter)
    token_lists = texts(12)
    for token_ids, adapter_logprobs in zip(
        token_lists, logprobs(adapter, token_lists), strict=True
    ):
        own_places = (range(len(token_ids) - 1), token_ids[1:])
        assert_near(
            adapter_logprobs, exact_logprobs(merged, token_ids)[own_places], rtol=1e-5
        )
        assert (
            np.abs(
                adapter_logprobs - exact_logprobs(checkpoint, token_ids)[own_places]
            ).max()
            > 0.1
        )
    starts = prompts(6)
    assert (
        greedy(adapter, starts) == greedy(merged, starts) != greedy(checkpoint, starts)
    )
    bare = save_adapter(tmp_path / "bare", checkpoint, kind, tokenizer=False)
    assert greedy(bare, starts) == greedy(merged, starts)  # by its base's tokenizer


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("prefix", "checkpoint"),
        ("prefix", "gpt2"),
        ("p-tuning", "checkpoint"),
        # Read from the same file as prompt's, which stays
        pytest.param("p-tuning", "gpt2", marks=pytest.mark.long),
        ("prompt", "checkpoint"),
        ("prompt", "gpt2"),
    ],
)
def test_virtual_tokens_stand_before_every_text_and_are_none_of_it(
    request, tmp_path, model, kind
):
    base = request.getfixturevalue(model)
    adapter = save_adapter(tmp_path / kind, base, kind)
    full = [BOS_ID, *[50] * (CONTEXT - VIRTUAL_TOKENS - 1)]
    token_lists = [*texts(8), full]
    for token_ids, adapter_logprobs in zip(
        token_lists, logprobs(adapter, token_lists), strict=True
    ):
        expected = slow_logprobs(base, adapter, token_ids)
        np.testing.assert_allclose(adapter_logprobs, expected, rtol=1e-5, atol=1e-5)
    apart = np.concatenate(logprobs(adapter, token_lists)) - np.concatenate(
        logprobs(base, token_lists)
    )
    assert np.abs(apart).mean() > 0.1
    starts = prompts(5)
    assert greedy(adapter, starts) == [
        slow_greedy(base, adapter, start, 12) for start in starts
    ]


@pytest.mark.parametrize("kind", ["samples", "logprobs"])
def test_virtual_tokens_take_their_place_of_the_context(checkpoint, tmp_path, kind):
    adapter = save_adapter(tmp_path / "prefix", checkpoint, "prefix")
    engine = load_engine(spec(adapter, kind))
    room = CONTEXT - VIRTUAL_TOKENS
    assert engine.info.max_model_len == room
    ask = text_request if kind == "logprobs" else request
    engine.submit(ask(0, [BOS_ID, *[50] * (room - (kind == "samples"))]))
    (answer,) = engine.step()
    assert answer.error is not None
    assert f"context of {room}" in answer.error


def test_weights_cut_short_or_with_a_broken_header_are_named(checkpoint, tmp_path):
    adapter = save_adapter(tmp_path / "lora", checkpoint)
    file = adapter / "adapter_model.safetensors"
    whole = file.read_bytes()
    flipped = bytes([*whole[:9], whole[9] ^ 0xFF, *whole[10:]])
    for broken in (whole[:-100], whole[:4], b"", flipped):
        file.write_bytes(broken)
        with pytest.raises(
            EngineError, match=r"lora' cannot be put on .*; save it again, or corr"
        ):
            logprobs(adapter, texts(1))


def test_memory_holds_the_base_once(checkpoint, tmp_path):
    """The adapter is not merged into the base's weights: they stay what they are."""
    adapter = save_adapter(tmp_path / "lora", checkpoint)
    loaded = dict(transformers.Pretrained(spec(adapter)).model.named_parameters())
    for name, weights in load_file(checkpoint / "model.safetensors").items():
        module_name, _, last = name.rpartition(".")
        loaded_weights = loaded.get(
            name, loaded.get(f"{module_name}.base_layer.{last}")
        )
        assert loaded_weights is not None
        assert torch.equal(loaded_weights, weights)


# Noise on embeddings, against Algorithm 1 of SPV-MIA written with plain transformers.

SIGMA = 0.3


@torch.inference_mode()
def algorithm_1(model: Path, request: Request) -> NDArray[Any]:
    """Log-probabilities of one text whose embeddings are E(id(x)) + z, z ~ N(0, sigma^2 I)."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    matrix = loaded.get_input_embeddings().weight
    context, text = request.context_ids or [], request.text_ids or []
    sigma = abs(request.noise) * (1.0 if request.is_absolute else matrix.numpy().std())
    z = np.random.default_rng(request.seed).normal(
        0.0, sigma, size=(len(text), matrix.shape[1])
    )
    embedded = matrix[torch.tensor([*context, *text])].clone()
    for place in range(len(text)):
        moved = torch.from_numpy(z[place])
        embedded[len(context) + place] += moved if request.noise > 0 else -moved
    logits = loaded(inputs_embeds=embedded[None]).logits[0].log_softmax(-1)
    places = range(len(context) - 1, len(context) + len(text) - 1)
    values: NDArray[Any] = logits[places, text].numpy()
    return values


def noisy(n: int, noise: float = SIGMA) -> list[Request]:
    """Ask for texts of many lengths, after contexts of one or four tokens."""
    return [
        text_request(
            i,
            ids,
            first=1 if i % 2 else min(4, len(ids) - 1),
            noise=noise,
            seed=1000 + i,
        )
        for i, ids in enumerate(texts(n))
    ]


@pytest.mark.parametrize("model", ["checkpoint", "gpt2"])
def test_log_probabilities_are_those_of_algorithm_1(request, model):
    folder = request.getfixturevalue(model)
    pairs = [
        replace(noisy_request, noise=sign * noisy_request.noise)
        for noisy_request in noisy(10)
        for sign in (1, -1)
    ]
    requests = [
        replace(noisy_request, request_id=number)
        for number, noisy_request in enumerate(pairs)
    ]
    engine = load_engine(spec(folder))
    plain = read_logprobs(
        engine, (replace(noisy_request, noise=0.0) for noisy_request in requests)
    )
    # As if the paper's number were a half of this model's spread, else in units of the
    # spread.
    requests = [
        replace(noisy_request, is_absolute=noisy_request.request_id % 3 == 0)
        for noisy_request in requests
    ]
    for noisy_request, noisy_logprobs in zip(
        requests, read_logprobs(engine, requests).values(), strict=True
    ):
        expected = algorithm_1(folder, noisy_request)
        np.testing.assert_allclose(noisy_logprobs, expected, rtol=1e-5, atol=1e-5)
        first = (
            noisy_logprobs[0],
            plain[noisy_request.request_id][0],
        )  # it is given before any noise
        np.testing.assert_allclose(*first, rtol=1e-5, atol=1e-5)
        if len(noisy_logprobs) > 1:  # noise on the last token moves nothing
            assert np.abs(noisy_logprobs - plain[noisy_request.request_id]).max() > 1e-3


def test_noise_of_a_case_by_hand():
    """The first normal numbers of seed 0 are 0.12573 and -0.13210; the entries spread by 1.6583."""
    embed = torch.nn.Embedding.from_pretrained(torch.tensor([[0.0, 0.0], [2.0, 4.0]]))
    noisy = transformers.NoisyEmbeddings(
        SimpleNamespace(get_input_embeddings=lambda: embed)
    )
    one_request = Request(
        request_id=0, kind="logprobs", text_ids=[1], noise=0.05, seed=0
    )
    for is_absolute, expected in (
        (True, [2.0062865, 3.9933948]),
        (False, [2.0104251, 3.9890464]),
    ):
        (noisy_logprobs,) = noisy(
            torch.tensor([[1]]), [replace(one_request, is_absolute=is_absolute)]
        )
        np.testing.assert_allclose(noisy_logprobs, [expected], atol=2e-7)


def test_texts_without_noise_get_the_same_bits_next_to_texts_with_it(checkpoint):
    plain = noisy(12, 0.0)
    noisy_requests = [
        replace(noisy_request, request_id=100 + noisy_request.request_id)
        for noisy_request in noisy(12)
    ]
    mixed = [
        noisy_request
        for pair in zip(plain, noisy_requests, strict=True)
        for noisy_request in pair
    ]
    engine = load_engine(spec(checkpoint))
    expected, logprobs_by_id = (
        read_logprobs(engine, plain),
        read_logprobs(engine, mixed),
    )
    for noisy_request in plain:
        assert np.array_equal(
            logprobs_by_id[noisy_request.request_id], expected[noisy_request.request_id]
        )


@pytest.mark.parametrize("kind", ["lora", "prefix", "p-tuning"])
def test_adapters_hear_the_noise_too(checkpoint, tmp_path, kind):
    """As the same embeddings without the engine: peft's own forward pass takes them."""
    from peft import PeftModel

    adapter = save_adapter(tmp_path / kind, checkpoint, kind)
    base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    matrix = base.get_input_embeddings().weight.detach()
    model = PeftModel.from_pretrained(base, str(adapter)).eval()
    heard = read_logprobs(load_engine(spec(adapter)), noisy(6))
    for noisy_request, logprobs_heard in zip(noisy(6), heard.values(), strict=True):
        context, text = noisy_request.context_ids or [], noisy_request.text_ids or []
        z = np.random.default_rng(noisy_request.seed).standard_normal(
            (len(text), matrix.shape[1])
        )
        embedded = matrix[[*context, *text]].clone()
        embedded[len(context) :] += (
            SIGMA * matrix.numpy().std() * torch.from_numpy(z).float()
        )
        with torch.inference_mode():
            logits = (
                model(inputs_embeds=embedded[None]).logits[0, -len(embedded) :].double()
            )
        own_logprobs = logits.log_softmax(-1)[
            range(len(context) - 1, len(embedded) - 1), text
        ]
        np.testing.assert_allclose(logprobs_heard, own_logprobs, rtol=2e-5, atol=2e-5)


def test_texts_reach_the_engine_with_their_noise_and_pieces_have_their_own(
    checkpoint, tmp_path
):
    tokenizer = Tokenizer.load(str(checkpoint))
    long = " ".join(" ".join(TEXTS).split()[:250])
    with EngineProcess(spec(checkpoint), log=tmp_path / "engine.log") as engine:
        source = LocalSource(engine, tokenizer, strides=True)
        source.submit(
            Request(request_id=0, kind="logprobs", text=long, noise=SIGMA, seed=65536)
        )
        (answer,) = source.results()
    special, _, ids = tokenizer.encode_after("", long)
    room = engine.info.max_model_len - len(special)
    assert len(ids) > room
    for start in range(0, len(ids), room):
        text_asked = text_request(
            0, [*special, *ids[start : start + room]], len(special)
        )
        piece = replace(text_asked, noise=SIGMA, seed=65536 + start)
        logprobs_of_piece: Any = (answer.tokens or {})["logprob"][start : start + room]
        np.testing.assert_allclose(
            logprobs_of_piece, algorithm_1(checkpoint, piece), rtol=1e-5, atol=1e-5
        )


# One engine that answers as several adapters of one base, one after the other.

ASKED_TEXTS = texts(6)
ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {"batch_size": 1},
    "vllm": {"kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 1},
}
"""Texts by themselves: what stands in a batch changes the last digits."""


def one_by_one(model: Path, engine: str = "transformers") -> EngineSpec:
    return replace(spec(model, engine_args=ENGINES[engine]), engine=engine)


def all_said(engine: EngineProcess) -> list[Any]:
    return [
        *read_logprobs(
            engine,
            (text_request(i, token_ids) for i, token_ids in enumerate(ASKED_TEXTS)),
        ).values()
    ]


def alone(engine_spec: EngineSpec, log: Path) -> list[Any]:
    with EngineProcess(engine_spec, log=log) as engine:
        return all_said(engine)


def are_equal(first: list[Any], second: list[Any]) -> bool:
    return all(map(np.array_equal, first, second))


@pytest.fixture
def log(tmp_path):
    return tmp_path / "engine.log"


FEW_KINDS = ("lora", "prefix")  # of weights, and of virtual tokens
MANY_KINDS = [kind for kind in KINDS if kind not in FEW_KINDS]
NO_VLLM = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        pytest.param("vllm", "lora", marks=NO_VLLM),
        *(("transformers", kind) for kind in FEW_KINDS),
        *(
            pytest.param("transformers", kind, marks=pytest.mark.long)
            for kind in MANY_KINDS
        ),
    ],
)
def test_answers_are_those_of_an_engine_each_to_the_bit(
    engine, kind, checkpoint, tmp_path, log
):
    folders = [
        save_adapter(tmp_path / str(seed), checkpoint, kind, seed=seed)
        for seed in (1, 2)
    ]
    specs = [one_by_one(folder, engine) for folder in folders]
    expected = [alone(engine_spec, log) for engine_spec in specs]
    assert not are_equal(*expected)
    with closing(KeptEngine()) as keeper:
        pids: set[int] = set()
        for number in (0, 1, 0):
            assert keeper.serves(specs[number]) == bool(pids)
            with keeper.borrowed(specs[number], log, keep=True) as process:
                assert are_equal(all_said(process), expected[number])
                pids.add(process._process.pid)
    (pid,) = pids
    assert not is_alive(pid)


@pytest.mark.parametrize("kind", [None, "prefix"])
def test_after_log_probabilities_the_same_process_continues_texts(
    kind, checkpoint, tmp_path, log
):
    model = checkpoint
    if kind is not None:
        model = save_adapter(tmp_path / "adapter", checkpoint, kind, seed=1)
    requests = [
        request(number, token_ids) for number, token_ids in enumerate(ASKED_TEXTS)
    ]
    reads, continues = spec(model), spec(model, "samples")
    assert can_turn(reads, continues)
    assert not can_turn(continues, reads)
    assert not can_turn(reads, replace(continues, dtype="float16"))
    with EngineProcess(continues, log=log) as engine:
        expected = outputs(engine, requests)
    with closing(KeptEngine()) as keeper:
        with keeper.borrowed(reads, log, keep=True) as first:
            all_said(first)
        with keeper.borrowed(continues, log, keep=False) as second:
            assert second is first
            assert outputs(second, requests) == expected
            os.kill(second._process.pid, signal.SIGKILL)
            with pytest.raises(EngineError, match="was killed"):
                answers(second, requests)
            second.restart()
            assert outputs(second, requests) == expected


@pytest.fixture
def pair(checkpoint, tmp_path):
    folders = [
        save_adapter(tmp_path / str(seed), checkpoint, seed=seed) for seed in (1, 2)
    ]
    return [one_by_one(folder) for folder in folders]


def test_what_is_no_adapter_of_the_same_kind_starts_an_engine(
    pair, checkpoint, tmp_path
):
    first_spec, second_spec = pair
    assert can_turn(first_spec, second_spec)
    changes: list[dict[str, Any]] = [
        {"dtype": "float16"},
        {"kind": "samples"},
        {"engine": "vllm"},
    ]
    samples, base = replace(first_spec, kind="samples"), one_by_one(checkpoint)
    ia3 = one_by_one(save_adapter(tmp_path / "ia3", checkpoint, "ia3"))
    unlike = [(first_spec, replace(second_spec, **changed)) for changed in changes]
    unlike += [
        (samples, replace(samples, model=second_spec.model)),
        (first_spec, base),
        (base, first_spec),
        (first_spec, ia3),
    ]
    assert not any(can_turn(*spec_pair) for spec_pair in unlike)


def test_an_engine_that_was_turned_and_ends_is_started_as_what_it_was(pair, log):
    first_spec, second_spec = pair
    expected = alone(second_spec, log)
    with closing(KeptEngine()) as keeper:
        with keeper.borrowed(first_spec, log, keep=True) as first:
            pass
        with keeper.borrowed(second_spec, log, keep=True) as engine:
            assert engine is first
            os.kill(engine._process.pid, signal.SIGKILL)
            with pytest.raises(EngineError, match="was killed"):
                all_said(engine)
            engine.restart()
            assert are_equal(all_said(engine), expected)
            os.kill(engine._process.pid, signal.SIGKILL)
        with keeper.borrowed(
            first_spec, log, keep=False
        ) as engine:  # which lives no more
            assert engine is not first
        assert not keeper.serves(second_spec)


def test_a_damaged_adapter_is_named_as_at_a_start(pair, log):
    first_spec, second_spec = pair
    file = Path(second_spec.model, "adapter_model.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    with closing(KeptEngine()) as keeper:
        with keeper.borrowed(first_spec, log, keep=True) as engine:
            pass
        with (
            pytest.raises(EngineError, match=r"the adapter .* cannot be put on"),
            keeper.borrowed(second_spec, log, keep=True),
        ):
            pytest.fail("it was started")
        assert not is_alive(engine._process.pid)
        assert not keeper.serves(first_spec)
