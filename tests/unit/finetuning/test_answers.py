"""Tuning on conversations: the answers alone are learnt, each after what came before it."""

import json
import shlex

import pytest
from transformers import AutoTokenizer

from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.tune.jobs import finetune
from mia_batch.extras.tune.training import _RowEncoder
from mia_batch.observer import Observer
from tests.checkpoints import CHAT_TEMPLATE, SMALLEST, save_checkpoint
from tests.runs import audit
from tests.texts import invent_text
from tests.tuning import recipe

pytestmark = pytest.mark.usefixtures("one_thread")
N_ROWS = 24


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    return save_checkpoint(folder, chat_template=CHAT_TEMPLATE, **SMALLEST)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    rows = [
        {
            "question": f"What is {invent_text(3, f'question {number}')}?",
            "answer": invent_text(8, f"answer {number}"),
            "member": number % 2,
        }
        for number in range(N_ROWS)
    ]
    path = tmp_path_factory.mktemp("corpus") / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tuned(base, corpus, tmp_path_factory):
    return finetune(
        base=str(base),
        data=corpus,
        out=tmp_path_factory.mktemp("tuned") / "model",
        recipe=recipe(epochs=12, method="full", learning_rate=1e-2, max_tokens=128),
    )


def test_only_the_answer_and_its_end_have_a_loss(base):
    tokenizer = AutoTokenizer.from_pretrained(base)
    context = "<s><|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    row = _RowEncoder(tokenizer, 128, ()).answer(context, "Good day.<|im_end|>")
    learnt = [label for label in row["labels"] if label != -100]
    assert tokenizer.decode(learnt) == "Good day.<|im_end|>"
    assert tokenizer.decode(row["input_ids"]) == context + "Good day.<|im_end|>"
    assert row["labels"][-len(learnt) :] == row["input_ids"][-len(learnt) :]


def test_a_long_context_loses_its_beginning_and_no_answer(base):
    tokenizer = AutoTokenizer.from_pretrained(base)
    context = "<s>" + "word " * 50
    whole = _RowEncoder(tokenizer, 512, ()).answer(context, "Good day.<|im_end|>")
    n_answer = sum(label != -100 for label in whole["labels"])
    row = _RowEncoder(tokenizer, n_answer + 4, ()).answer(
        context, "Good day.<|im_end|>"
    )
    assert row["input_ids"] == whole["input_ids"][-n_answer - 4 :]
    assert row["labels"] == [-100] * 4 + whole["labels"][-n_answer:]


def test_answers_are_learnt_and_their_tokens_counted(tuned):
    assert tuned.losses[-1]["loss"] < tuned.losses[0]["loss"] - 0.5
    record = json.loads((tuned.path / "training.json").read_text())
    assert 0 < record["tokens"]["learnt"] < record["tokens"]["read"]
    assert record["n_texts"] == N_ROWS // 2
    described = json.loads((tuned.path / "tokenizer_config.json").read_text())
    template = tuned.path / "chat_template.jinja"
    assert template.exists() or described["chat_template"] == CHAT_TEMPLATE


def test_what_was_learnt_is_told_apart(tuned, base, corpus, tmp_path):
    run = audit(
        input=str(corpus),
        model=str(tuned.path),
        reference_model=str(base),
        attacks=["reference_difference_v1"],
        continue_strongest=0,
        engine="transformers",
        out=str(tmp_path / "run"),
    )
    area = run["metrics"].filter(attack="reference_difference_v1", metric="roc_auc")
    assert area["value"][0] > 0.9


class KeptSentences(Observer):
    def __init__(self):
        self.sentences = []

    def stage(self, sentence):
        self.sentences.append(sentence)


def test_as_text_a_conversation_is_learnt_whole(base, corpus, tmp_path):
    observer = KeptSentences()
    model = finetune(
        base=str(base),
        data=corpus,
        out=tmp_path / "model",
        recipe=recipe(epochs=1, max_tokens=128),
        as_text=True,
        observer=observer,
    )
    next_command = [
        *("mia-batch", "audit", str(corpus), "--model", str(tmp_path / "model")),
        *("--reference-model", str(base), "--as-text"),
    ]
    assert observer.sentences[-1].endswith(f"; next: {shlex.join(next_command)}")
    tokens = json.loads((model.path / "training.json").read_text())["tokens"]
    # The first token of a text is read, and not predicted
    assert tokens["learnt"] == tokens["read"] - N_ROWS // 2


def test_a_base_without_a_template_is_refused(checkpoint, corpus, tmp_path):
    with pytest.raises(SettingsError, match="has no chat template"):
        finetune(
            base=str(checkpoint), data=corpus, out=tmp_path / "model", recipe=recipe()
        )


def test_a_study_of_texts_takes_no_conversations(base, corpus, tmp_path):
    with pytest.raises((CorpusError, SettingsError), match="holds conversations"):
        finetune(
            base=str(base),
            data=corpus,
            insert=corpus,
            copies_mean=1.0,
            out=tmp_path / "model",
            recipe=recipe(held_out=0.0),
        )


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        ("rmia", {"shadows": 2, "attacks": ["rmia_v1"]}),
        ("self-prompt", {"attacks": ["self_prompt_difference_v1"], "generations": 8}),
        ("candidate", {"attacks": ["candidate_difference_v1"]}),
    ],
)
def test_reference_models_learn_answers_too(
    attack, settings, tuned, base, corpus, tmp_path
):
    if attack == "self-prompt":
        settings = settings | {"prompts_from": str(corpus), "generation_tokens": 8}
    if attack == "candidate":
        settings = settings | {"candidate_from": str(corpus)}
    run = audit(
        input=str(corpus),
        model=str(tuned.path),
        reference_model=str(base),
        tuning="lora",
        tuning_epochs=1,
        tuning_tokens=128,
        continue_strongest=0,
        engine="transformers",
        out=str(tmp_path / "run"),
        **settings,
    )
    (name,) = settings["attacks"]
    assert run["scores"][name].null_count() == 0
    (record, *_) = (run.folder / "models").glob("*/training.json")
    tokens = json.loads(record.read_text())["tokens"]
    assert tokens["learnt"] < 0.7 * tokens["read"]
