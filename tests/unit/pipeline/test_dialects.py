"""A perfect memoriser behind every dialect of endpoints: scores as behind a plain one."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mia_batch import Run
from mia_batch.errors import EngineError, SettingsError
from tests import runs
from tests.hostile_server import (
    EVERYTHING,
    MODEL,
    Asked,
    HostileServer,
    Reply,
    TinyModel,
    failure,
)
from tests.runs import found, said_of
from tests.unit.pipeline.conftest import Listener

_dice = random.Random(1)
TEXTS = [" ".join(f"w{_dice.randrange(500)}" for _ in range(60)) for _ in range(24)]
MEMBERS = TEXTS[:12]
FEW_TEXTS = TEXTS[8:16]
"""Too few of each class for a blind baseline, which has nothing to do with the endpoint."""
SCORE = "samia_matched_v1"
THOUGHT = 300  # tokens of a thought


class Memoriser(TinyModel):
    """Continues members with the true words, all else with words of its own."""

    def text(self, prompt: Any, seed: int) -> str:
        prompted = str(prompt).rpartition("\n\n")[2]
        for text in MEMBERS:
            _, matched_text, rest = text.partition(prompted)
            if matched_text and len(prompted) >= 32:
                return rest
        return super().text(prompt, seed)


@dataclass(kw_only=True)
class Dialect:
    """An endpoint with its own way of being asked and of answering; ``model`` knows the texts."""

    refuse: Callable[[dict[str, Any]], str | None] = lambda _: None
    defaults: dict[str, Any] = field(default_factory=dict)
    say: Callable[[dict[str, Any], Asked], None] = lambda _choice, _request: None
    count_usage: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: {}
    model: Callable[[Asked], Reply] = field(default_factory=Memoriser)

    def __call__(self, request: Asked) -> Reply:
        if request.method == "GET":
            return self.model(request)
        if (refusal := self.refuse(request.fields)) is not None:
            return failure(400, refusal)
        request = replace(request, fields=self.defaults | request.fields)
        reply = self.model(request)
        for choice in reply.content["choices"]:
            self.say(choice, request)
        reply.content["usage"] |= self.count_usage(request.fields)
        return reply


def unknown(*names: str) -> Callable[[dict[str, Any]], str | None]:
    return lambda fields: next(
        (f"unknown field {name}" for name in names if name in fields), None
    )


def only(*names: str, **values: Any) -> Callable[[dict[str, Any]], str | None]:
    """Take these fields alone, and of some one value alone."""

    def refuse(fields: dict[str, Any]) -> str | None:
        extra = fields.keys() - {*names, *values, "model", "prompt", "messages"}
        other_fields = [
            name for name in values if fields.get(name, values[name]) != values[name]
        ]
        return "extra fields not permitted" if extra or other_fields else None

    return refuse


def penalised(choice: dict[str, Any], request: Asked) -> None:
    if request.fields.get("repetition_penalty") == 1.3:
        choice["text"] = " never the same word"


def repeated(choice: dict[str, Any], request: Asked) -> None:
    choice["text"] = request.prompt + choice["text"]


def now_and_then(choice: dict[str, Any], request: Asked) -> None:
    if request.fields.get("seed", 0) % 2 and not request.is_probe:
        repeated(choice, request)


def finishing(**finish: Any) -> Callable[[dict[str, Any], Asked], None]:
    return lambda choice, _: choice.update(finish)


def in_parts(choice: dict[str, Any], _: Asked) -> None:
    text = choice["message"]["content"]
    choice["message"]["content"] = [{"type": "text", "text": text}]
    choice["finish_reason"] = "end_turn"


def aloud(choice: dict[str, Any], _: Asked) -> None:
    text = choice["message"]["content"]
    choice["message"]["content"] = f"<think>\nThe words are known.\n</think>\n\n{text}"


def is_quiet(fields: dict[str, Any]) -> bool:
    template = fields.get("chat_template_kwargs", {})
    return (
        fields.get("reasoning_effort") == "minimal"
        or template.get("enable_thinking") is False
    )


def thinking_first(choice: dict[str, Any], request: Asked) -> None:
    limit = request.fields.get("max_completion_tokens") or request.fields["max_tokens"]
    if not is_quiet(request.fields) and limit <= THOUGHT:
        choice["message"]["content"] = ""
        choice["finish_reason"] = "length"


def thought(fields: dict[str, Any]) -> dict[str, Any]:
    n = 0 if is_quiet(fields) else THOUGHT
    return {"completion_tokens_details": {"reasoning_tokens": n}}


def reasoning_model(fields: dict[str, Any]) -> str | None:
    fields_taken = ("max_completion_tokens", "reasoning_effort", "seed", "n", "stream")
    if fields.get("reasoning_effort") == "none":
        return (
            "Unsupported value: 'reasoning_effort' does not support 'none' with this"
            " model."
        )
    return only(*fields_taken, temperature=1.0, top_p=1.0)(fields)


def exclusive(fields: dict[str, Any]) -> str | None:
    if {"temperature", "top_p"} <= fields.keys():
        return "`temperature` and `top_p` cannot both be specified for this model"
    return unknown("n", "repetition_penalty", "min_p", "top_k")(fields)


COMPLETIONS = {
    "max_completion_tokens": Dialect(refuse=unknown("max_tokens")),
    "refuses fields by name": Dialect(
        refuse=unknown("min_p", "repetition_penalty", "stream")
    ),
    "refuses whatever it does not know": Dialect(
        refuse=only("max_tokens", "temperature", "top_p", "n", "seed")
    ),
    "temperature 1 alone": Dialect(refuse=lambda f: only(*f, temperature=1.0)(f)),
    "a penalty by default": Dialect(
        defaults={"repetition_penalty": 1.3}, say=penalised
    ),
    "prompt before the answer": Dialect(say=repeated),
    "no finish reason": Dialect(say=finishing(finish_reason=None)),
    "empty finish reason": Dialect(say=finishing(finish_reason="")),
    "MAX_TOKENS": Dialect(say=finishing(finish_reason="MAX_TOKENS")),
    "STOP": Dialect(say=finishing(finish_reason="STOP")),
    "eos": Dialect(say=finishing(finish_reason="eos")),
    "index from 1": Dialect(
        say=lambda choice, _: choice.update(index=choice["index"] + 1)
    ),
}
CHATS = {
    "a reasoning model": Dialect(
        refuse=reasoning_model, say=thinking_first, count_usage=thought
    ),
    "a gateway to a model that takes one of two": Dialect(
        refuse=exclusive, say=in_parts
    ),
    "a template that thinks": Dialect(
        refuse=unknown("reasoning_effort"), say=thinking_first, count_usage=thought
    ),
    "thoughts that cannot be kept off": Dialect(
        refuse=unknown("reasoning_effort", "chat_template_kwargs", "thinking"),
        say=thinking_first,
        count_usage=thought,
    ),
    "thoughts in the text": Dialect(say=aloud),
}


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    def run(
        answer: Callable[[Asked], Reply],
        texts: list[str] = TEXTS,
        *,
        labelled: bool = False,
        **changed: Any,
    ) -> Run:
        folder = tmp_path_factory.mktemp("dialect")
        member = [text in MEMBERS if labelled else None for text in texts]
        corpus = pl.DataFrame(
            {"text": texts, "member": pl.Series(member, dtype=pl.Boolean)}
        )
        with HostileServer(answer) as server:
            usual: dict[str, Any] = {
                "input": runs.written(folder, corpus),
                "model": MODEL,
                "base_url": server.url,
                "preset": "matched",
                "samples": 2,
                "out": str(folder / "run"),
                "report": False,
            }
            return runs.audit(**usual | changed)

    return run


@pytest.fixture(scope="module")
def plain(audit):
    return {
        chat: audit(Memoriser(), FEW_TEXTS, labelled=True, chat=chat)["scores"]
        for chat in (False, True)
    }


def auc(run: Run) -> float:
    figures = run["metrics"].filter(metric="roc_auc", attack=SCORE, slice="all")
    return float(figures["value"][0])


@pytest.mark.parametrize("name", [*COMPLETIONS, *CHATS])
def test_the_scores_are_those_behind_a_plain_server(audit, plain, name):
    chat = name in CHATS
    run = audit(
        (CHATS if chat else COMPLETIONS)[name], FEW_TEXTS, labelled=True, chat=chat
    )
    assert auc(run) == 1.0
    assert run["scores"].drop("n_short").equals(plain[chat].drop("n_short"))


def about(*texts: str) -> Callable[[Asked], bool]:
    return lambda request: any(
        request.prompt.rpartition("\n\n")[2] in text for text in texts
    )


def refusing(
    is_refused: Callable[[Asked], bool],
    text: str = "I'm sorry, but I can't help with that.",
):
    """A chat that refuses some prompts."""

    def say(choice: dict[str, Any], request: Asked) -> None:
        if is_refused(request) and not request.is_probe:
            choice["message"]["content"] = text

    return Dialect(say=say)


def filtering(is_filtered: Callable[[Asked], bool]):
    """A server that filters answers about some prompts."""

    def say(choice: dict[str, Any], request: Asked) -> None:
        if is_filtered(request) and not request.is_probe:
            details = {"protected_material_text": {"filtered": True}}
            choice |= {"text": "", "finish_reason": "content_filter"}
            choice |= {"content_filter_results": details}

    return Dialect(say=say)


def never_ending(choice: dict[str, Any], _: Asked) -> None:
    choice["message"] |= {"content": None, "reasoning_content": "It might be that"}


NO_USE = (
    r"(?s)48 of 48 answers of the target model are of no use.*48 times: {}.*have no"
    r" meaning"
)


@pytest.mark.parametrize(
    ("server", "changed", "error", "message"),
    [
        (refusing(lambda _: True), {}, EngineError, NO_USE.format("the model ref")),
        (
            refusing(lambda _: True, ""),
            {},
            EngineError,
            NO_USE.format("the answer is empty"),
        ),
        (
            refusing(lambda _: True, "<think> What can this be? It might"),
            {},
            EngineError,
            NO_USE.format("the model spent its tokens on thoughts"),
        ),
        (
            refusing(lambda _: True, "Please tell me more about the book."),
            {},
            EngineError,
            "24 of 24 prompts .* are answered by 'Please tell me more .*' alike",
        ),
        (
            Dialect(say=never_ending),
            {},
            EngineError,
            "spends 4,096 tokens and more on thoughts",
        ),
        (
            COMPLETIONS["temperature 1 alone"],
            {"temperature": 0.7, "chat": False},
            SettingsError,
            r"refuses temperature 0\.7 .*leave temperature= at 1",
        ),
    ],
    ids=[
        "refusal",
        "empty",
        "thinking",
        "the same answer",
        "never ends",
        "temperature",
    ],
)
def test_answers_that_are_mostly_of_no_use_and_settings_that_are_refused_end_the_run(
    audit, server, changed, error, message
):
    with pytest.raises(error, match=message):
        audit(server, **{"chat": True} | changed)


def test_classes_of_answers_are_counted_and_said(audit):
    run = audit(refusing(about(*TEXTS[::4])), labelled=True, chat=True, max_failed=0.5)
    assert found(run, "answers") == {"text": 36, "refusal": 12, "cut": 18}
    assert run["samples"].filter(answer="refusal")["candidate"].null_count() == 12
    assert run["scores"][SCORE].null_count() == 6
    assert auc(run) == 1.0
    assert (run.manifest.failed["targets"], run.manifest.failed["again"]) == (6, 0)
    sentence_start = (
        "Of 48 samples (continuation): 36 texts, 12 refusals; 18 were cut before the"
        " reference's"
    )
    assert f"{sentence_start} length." in said_of(run)


def test_a_filter_that_hits_members_more_often_is_a_finding(audit):
    run = audit(filtering(about(*MEMBERS[:10])), labelled=True)
    filtered = (
        run["findings"]
        .filter(check="held_back", statistic="filtered")
        .row(0, named=True)
    )
    assert (filtered["subject"], filtered["value"]) == (
        "members",
        pytest.approx(10 / 12),
    )
    assert filtered["p_value"] < 0.001
    sentence_start = (
        "The provider filtered answers about members and non-members unequally"
    )
    assert any(line.startswith(sentence_start) for line in said_of(run))
    reasons = run["samples"]["reason"].drop_nulls().unique().to_list()
    assert reasons == [
        "the provider filtered the answer (content_filter, protected_material_text)"
    ]
    alike = audit(filtering(about(*TEXTS[::4])), labelled=True, max_failed=0.5)
    assert alike["findings"].filter(check="held_back").is_empty()
    assert found(alike, "answers")["filtered"] == 12


def test_a_prompt_that_is_repeated_at_times_is_taken_off(audit):
    run = audit(Dialect(say=now_and_then), labelled=True, max_failed=0.5)
    kinds = found(run, "answers")
    # Half are asked anew for what is missing, and the second answer does not repeat it.
    assert (kinds["prompt_removed"], kinds["text"], auc(run)) == (12, 36, 1.0)


def test_a_run_goes_on_where_the_probe_meets_repeated_prompts_later(audit):
    """What a model draws by chance while it is probed is no setting of its server."""
    has_sampled = False

    def repeat_later(choice: dict[str, Any], asked: Asked) -> None:
        nonlocal has_sampled
        has_sampled |= not asked.is_probe
        if asked.is_probe and has_sampled:
            repeated(choice, asked)

    run = audit(Dialect(say=repeat_later), preset=None, samples=None)
    record = json.loads((run.folder / "run.json").read_bytes())["models"]["target"]
    assert record["endpoint prompt before the answer"] is False
    assert run.passages.height == 12


def test_what_cannot_be_neutralised_and_another_model_that_answers_are_said(audit):
    listener = Listener()
    ignoring = Memoriser(honours=EVERYTHING - {"repetition_penalty"})

    def inattentive_model(request: Asked) -> Reply:
        reply = ignoring(request)
        return replace(
            reply, content={**reply.content, "model": "a-model-loaded-before"}
        )

    run = audit(
        Dialect(model=inattentive_model, refuse=unknown("min_p")), observer=listener
    )
    rows = run["findings"].filter(check="endpoint").select("subject", "verdict")
    honours = dict(rows.iter_rows())
    names = ("repetition_penalty", "min_p", "presence_penalty")
    assert [honours[name] for name in names] == ["ignored", "refused", "honoured"]
    for line in (
        (
            "its own values of repetition_penalty, min_p may act: it ignores or refuses"
            " neutral ones"
        ),
        "its answers say that a-model-loaded-before wrote them: check model=",
    ):
        assert line in listener.sentences
    unsure = (
        "The endpoint accepts no neutral value of repetition_penalty, min_p. Its own"
        " value"
    )
    assert any(line.startswith(unsure) for line in said_of(run))


def test_a_key_in_an_answer_is_taken_out(audit):
    def say(choice: dict[str, Any], request: Asked) -> None:
        choice["text"] += " " + request.headers["authorization"]

    run = audit(Dialect(say=say), FEW_TEXTS)
    assert run["samples"]["candidate"].str.ends_with(" Bearer [key]").all()
    for path in filter(Path.is_file, run.folder.rglob("*")):
        assert b"sk-never" not in path.read_bytes()
