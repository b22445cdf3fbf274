"""Self-Critique: the model answers twice, and the entropies of both answers are compared."""

import json

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch import prompts
from mia_batch.cli.main import command
from mia_batch.corpus.conversations import CONVERSATION, write_conversation
from mia_batch.errors import SettingsError
from mia_batch.prompts import ask_for_another
from tests.checkpoints import CHAT_TEMPLATE, save_checkpoint
from tests.hostile_server import MODEL, HostileServer, TinyModel
from tests.reference_scores import likeness_of_answers
from tests.runs import audit, planned, said_of
from tests.texts import invent_text

ATTACK = "self_critique_v1"
N_PROMPTS = 12
MOST_TOKENS = 40


def write_prompts(path, n=N_PROMPTS):
    rows = [
        {"prompt": invent_text(5, f"question {k}"), "response": "Yes.", "member": k % 2}
        for k in range(n)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat-model")
    return save_checkpoint(
        folder, chat_template=CHAT_TEMPLATE, max_position_embeddings=1024
    )


@pytest.fixture(scope="module")
def settings(chat_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    return {
        "input": write_prompts(folder / "prompts.jsonl"),
        "model": str(chat_model),
        "attacks": ["self-critique"],
        "engine": "transformers",
        "answer_tokens": MOST_TOKENS,
        "report": False,
        "out": str(folder / "run"),
    }


@pytest.fixture(scope="module")
def run(settings):
    return audit(**settings)


class Answering:
    """A model that answers greedily, and reads answers, by transformers alone."""

    def __init__(self, folder):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def ask(self, question):
        return self.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            tokenize=False,
        )

    def answer(self, question):
        ids = self._encode(self.ask(question))
        token_ids = self.model.generate(
            ids, max_new_tokens=MOST_TOKENS, do_sample=False
        )
        return self.tokenizer.decode(
            token_ids[0, ids.shape[1] :], skip_special_tokens=True
        )

    def read(self, question, answer):
        """Return the entropy over the vocabulary at each token of an answer."""
        import torch

        prompt = self.ask(question)
        with torch.no_grad():
            logits = self.model(self._encode(prompt + answer)).logits[0].double()
        logprobs = logits.log_softmax(-1)[self._encode(prompt).shape[1] - 1 : -1]
        return (-(logprobs.exp() * logprobs).sum(-1)).tolist()

    def _encode(self, text):
        return self.tokenizer(
            text, add_special_tokens=False, return_tensors="pt"
        ).input_ids


def test_scores_compare_the_entropies_of_two_greedy_answers(run, chat_model):
    model = Answering(chat_model)
    rows = run["scores"].join(run["targets"], on="target_id")
    answers = run["samples"].rows_by_key(["target_id", "view"], named=True, unique=True)
    reasons = dict(run["unscored"].select("target_id", "reason").iter_rows())
    n_scored = 0
    for name, question, score in rows.select("target_id", "prefix", ATTACK).iter_rows():
        first = answers[name, "first_answer"]["candidate"]
        greedy = model.answer(question)
        if greedy.isascii():  # others may end within a character
            assert first == greedy
        if not first.strip():
            assert score is None
            assert reasons[name] == "the model's first answer is empty"
            continue
        question_again = ask_for_another(question, first)
        second = answers[name, "second_answer"]["candidate"]
        if not second.strip():
            assert score is None
            assert reasons[name] == "the model's second answer is empty"
            continue
        n_scored += 1
        curves = model.read(question, first), model.read(question_again, second)
        assert score == pytest.approx(likeness_of_answers(*curves), abs=1e-4)
    assert n_scored >= 4


def test_the_run_verifies_says_what_it_cannot_tell_and_asks_nothing_twice(
    run, settings
):
    verified = CliRunner().invoke(command, ["verify", str(run.folder)])
    assert verified.exit_code == 0, verified.output
    assert len(run.manifest.models["target"]["chat_template"]) == 64
    (sentence,) = [
        sentence_said
        for sentence_said in said_of(run)
        if "and none of yours" in sentence_said
    ]
    assert "outside the training" in sentence
    lines = planned(settings)
    assert lines["left"] == "nothing is left to ask: the run is finished"
    with pytest.raises(SettingsError, match="answer_tokens"):
        audit(**{**settings, "answer_tokens": 7})


def test_a_dry_run_counts_both_answers(settings, tmp_path):
    lines = planned({**settings, "out": str(tmp_path / "run")})
    at_most = 2 * N_PROMPTS * MOST_TOKENS
    assert lines["answers"] == (
        f"{2 * N_PROMPTS} of the model's own, at most {at_most} tokens to decode"
    )
    assert lines["target answers"] == f"{2 * N_PROMPTS} forward passes"


def test_an_answer_without_an_end_has_no_score(settings, tmp_path):
    run = audit(**{**settings, "answer_tokens": 1, "out": str(tmp_path / "run")})
    reasons = {*run["prompts"].filter(view="answers")["reason"]}
    assert reasons == {
        "the model's first answer has no end after 1 tokens",
        "the model's first answer is empty",
    }
    assert run["scores"][ATTACK].null_count() == N_PROMPTS
    assert run["samples"].filter(view="second_answer").is_empty()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"conversations": "text"}, "input holds no conversations; give columns of"),
        ({"evidence": "samples"}, "needs evidence 'logprobs'"),
        ({"shard": "1/2"}, "shard= cannot be used with self_critique_v1"),
        ({"engine": "vllm"}, "cannot compute mean and variance over the vocabulary"),
    ],
)
def test_what_cannot_be_compared_is_refused(settings, changed, message, tmp_path):
    with pytest.raises(SettingsError, match=message):
        audit(**{**settings, **changed, "out": str(tmp_path / "run")})


def test_endpoints_are_refused_because_they_give_no_whole_distribution(
    settings, chat_model, tmp_path
):
    at_endpoint = {**settings, "model": MODEL, "out": str(tmp_path / "run")}
    del at_endpoint["engine"]
    with HostileServer(TinyModel()) as server:
        with pytest.raises(SettingsError, match="cannot compute mean"):
            audit(**at_endpoint, base_url=server.url, tokenizer=str(chat_model))
        assert not server.asked


def test_a_prompt_that_no_user_ends_is_not_asked(chat_model):
    question = {"role": "user", "content": [{"type": "text", "text": "Why {}?"}]}
    called = {"role": "tool", "content": "42"}
    rows = pl.DataFrame(
        {
            "target_id": ["asked", "called", "missing"],
            CONVERSATION: [
                write_conversation([question], []),
                write_conversation([question, called], []),
                None,
            ],
            "first_answer": ["Because {0}.", "No.", None],
            "first_answer_reason": [None, None, "the engine ended"],
        }
    )
    source = (str(chat_model), None, "model")
    first = prompts.first_answer(rows, tokenizer=source)
    assert first["reason"].to_list() == [
        None,
        "what came before the answer does not end with a user's message",
        "nothing says what came before this answer",
    ]
    second = prompts.second_answer(rows, tokenizer=source)
    assert second["reason"].to_list() == [
        None,
        first["reason"][1],
        "the engine ended",
    ]
    assert ask_for_another("Why {}?", "Because {0}.") in second["context"][0]
    assert second["context"][0].endswith("<|im_start|>assistant\n")
