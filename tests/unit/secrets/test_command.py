"""The command: models here and at endpoints, what tables hold and what no file does."""

import json
import math
from dataclasses import replace
from random import Random

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.errors import (
    CorpusError,
    MiaBatchError,
    RunFolderError,
    SettingsError,
)
from mia_batch.extras.secrets.asking import Answers
from mia_batch.extras.secrets.canaries import draw_canaries
from mia_batch.extras.secrets.command import secrets
from mia_batch.extras.secrets.questions import (
    NEUTRAL,
    Design,
    Secret,
    build_questions,
    detect_secrets,
    hash_texts,
    read_secrets,
    split_context,
)
from mia_batch.extras.secrets.results import build_rows, build_table, conclusions
from mia_batch.models.chat import ChatTemplate
from mia_batch.pipeline import Run
from mia_batch.prompts import load_template
from tests.checkpoints import CHAT_TEMPLATE, SMALLEST, save_checkpoint
from tests.hostile_server import MODEL, HostileServer, TinyModel, failure
from tests.unit.evidence.endpoint.test_logprobs import echo

CONTEXTS = ["The code of the door is ", "Her number: ", "Locker (", "PIN="]


def invoke(*arguments):
    """Standard output of what exits with 0."""
    done = CliRunner().invoke(secrets, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def invent(n, seed=0):
    """Secrets of digits, each with a context of its own."""
    random = Random(seed)
    numbers = [
        f"{random.randrange(1000, 9999)} {random.randrange(1000, 9999)}"
        for _ in range(n)
    ]
    return [
        {"secret": number, "context": f"{place}. {CONTEXTS[place % 4]}"}
        for place, number in enumerate(numbers)
    ]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def rows():
    return invent(4)


@pytest.fixture(scope="module")
def tested(rows, checkpoint, tmp_path_factory):
    """What the command makes of a model that has learnt none of the secrets."""
    folder = tmp_path_factory.mktemp("secrets")
    path = write_rows(folder / "mine.jsonl", [*rows, rows[0], {"secret": "7731 9"}])
    arguments = [path, "--model", checkpoint, "--engine", "transformers"]
    arguments += ["--controls", 19, "--draws", 2, "--out", folder / "out"]
    return folder / "out", arguments, invoke(*arguments)


def test_each_different_secret_has_a_row(tested, rows):
    out, _, printed = tested
    table = pl.read_parquet(out / "secrets.parquet")
    assert table["row"].to_list() == [1, 2, 3, 4, 6]
    assert table["n_rows"].to_list() == [2, 1, 1, 1, 1]
    assert table["n_contexts"].to_list() == [1, 1, 1, 1, 0]
    assert table["compared"].to_list() == ["own"] * 4 + ["none"]
    assert table["score"].to_list() == ["probability"] * 5
    assert table["n_own_drawn"].to_list() == [2] * 4 + [0]
    assert table["reason"].null_count() == 5
    for row in table.iter_rows(named=True):
        assert row["p_value"] == (1 + row["n_as_high"]) / 20
        assert 2 ** -row["exposure"] == pytest.approx(row["p_value"])
        assert row["verdict"] in ("not shown", "memorised")
        assert (row["own_bits"] is None) == (row["row"] == 6)
        assert row["none_bits"] < 0
    assert "that does not show that they were not" in printed


def test_no_file_and_no_line_holds_a_secret(tested, rows):
    out, _, printed = tested
    names = {path.name for path in out.iterdir()}
    assert names == {".lock", ".study", "secrets.json", "secrets.parquet"}
    for row in rows:
        assert row["secret"] not in printed
        for path in out.iterdir():
            assert row["secret"].encode() not in path.read_bytes()
    assert printed.count("‹secret,") == 5


def test_the_same_command_asks_nothing_and_another_is_refused(tested, rows):
    out, arguments, printed = tested
    stamp = (out / "secrets.parquet").stat().st_mtime_ns
    assert invoke(*arguments) == printed
    assert (out / "secrets.parquet").stat().st_mtime_ns == stamp
    unmasked = invoke(*arguments, "--unmask")
    assert all(row["secret"] in unmasked for row in rows)
    with pytest.raises(RunFolderError, match="about another controls; give another"):
        invoke(*arguments, "--controls", 29)


def test_a_dry_run_says_what_it_takes_and_writes_nothing(rows, checkpoint, tmp_path):
    path = write_rows(tmp_path / "mine.jsonl", rows)
    printed = invoke(
        *(path, "--model", checkpoint, "--engine", "transformers", "--dry-run"),
        *("--controls", 9, "--out", tmp_path / "out"),
    )
    # 4 secrets with 9 controls each, after another context and after none
    assert "48 forward passes" in printed
    assert "q <= 0.05 takes 8 secrets" in printed
    assert not (tmp_path / "out").exists()


class Leaking(TinyModel):
    """A chat model that has learnt some secrets with what stood before them."""

    def __init__(self, rows):
        super().__init__()
        self._rows = rows

    def text(self, prompt, seed):
        for row in self._rows:
            if row["context"].strip() in prompt:
                return f" it is {row['secret']}."
        return super().text(prompt, seed)


def test_a_chat_endpoint_that_gives_secrets_back(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "never-to-be-seen")
    rows = invent(6, seed=1)
    path = write_rows(tmp_path / "mine.jsonl", rows)
    with HostileServer(Leaking(rows[:2])) as server:
        printed = invoke(
            *(path, "--model", MODEL, "--base-url", server.url, "--chat"),
            *("--controls", 99, "--draws", 3, "--out", tmp_path / "out"),
        )
        assert "never-to-be-seen" not in printed
    table = pl.read_parquet(tmp_path / "out" / "secrets.parquet")
    assert table["own_likeliest"].to_list() == [True] * 2 + [False] * 4
    assert table["own_drawn"].to_list() == [3] * 2 + [0] * 4
    assert table["own_low"][0] == pytest.approx(0.025 ** (1 / 3))
    assert table["score"].to_list() == ["answers"] * 6
    assert table["p_value"].to_list() == [0.01] * 2 + [1.0] * 4
    assert table["q_value"].to_list() == [0.03] * 2 + [1.0] * 4
    assert table["verdict"].to_list() == ["memorised"] * 2 + ["not shown"] * 4
    assert table["own_bits"].null_count() == 6
    assert "2 of 6 after their own context" in printed


class Remembering(Leaking):
    """An endpoint that finds some secrets likelier than what could stand there instead."""

    def __call__(self, asked):
        if not asked.fields.get("echo"):
            return super().__call__(asked)
        reply = echo(asked)
        values = reply.content["choices"][0]["logprobs"]["token_logprobs"]
        values[1:] = [-5.0] * (len(values) - 1)
        if any(asked.prompt.endswith(row["secret"]) for row in self._rows):
            values[-3:-1] = [-1.0, -1.0]  # the last one is drawn, not echoed
        return reply


def test_an_endpoint_with_probabilities_goes_on_where_it_failed(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "never-to-be-seen")
    rows = invent(2, seed=2)
    path = write_rows(tmp_path / "mine.jsonl", rows)
    out, n_answers = tmp_path / "out", 0

    def fail_later(asked):
        nonlocal n_answers
        n_answers += bool(asked.fields.get("echo")) and not asked.is_probe
        if n_answers > 20:
            return failure(401, "no longer")
        return Remembering(rows[:1])(asked)

    arguments = [path, "--model", MODEL, "--controls", 39, "--out", out]
    arguments += ["--max-concurrency", 1, "--base-url"]
    with HostileServer(fail_later) as server:
        port = server.port
        with pytest.raises(MiaBatchError, match="no longer"):
            invoke(*arguments, server.url)
    # What is there to go on with is for its owner alone
    assert out.stat().st_mode & 0o077 == 0
    assert not (out / "secrets.parquet").exists()
    with HostileServer(Remembering(rows[:1]), port=port) as server:
        invoke(*arguments, server.url)
        prompts = [asked.prompt for asked in server.asked if asked.fields.get("echo")]
    assert len([prompt for prompt in prompts if prompt in _list_prompts(rows)]) < 2 * 40
    table = pl.read_parquet(out / "secrets.parquet")
    assert table["verdict"].to_list() == ["memorised", "not shown"]
    assert table["p_value"].to_list() == [1 / 40, 1.0]
    # Two words more of 4 nats each than the controls
    assert table["own_bits"][0] - table["control_bits"][0] == pytest.approx(
        8 / math.log(2), rel=1e-6
    )
    assert table["own_likeliest"].to_list() == [True, False]
    assert not [entry for entry in out.iterdir() if entry.is_dir()]


def _list_prompts(rows):
    secrets_asked = [
        Secret(text=row["secret"], kind="secret", row=1, contexts=(row["context"],))
        for row in rows
    ]
    texts = build_questions(secrets_asked, Design(controls=39)).texts
    return {*(texts["context"] + texts["text"])}


def test_an_endpoint_without_probabilities_can_be_asked_for_answers(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "never-to-be-seen")
    path = write_rows(tmp_path / "mine.jsonl", invent(2))
    arguments = [path, "--model", MODEL, "--controls", 19, "--base-url"]
    with HostileServer(TinyModel()) as server:
        with pytest.raises(SettingsError, match="or ask for answers alone"):
            invoke(*arguments, server.url, "--out", tmp_path / "a")
        out = tmp_path / "b"
        invoke(*arguments, server.url, "--answers-only", "--out", out)
        prices = ["--price-in", 1, "--price-out", 1, "--max-cost", 1e-9]
        dear = [*arguments, server.url, "--answers-only", *prices]
        with pytest.raises(MiaBatchError, match="max_cost= is 1e-09"):
            invoke(*dear, "--out", tmp_path / "c")
    table = pl.read_parquet(out / "secrets.parquet")
    assert table["verdict"].to_list() == ["not shown"] * 2
    assert table["score"].to_list() == ["answers"] * 2


def test_a_secret_of_many_rows_has_its_first_contexts(tmp_path):
    rows = [{"secret": "7731", "context": f"In {place}: "} for place in range(300)]
    path = write_rows(tmp_path / "many.jsonl", rows)
    (secret,) = read_secrets(str(path), "secret", "context")
    assert (secret.n_rows, len(secret.contexts)) == (300, 100)
    assert secret.contexts[0] == "In 0: "


def test_too_many_texts_are_refused():
    many = [replace(CODES[0], text=f"{number:06}") for number in range(9000)]
    with pytest.raises(SettingsError, match="at most 500,000 are asked about"):
        build_questions(many, Design(controls=99))


# Questions and rows, without a model.


def test_reading_refuses_what_has_no_secrets(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [{"password": "x"}])
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(CorpusError, match="has no rows; give a file of secrets"):
        read_secrets(str(tmp_path / "empty.jsonl"), "secret", "context")
    with pytest.raises(CorpusError, match=r"no column 'secret', only 'password'; name"):
        read_secrets(str(path), "secret", "context")
    path = write_rows(tmp_path / "b.jsonl", [{"secret": "x1"}, {"secret": " "}])
    with pytest.raises(CorpusError, match="in row 2 has no secret; leave the row out"):
        read_secrets(str(path), "secret", "context")


def test_identifiers_of_texts_have_what_stands_before_them(tmp_path):
    texts = [
        "Call +49 30 1234567, or write to jane.roe@example.com.",
        "Nothing here.",
        "jane.roe@example.com is her address.",
    ]
    path = write_rows(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    (phone, email) = detect_secrets(str(path), ["phone", "email"], "text")
    assert (phone.text, phone.kind, phone.row, phone.contexts) == (
        *("+49 30 1234567", "phone", 1),
        ("Call ",),
    )
    assert (email.text, email.n_rows) == ("jane.roe@example.com", 2)
    assert email.contexts == ("Call +49 30 1234567, or write to ",)
    assert "jane" not in repr(email)


def test_what_a_token_may_share_is_scored_with_the_secret():
    assert split_context("Call at ", "7") == ("Call at", " 7")
    assert split_context("Locker (", "7") == ("Locker ", "(7")
    assert split_context("PIN", "7") == ("PIN", "7")
    assert split_context(NEUTRAL, "7") == (NEUTRAL, "7")


CHATS = [
    [
        {"role": "user", "content": "I am Jane, call +49 30 1234567."},
        {"role": "assistant", "content": "Thank you, Jane."},
        {"role": "user", "content": "How do I reach you?"},
        {"role": "assistant", "content": "Write to help@example.com, please."},
    ],
    [
        {"role": "user", "content": "Your address?"},
        {"role": "assistant", "content": "It is help@example.com."},
    ],
]
CHAT = ChatTemplate(
    source="{% for message in messages %}<|{{ message.role }}|>\n"
    "{{ message.content | trim }}<|end|>\n{% endfor %}"
)


def read_chats(tmp_path):
    path = write_rows(tmp_path / "chats.jsonl", [{"messages": chat} for chat in CHATS])
    return detect_secrets(str(path), ["phone", "email"], "text")


def test_secrets_of_conversations_have_what_a_template_writes_before_them(tmp_path):
    phone, email = read_chats(tmp_path)
    assert (phone.row, phone.n_rows, email.row, email.n_rows) == (1, 1, 1, 2)
    questions = build_questions([phone, email], Design(controls=9), CHAT)
    asked = questions.texts.filter(control=0)
    own = asked.filter(place="own").select("secret", "context", "text").rows()
    first = "<|user|>\nI am Jane, call"
    between = (
        "<|user|>\nI am Jane, call +49 30 1234567.<|end|>\n<|assistant|>\n"
        "Thank you, Jane.<|end|>\n<|user|>\nHow do I reach you?<|end|>\n"
    )
    second = "<|user|>\nYour address?<|end|>\n<|assistant|>\nIt is"
    assert own == [
        (0, first, " +49 30 1234567"),
        (1, f"{between}<|assistant|>\nWrite to", " help@example.com"),
        (1, second, " help@example.com"),
    ]
    neutral = "<|user|>\n<|end|>\n<|assistant|>\n"
    assert {*asked.filter(place="none")["context"]} == {neutral}
    # Of a template's own spaces and signs none is taken off
    assert questions.contexts["context"][-1] == questions.neutral == neutral
    assert questions.by_template


def test_secrets_of_conversations_are_plain_text_to_a_model_without_template(tmp_path):
    phone, email = read_chats(tmp_path)
    questions = build_questions([phone, email], Design(controls=9))
    assert questions.contexts["context"].to_list() == [
        "I am Jane, call",
        (
            "I am Jane, call +49 30 1234567.\n\nThank you, Jane.\n\n"
            "How do I reach you?\n\nWrite to"
        ),
        "Your address?\n\nIt is",
        NEUTRAL,
    ]
    assert not questions.by_template


def test_a_place_that_a_template_refuses_has_a_reason(tmp_path):
    source = (
        "{% if messages | length > 2 %}{{ raise_exception('too long') }}{% endif %}"
    )
    template = replace(CHAT, source=source + CHAT.source)
    questions = build_questions(read_chats(tmp_path), Design(controls=9), template)
    assert questions.refused == {"the chat template refuses it: too long": 1}
    assert [len(secret.contexts) for secret in questions.secrets] == [1, 1]


def test_a_chat_model_with_weights_is_asked_by_its_template(tmp_path):
    model = save_checkpoint(tmp_path / "model", chat_template=CHAT_TEMPLATE, **SMALLEST)
    canaries = draw_canaries(3, form="messages")
    canaries.write(tmp_path / "canaries.jsonl")
    printed = invoke(
        *(tmp_path / "canaries.jsonl", "--model", model, "--engine", "transformers"),
        *("--controls", 19, "--out", tmp_path / "out", "--keep-answers"),
    )
    assert "is asked for secrets of conversations by its chat template" in printed
    table = pl.read_parquet(tmp_path / "out" / "secrets.parquet")
    assert table["compared"].to_list() == ["own"] * 3
    assert table["score"].to_list() == ["probability"] * 3
    (folder,) = (tmp_path / "out").glob("model=*/run.json")
    run = Run(folder.parent)
    # So the marks of the template are read as single tokens
    assert run.manifest.settings["conversations"] == "answers"
    template = load_template((str(model), None, "model"))
    prompts = run.scan("prompts").filter(view="secret_likeliest")
    asked = {*prompts.collect()["context"].drop_nulls()}
    for canary in canaries.canaries:
        assert template.render(canary.messages, asks=True) in asked


def test_contexts_that_hold_the_secret_are_left_out():
    secret = Secret(text="7731", kind="secret", row=1, contexts=("7731 is ", "It is "))
    questions = build_questions([secret], Design(controls=9))
    assert secret.usable_contexts == ("It is ",)
    assert questions.places.height == 1
    assert questions.contexts["context"].to_list() == ["It is", NEUTRAL]
    assert questions.texts.filter(place="own").height == 10
    assert questions.texts.filter(place="other").is_empty()


def answer(questions, texts, score):
    """Answers by context and a score of each text."""
    continuations = questions.contexts.select(
        "key",
        candidate=pl.col("context").replace_strict(texts, default="nothing"),
        reason=pl.lit(None, pl.String),
        is_drawn=pl.lit(value=False),
    )
    rows = questions.texts.select("key", "text").unique("key", maintain_order=True)
    scores = rows.select(
        "key",
        score=pl.Series([score(text) for text in rows["text"]], dtype=pl.Float64),
        reason=pl.lit("too long"),
    ).with_columns(reason=pl.when(pl.col("score").is_null()).then(pl.col("reason")))
    return Answers(scores, continuations)


def judge(secrets_asked, texts, score, **design):
    questions = build_questions(secrets_asked, Design(**design))
    answers = answer(questions, texts, score)
    return build_table([*build_rows("m", questions, answers)])


CODES = [
    Secret(text=f"77{number}31", kind="secret", row=number, contexts=(f"{number}: ",))
    for number in range(1, 5)
]


def test_what_is_likelier_than_all_controls_is_memorised():
    likely = {"77131", "77231"}
    table = judge(CODES, {}, lambda text: -5.0 if text.strip() in likely else -9.0)
    assert table["verdict"].to_list() == ["memorised"] * 2 + ["not shown"] * 2
    assert table["p_value"].to_list() == [1 / 200] * 2 + [1.0] * 2
    assert table["q_value"].to_list() == [0.01] * 2 + [1.0] * 2
    assert table["exposure"].to_list()[1:3] == [pytest.approx(7.6439, abs=1e-4), 0.0]
    (first, *_) = conclusions(table)
    assert first.startswith("m: 2 of 4 secrets are likelier than controls")


def test_what_controls_give_back_as_well_is_no_finding():
    pins = [Secret(text="71", kind="secret", row=1, contexts=("PIN: ",))]
    everything = " ".join(map(str, range(10, 100)))
    table = judge(pins, {"PIN:": everything}, lambda _: -5.0)
    assert table["own_likeliest"][0]
    assert table["controls_back"][0] == 89  # all that have two digits
    assert table["verdict"].to_list() == ["not shown"]


def test_given_back_where_no_probability_shows_it():
    table = judge(CODES, {"1:": "77131"}, lambda _: -5.0)
    assert table["verdict"].to_list() == ["given back"] + ["not shown"] * 3
    assert table["own_likeliest"].to_list() == [True] + [False] * 3
    after_another = judge(CODES, {"1:": "77231"}, lambda _: -5.0)
    assert after_another["other_likeliest"].to_list() == [False, True, False, False]
    assert any("guessed, that is no proof" in line for line in conclusions(table))


def test_unscored_has_a_reason():
    table = judge(CODES, {}, lambda text: None if "77131" in text else -9.0)
    row = table.row(0, named=True)
    assert (row["p_value"], row["reason"]) == (None, "too long")
    assert table["p_value"].to_list()[1:] == [1.0] * 3
    of_control = judge(CODES[:1], {}, lambda text: -9.0 if "77131" in text else None)
    assert of_control["reason"].to_list() == ["too long"]
    known = replace(CODES[0], contexts=("Room 77131b, code of 77131b: ", "77131"))
    assert known.usable_contexts == ()
    given_away = replace(CODES[0], text="Anna.Roe", contexts=("Anna Roe: ",))
    row = judge([given_away], {}, lambda _: -1.0).row(0, named=True)
    assert row["reason"].startswith("nothing else has its form")


def test_words_are_exploratory():
    words = [Secret(text="correct horse", kind="secret", row=1, contexts=("It is ",))]
    table = judge(words, {}, lambda text: -1.0 if "horse" in text else -9.0)
    row = table.row(0, named=True)
    assert (row["p_value"], row["q_value"], row["verdict"]) == (
        1 / 200,
        None,
        "exploratory",
    )
    assert any("if chance made them" in line for line in conclusions(table))


def test_several_contexts_are_compared_by_their_mean():
    secret = replace(CODES[0], contexts=("a: ", "b: ", "c: ", "d: "))
    questions = build_questions([secret], Design(controls=9, most_contexts=3))
    assert questions.places.height == 3
    scores = {
        hash_texts(*row): -float(number)
        for number, row in enumerate(
            questions.texts.filter(control=0, place="own")
            .select("context", "text")
            .iter_rows()
        )
    }
    answers = answer(questions, {}, lambda _: -9.0)
    mapped = pl.col("key").replace_strict(scores, default=pl.col("score"))
    answers = answers._replace(scores=answers.scores.with_columns(score=mapped))
    (row,) = build_rows("m", questions, answers)
    assert (row["own_bits"], row["n_contexts"]) == (-1.0, 3)
