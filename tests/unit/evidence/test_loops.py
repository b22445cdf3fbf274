"""A model that only loops: what it is asked, and what that costs, here and at an endpoint."""

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import polars as pl
import pytest

from mia_batch.evidence.collect import LocalExecutor, SampleTask
from mia_batch.evidence.engines.transformers import TransformersSamples
from mia_batch.evidence.parts import Block
from mia_batch.evidence.process import LocalSource
from mia_batch.evidence.request import AnswerSource, Budget, EngineSpec
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import estimate_tokens
from mia_batch.views import TARGET, View
from tests.checkpoints import TEXTS, save_looping_checkpoint
from tests.hostile_server import Asked, HostileServer, Reply
from tests.unit.evidence.endpoint.asking import opened

LONG = 131_072
N = 4
WORDS = [text.split() for text in TEXTS[:N]]
UNITS = pl.DataFrame(
    {
        "target_id": [f"{row:032x}" for row in range(N)],
        "view_index": [0] * N,
        "context": [" ".join(words[:8]) for words in WORDS],
        "text": [" " + " ".join(words[8:40]) for words in WORDS],
    }
)


def sampled(
    source: AnswerSource, measure: Callable[..., Any], *, greedy: bool
) -> tuple[pl.DataFrame, int]:
    """One sample of each unit, and how many tokens the observer has seen."""
    view = View(model=TARGET, name="continuation", make=None, greedy=greedy)
    budget = Budget(scope="matched", max_length=1024, max_model_len=LONG)
    task = SampleTask(
        view=view, measure=measure, budget=budget, words="whitespace", run_seed=0
    )
    block = Block(index=0, first=0, last=1, attempt=0, label="", units=UNITS)
    n_tokens_seen: list[int] = []
    executor = LocalExecutor(source, listen=getattr(source, "listen", lambda _: None))
    ((_, rows),) = executor.collect(
        task,
        [block],
        lambda _label, _units, tokens, _passes: n_tokens_seen.append(tokens),
        lambda _, r: r,
    )
    return rows, sum(n_tokens_seen)


class Direct:
    """An engine in this process, which its source asks as it asks one in another."""

    def __init__(self, engine: TransformersSamples, spec: EngineSpec) -> None:
        self.engine = engine
        self.info = engine.info
        self.spec = spec
        self.asked: list[int] = []
        self.on_tokens: Callable[[int], None] = lambda _: None

    def submit(self, *requests):
        self.asked += [len(request.context_ids) for request in requests]
        for request in requests:
            self.engine.submit(request)

    def results(self, timeout=None):
        self.engine.tell = self.on_tokens
        return self.engine.step()


@pytest.fixture(scope="module")
def looping(tmp_path_factory):
    return save_looping_checkpoint(tmp_path_factory.mktemp("looping"), LONG)


def test_in_process_a_greedy_loop_ends_and_a_drawn_answer_has_four_times_the_tokens(
    looping,
):
    spec = EngineSpec(engine="transformers", kind="samples", model=str(looping))
    tokenizer = Tokenizer.load(str(looping))
    lengths = tokenizer.count_tokens(UNITS["text"].to_list())
    with closing(TransformersSamples(spec)) as engine:
        direct: Any = Direct(engine, spec)
        greedy, n_greedy = sampled(
            LocalSource(direct, tokenizer), tokenizer.measure, greedy=True
        )
        assert len(direct.asked) == N
        drawn_samples, n_drawn = sampled(
            LocalSource(direct, tokenizer), tokenizer.measure, greedy=False
        )
    assert direct.info.max_model_len == LONG
    assert greedy["n_tokens"].to_list() == [32] * N
    assert greedy["candidate"].to_list() == ["\n " * 16] * N
    assert n_greedy == 32 * N
    assert greedy["finish_reason"].to_list() == ["repeats"] * N
    assert drawn_samples["n_tokens"].to_list() == [4 * n for n in lengths]
    assert drawn_samples["candidate"].to_list() == ["\n " * (2 * n) for n in lengths]
    assert drawn_samples["finish_reason"].to_list() == ["length"] * N
    assert n_drawn == 4 * sum(lengths)  # nothing is decoded twice
    assert greedy["short"].all()
    assert drawn_samples["short"].all()
    assert len(direct.asked) == N + 3 * N


class Looping:
    """An endpoint that says lines of a few signs, a token each, as many as it is asked for."""

    def __init__(self, line: str = "\n--\n ") -> None:
        self.line = line
        self.prompts: list[str] = []
        self.paid = 0

    def __call__(self, request: Asked) -> Reply:
        if request.method == "GET":
            return Reply(content={"data": [{"id": "tiny", "max_model_len": LONG}]})
        n_tokens = request.fields["max_tokens"]
        text = (self.line * n_tokens)[: 4 * n_tokens]
        if not request.is_probe:
            self.prompts.append(request.prompt)
            self.paid += n_tokens
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "text": text}
        if request.path.endswith("/chat/completions"):
            choice["message"] = {"role": "assistant", "content": choice.pop("text")}
        usage = {"prompt_tokens": 1, "completion_tokens": n_tokens}
        return Reply(content={"choices": [choice], "usage": usage})


@pytest.mark.parametrize("chat", [False, True])
def test_at_an_endpoint_a_greedy_loop_is_not_asked_again(tmp_path, chat):
    model = Looping()
    with (
        HostileServer(model) as server,
        opened(server, tmp_path, chat=chat) as endpoint,
    ):
        rows, n_tokens = sampled(endpoint, estimate_tokens, greedy=True)
    assert len(model.prompts) == N
    assert n_tokens == model.paid == rows["n_tokens"].sum()
    assert rows["finish_reason"].to_list() == ["repeats"] * N
    assert set(rows["candidate"]) == {(model.line * 40)[:128]}


LONG_WORD = " " + "w" * 30 + "\n"
"""Eight tokens, so that four times the reference's tokens are too few for its words."""


def test_at_an_endpoint_an_answer_goes_on_from_its_last_whole_word(tmp_path):
    model = Looping(LONG_WORD)
    longest = [
        4 * measured.reference_tokens
        for measured in estimate_tokens([""] * N, [*UNITS["text"]])
    ]
    with HostileServer(model) as server, opened(server, tmp_path) as endpoint:
        rows, n_tokens = sampled(endpoint, estimate_tokens, greedy=False)
        n_asked = len(model.prompts)
        again, n_again = sampled(endpoint, estimate_tokens, greedy=False)
    assert again.equals(rows)  # from the journal
    assert n_asked == len(model.prompts) == 3 * N
    assert rows["n_tokens"].to_list() == longest
    assert n_tokens == n_again == model.paid == sum(longest)
    contexts = UNITS["context"].to_list()
    further = [measured for measured in model.prompts if measured not in contexts]
    assert len(further) == 2 * N
    for prompt in further:
        (context,) = [measured for measured in contexts if prompt.startswith(measured)]
        answer = prompt.removeprefix(context)
        assert set(answer.split()) == {LONG_WORD.strip()}
        assert answer.endswith("w")


def test_a_chat_is_asked_anew_and_at_most_three_times(tmp_path):
    model = Looping(LONG_WORD)
    with (
        HostileServer(model) as server,
        opened(server, tmp_path, chat=True) as endpoint,
    ):
        rows, n_tokens = sampled(endpoint, estimate_tokens, greedy=False)
    assert [*Counter(model.prompts).values()] == [3] * N
    assert n_tokens == model.paid
    assert rows["finish_reason"].to_list() == ["length"] * N
