"""Servers with habits of their own, audited whole: the same figures, or a sentence that helps."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mia_batch import Run
from mia_batch.cli.show import _missing
from mia_batch.errors import EngineError, SettingsError
from tests.hostile_server import (
    MODEL,
    Asked,
    HostileServer,
    Reply,
    StreamOnly,
    chunks_of,
    event_bytes,
    failure,
)
from tests.runs import audit
from tests.texts import king_james_passages

N_TEXTS = 16
PLACE_CHARS = 30  # by which the server finds where a prompt stands in a text


class Reciter:
    """Knows every second text by heart; a habit changes how it says so."""

    def __init__(self) -> None:
        self.texts = king_james_passages(64, n=N_TEXTS)

    def __call__(self, asked: Asked) -> Reply:
        if asked.method == "GET":
            return Reply(content={"data": [{"id": MODEL, "max_model_len": 2048}]})
        n_tokens = (
            asked.fields.get("max_tokens") or asked.fields["max_completion_tokens"]
        )
        words = self.continuation(asked.prompt).split(" ")[: n_tokens + 1]
        numbers = range(asked.fields.get("n", 1))
        choices = [self.choice(asked, number, " ".join(words)) for number in numbers]
        usage = {
            "prompt_tokens": len(asked.prompt.split()),
            "completion_tokens": n_tokens,
        }
        return Reply(content={"model": MODEL, "choices": choices, "usage": usage})

    def continuation(self, prompt: str) -> str:
        place = prompt[-PLACE_CHARS:]
        for text in self.texts[::2]:
            if place in text:
                return text.partition(place)[2]
        return " nothing at all of that kind"

    def choice(self, asked: Asked, number: int, text: str) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": number, "finish_reason": "length"}
        if asked.path.partition("?")[0].endswith("/chat/completions"):
            return choice | {"message": {"role": "assistant", "content": text}}
        return choice | {"text": text}


class EmptyFinish(Reciter):
    def choice(self, asked, number, text):
        return super().choice(asked, number, text) | {"finish_reason": ""}


class NumberedFromOne(Reciter):
    def choice(self, asked, number, text):
        return super().choice(asked, number + 1, text)


class OtherLimit(Reciter):
    def __call__(self, asked):
        if "max_tokens" in asked.fields:
            return failure(
                400, "max_tokens is not supported; use max_completion_tokens"
            )
        return super().__call__(asked)


class OnlyChat(Reciter):
    def __call__(self, asked):
        is_there = asked.path == "/v1/chat/completions"
        return super().__call__(asked) if is_there else failure(404, "Not Found")


class Azure(Reciter):
    def __call__(self, asked):
        is_there = asked.path.endswith(
            "/deployments/gpt/chat/completions?api-version=2024-10-21"
        )
        if not (is_there and asked.headers.get("api-key") == "secret"):
            return failure(404, "Resource not found")
        return super().__call__(asked)


SAFE = {"filtered": False, "severity": "safe"}
FILTERS = {"hate": SAFE, "violence": {"filtered": True, "severity": "high"}}


class AzureFilter(Azure):
    """Fails once, and filters the prompts of two texts: one with 400, one with no choices."""

    def __init__(self) -> None:
        super().__init__()
        self.is_well = False

    def __call__(self, asked):
        if self.is_about(asked, 5) and not self.is_well:
            self.is_well = True
            return failure(503, "busy")
        if self.is_about(asked, 3):
            error = {
                "message": "The response was filtered",
                "type": None,
                "param": "prompt",
                "code": "content_filter",
                "status": 400,
                "innererror": {
                    "code": "ResponsibleAIPolicyViolation",
                    "content_filter_result": FILTERS,
                },
            }
            return Reply(status=400, content={"error": error})
        if self.is_about(asked, 4):
            results = [{"prompt_index": 0, "content_filter_results": FILTERS}]
            return Reply(content={"choices": [], "prompt_filter_results": results})
        return super().__call__(asked)

    def is_about(self, asked: Asked, number: int) -> bool:
        return (asked.prompt or "nothing")[-PLACE_CHARS:] in self.texts[number]


class OneEvent(Reciter):
    """Sends the whole answer in one event, which nothing follows."""

    def __call__(self, asked):
        reply = super().__call__(asked)
        if asked.method == "GET":
            return reply
        return Reply(content=b"data: " + json.dumps(reply.content).encode() + b"\n\n")


class Streaming(Reciter):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self._stream = StreamOnly(super().__call__, **how)

    def __call__(self, asked):
        return self._stream(asked)


class HalfAStream(Reciter):
    """Ends each stream before the answer's end, in silence."""

    def __call__(self, asked):
        reply = super().__call__(asked)
        if asked.method == "GET":
            return reply
        chunks = chunks_of(reply.content)
        body = event_bytes(chunks[: len(chunks) // 2])
        return Reply(pieces=[body.removesuffix(b"data: [DONE]\n\n")])


class Cutting(Reciter):
    """Reads the last words of a prompt, as Ollama does; every fourth text is too long for it."""

    limit = 300

    def __init__(self) -> None:
        super().__init__()
        passages = king_james_passages(700, n=N_TEXTS)
        self.texts = [
            passage if number % 4 == 3 else " ".join(passage.split()[:200])
            for number, passage in enumerate(passages)
        ]

    def __call__(self, asked):
        reply = super().__call__(asked)
        if asked.method == "POST":
            usage = reply.content["usage"]
            usage["prompt_tokens"] = min(usage["prompt_tokens"], self.limit)
        return reply


class RefusingPoints(Reciter):
    """Refuses the first points of some texts, each always: by text how many."""

    def __init__(self, points: dict[int, int], status: int) -> None:
        super().__init__()
        self.points = points
        self.status = status
        self.refused: dict[int, set[str]] = {number: set() for number in points}

    def __call__(self, asked):
        for number, prompts in self.refused.items():
            is_of_text = self.texts[number].startswith(asked.prompt or "nothing")
            if is_of_text and not asked.is_probe:
                if len(prompts) < self.points[number]:
                    prompts.add(asked.prompt)
                if asked.prompt in prompts:
                    return failure(self.status, "this prompt is not allowed")
        return super().__call__(asked)


class Thinking(Reciter):
    def choice(self, asked, number, text):
        message = {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Let me think",
        }
        return {"index": number, "finish_reason": "length", "message": message}


def describe_audit(
    reciter: Reciter,
    folder: Path,
    server: HostileServer,
    *,
    address: str = "{root}/v1",
    **settings: Any,
) -> dict[str, Any]:
    corpus = {"text": reciter.texts, "label": [1, 0] * (N_TEXTS // 2)}
    pl.DataFrame(corpus).write_parquet(folder / "corpus.parquet")
    usual = {
        "input": str(folder / "corpus.parquet"),
        "model": MODEL,
        "base_url": address.format(root=server.url.removesuffix("/v1")),
        "preset": "matched",
        "samples": 1,
        "report": False,
        "out": str(folder / "run"),
    }
    return usual | settings


def audit_server(reciter: Reciter, folder: Path, **settings: Any) -> Run:
    with HostileServer(reciter) as server:
        return audit(**describe_audit(reciter, folder, server, **settings))


@pytest.mark.parametrize(
    ("reciter", "settings"),
    [
        (Reciter(), {}),
        (EmptyFinish(), {}),
        (NumberedFromOne(), {}),
        (OtherLimit(), {"chat": True}),
        (OnlyChat(), {"chat": True, "address": "{root}/v1/chat/completions"}),
        (
            Azure(),
            {
                "chat": True,
                "address": "{root}/openai/deployments/gpt?api-version=2024-10-21",
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_habit_changes_no_score(reciter, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    metrics = audit_server(reciter, tmp_path, **settings)["metrics"]
    auc = metrics.filter(attack="samia_matched_v1", metric="roc_auc", slice="all")
    assert auc["value"].to_list() == [1.0]


@pytest.mark.parametrize("chat", [False, True])
def test_answers_from_a_stream_have_the_scores_of_whole_ones(chat, tmp_path):
    settings = {"chat": chat, "samples": 2}
    reciters = {
        "whole": Reciter(),
        "one event": OneEvent(),
        "chunks": Streaming(),
        "lines that end in CRLF": Streaming(line_end="\r\n", size=7),
    }
    runs = {}
    for name, reciter in reciters.items():
        folder = tmp_path / name
        folder.mkdir()
        runs[name] = audit_server(reciter, folder, **settings)
    whole = runs.pop("whole")
    kept = ("candidate", "n_tokens", "finish_reason", "answer", "reason")
    key = ("target_id", "view_index", "sample_index")
    assert whole["scores"]["samia_matched_v1"].max() == 1.0
    for run in runs.values():
        assert run["scores"].equals(whole["scores"])
        samples = run["samples"].sort(key).select(key + kept)
        assert samples.equals(whole["samples"].sort(key).select(key + kept))


N_POINTS = 12
OF_POINTS = {"preset": "default", "probes": N_POINTS, "max_failed": 0.2}


@pytest.fixture(scope="module")
def scores_of_all_points(tmp_path_factory):
    return audit_server(Reciter(), tmp_path_factory.mktemp("whole"), **OF_POINTS)[
        "scores"
    ]


@pytest.mark.parametrize("status", [400, 403])
def test_a_point_that_is_refused_costs_itself_and_not_its_text(
    status, scores_of_all_points, tmp_path
):
    points = {2: 1, 3: 1, 4: 2, 5: 7}  # of 12, each text a member or not in turn
    run = audit_server(RefusingPoints(points, status), tmp_path, **OF_POINTS)
    texts = run["targets"].with_row_index("number").select("target_id", "number")
    scores = run["scores"].join(texts, on="target_id").sort("number")
    expected = [N_POINTS - points.get(number, 0) for number in range(N_TEXTS)]
    assert scores["n_samples"].to_list() == expected
    # A share of points says the same of the others
    name = "probe_first_word_v1"
    before = scores_of_all_points.join(texts, on="target_id")
    values = before.sort("number")[name].to_list()
    values[5] = None
    assert scores[name].to_list() == values
    assert values[:5] == [1.0, 0.0, 1.0, 0.0, 1.0]
    (reason,) = run["unscored"].filter(attack=name)["reason"]
    assert reason.startswith("too few answers; the first: the endpoint refused")
    sentence = f"2 texts are scored without 2 of {2 * N_POINTS} answers; mostly: the"
    assert any(line.startswith(sentence) for line in _missing(run))
    failed = run.manifest.failed
    assert (failed["targets"], failed["again"]) == (2, 4)
    incomplete = failed["incomplete"]
    assert incomplete.pop("reasons").keys() == failed["reasons"].keys()
    assert incomplete == {"targets": 2, "missing": 2, "asked": 2 * N_POINTS}


def test_a_text_that_the_server_cuts_in_silence_has_a_reason_and_no_score(tmp_path):
    run = audit_server(Cutting(), tmp_path, max_failed=0.5)
    scores = run["scores"].sort("document_id")["samia_matched_v1"]
    cut = run["samples"].filter(pl.col("reason").is_not_null())
    assert cut["target_id"].n_unique() == scores.null_count() == N_TEXTS // 4
    assert scores.max() == 1.0
    (reason,) = cut["reason"].unique()
    assert "it reads at most 300 tokens of a prompt and cuts the rest" in reason
    assert cut["candidate"].null_count() == cut.height
    assert (run.manifest.failed["targets"], run.manifest.failed["again"]) == (4, 4)


def test_a_prompt_that_azure_filters_is_refused_by_name_and_not_asked_again(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    reciter = AzureFilter()
    with HostileServer(reciter) as server:
        settings = describe_audit(
            reciter,
            tmp_path,
            server,
            address="{root}/openai/deployments/gpt?api-version=2024-10-21",
            chat=True,
            samples=2,
            max_failed=0.5,
        )
        run = audit(**settings)
        n_asked = len(server.asked)
        audit(**settings, retry_failed=True)
        assert len(server.asked) == n_asked
        queries = {
            asked.path.partition("?")[2] for asked in server.asked + server.probes
        }
        methods = {asked.method for asked in server.probes}
        n_filtered = sum(
            reciter.is_about(asked, 3) or reciter.is_about(asked, 4)
            for asked in server.asked
        )
    assert queries == {"api-version=2024-10-21"}
    assert methods == {"GET", "POST"}  # the list of models, too
    rows = run["samples"].filter(answer="filtered")
    assert sorted(rows["reason"]) == [
        *[
            "the provider filtered the prompt (content_filter,"
            " ResponsibleAIPolicyViolation, violence)"
        ]
        * 2,
        *["the provider filtered the prompt (violence)"] * 2,
    ]
    assert rows["candidate"].null_count() == 4
    assert (run.manifest.failed["targets"], run.manifest.failed["again"]) == (2, 0)
    assert run["scores"]["samia_matched_v1"].null_count() == 2
    assert n_filtered == 2  # though two samples of each text are wanted


def test_a_proxy_that_is_not_for_this_host_is_not_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    metrics = audit_server(Reciter(), tmp_path)["metrics"]
    assert (
        metrics.filter(attack="samia_matched_v1", metric="roc_auc")["value"].max()
        == 1.0
    )


@pytest.mark.parametrize(
    ("reciter", "settings", "error", "sentence"),
    [
        (
            HalfAStream(),
            {},
            EngineError,
            "it is a stream of events that ends.*let the server.* answer whole",
        ),
        (
            HalfAStream(),
            {"chat": True},
            EngineError,
            "it is a stream of events that ends before its answer does",
        ),
        (
            OnlyChat(),
            {"chat": True, "address": "{root}"},
            SettingsError,
            (
                "has nothing at that address .*check base_url=, which usually ends"
                " with /v1"
            ),
        ),
        (Thinking(), {"chat": True}, EngineError, "on thoughts and gives no answer"),
    ],
)
def test_a_habit_that_leaves_no_answer_is_named(
    reciter, settings, error, sentence, tmp_path
):
    with pytest.raises(error, match=sentence):
        audit_server(reciter, tmp_path, **settings)
    assert not (tmp_path / "run" / "scores.parquet").exists()
