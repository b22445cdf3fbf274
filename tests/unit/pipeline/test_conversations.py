"""Audits of conversations: answers alone are scored, each after what came before it."""

import json
import shutil

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command
from mia_batch.errors import CorpusError, SettingsError
from tests.checkpoints import CHAT_TEMPLATE, save_checkpoint
from tests.gguf_files import needs_llama_cpp, save_gguf
from tests.hostile_server import MODEL, HostileServer, TinyModel
from tests.runs import audit, planned
from tests.texts import invent_text

LIKELIHOOD_ATTACKS = ("loss_v1", "loss_zlib_v1", "min_k_20_v1", "min_k_plus_plus_20_v1")
N_CONVERSATIONS = 8


def converse(number):
    return [
        {"role": "user", "content": f"What is {invent_text(4, f'question {number}')}?"},
        {"role": "assistant", "content": invent_text(24, f"answer {number}")},
        {"role": "user", "content": "And what else?"},
        {"role": "assistant", "content": invent_text(12, f"more {number}")},
    ]


def write_conversations(
    folder, name="chats.jsonl", numbers=range(N_CONVERSATIONS), *, is_labelled=True
):
    rows = [{"messages": converse(n), "member": n % 2 * is_labelled} for n in numbers]
    path = folder / name
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat-model")
    return save_checkpoint(folder, chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_conversations(tmp_path_factory.mktemp("chats"))


@pytest.fixture(scope="module")
def run(chat_model, corpus, tmp_path_factory):
    return audit(
        input=corpus,
        model=str(chat_model),
        attacks=[*LIKELIHOOD_ATTACKS],
        continue_strongest=4,
        out=str(tmp_path_factory.mktemp("run") / "run"),
    )


def compute_loss(model, tokenizer, messages):
    """Compute the mean log-probability of the last message, by transformers alone."""
    import torch

    prompt = tokenizer.apply_chat_template(
        messages[:-1], add_generation_prompt=True, tokenize=False
    )
    whole = prompt + messages[-1]["content"]
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    ids = torch.tensor([encoded["input_ids"]])
    with torch.no_grad():
        logprobs = model(ids).logits.double().log_softmax(-1)[0]
    starts = [start for start, _ in encoded["offset_mapping"]]
    places = [i for i, start in enumerate(starts) if start >= len(prompt)]
    values = [float(logprobs[i - 1, ids[0, i]]) for i in places]
    return sum(values) / len(values)


def test_scores_are_of_the_answers_tokens_after_what_came_before(run, chat_model):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(chat_model)
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    expected = {}
    for number in range(N_CONVERSATIONS):
        messages = converse(number)
        for n_messages in (2, 4):
            text = messages[n_messages - 1]["content"]
            expected[text] = compute_loss(model, tokenizer, messages[:n_messages])
    targets = run["targets"].select("target_id", "target")
    scores = run["scores"].join(targets, on="target_id")
    assert scores.height == len(expected) == 2 * N_CONVERSATIONS
    for text, score in scores.select("target", "loss_v1").iter_rows():
        assert score == pytest.approx(expected[text], abs=1e-4)


def test_each_conversation_is_a_group_of_its_answers(run):
    targets = run["targets"]
    assert targets["group"].n_unique() == N_CONVERSATIONS
    first = targets.filter(target=converse(0)[1]["content"]).row(0, named=True)
    assert first["prefix"] == converse(0)[0]["content"]
    assert first["reference"] == first["target"]


def test_the_strongest_are_continued_as_a_chat(run):
    prompts = run["prompts"].filter(view="recital")
    assert prompts.height == 4
    assert prompts["context"].str.ends_with("<|im_start|>assistant\n").all()
    assert prompts["context"].str.starts_with("<s><|im_start|>user\n").all()
    (samples,) = [run["samples"].filter(view="recital")]
    assert samples["candidate"].null_count() == 0


def test_the_run_verifies_and_says_by_which_template(run):
    verified = CliRunner().invoke(command, ["verify", str(run.folder)])
    assert verified.exit_code == 0, verified.output
    assert len(run.manifest.models["target"]["chat_template"]) == 64
    assert run.manifest.evidence["conversations"] == "answers"


def test_the_plan_binds_the_template(run, chat_model, corpus, tmp_path):
    plan = json.loads((run.folder / "plan.json").read_text())
    assert plan["chat_templates"] == {
        "target": run.manifest.models["target"]["chat_template"]
    }
    other_model = shutil.copytree(chat_model, tmp_path / "other")
    config = other_model / "tokenizer_config.json"
    config.write_text(config.read_text().replace("assistant", "clerk"))
    changed = {"input": corpus, "model": str(other_model), "out": str(tmp_path / "run")}
    audit(**changed, attacks=[*LIKELIHOOD_ATTACKS], continue_strongest=0)
    other_plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert other_plan["chat_templates"] != plan["chat_templates"]


@needs_llama_cpp
def test_llama_cpp_reads_conversations_alike(run, chat_model, corpus, tmp_path):
    other_run = audit(
        input=corpus,
        model=str(save_gguf(chat_model, tmp_path / "model.gguf")),
        attacks=[*LIKELIHOOD_ATTACKS],
        continue_strongest=0,
        out=str(tmp_path / "run"),
    )
    tables = [
        tables_of_run["scores"].sort("target_id") for tables_of_run in (run, other_run)
    ]
    assert tables[0]["target_id"].equals(tables[1]["target_id"])
    for name in LIKELIHOOD_ATTACKS:
        differences = (tables[0][name] - tables[1][name]).abs()
        assert differences.is_between(0, 2e-4).all(), name
    ids = [
        tables_of_run["logprobs"].sort("target_id")["token_ids"]
        for tables_of_run in (run, other_run)
    ]
    assert ids[0].equals(ids[1])


def test_a_base_model_reads_by_the_template_of_the_target(chat_model, corpus, tmp_path):
    base = save_checkpoint(tmp_path / "base", chat_template=CHAT_TEMPLATE, seed=1)
    config = base / "tokenizer_config.json"
    described = json.loads(config.read_text())
    del described["chat_template"]
    config.write_text(json.dumps(described))
    other_run = audit(
        input=corpus,
        model=str(chat_model),
        reference_model=str(base),
        attacks=["reference_difference_v1"],
        continue_strongest=0,
        out=str(tmp_path / "run"),
    )
    prompts = other_run["prompts"]
    contexts = [
        prompts.filter(model=model).sort("target_id")["context"]
        for model in ("target", "reference")
    ]
    assert contexts[0].equals(contexts[1])
    records = other_run.manifest.models
    assert records["reference"]["chat_template"] == records["target"]["chat_template"]
    assert other_run["scores"]["reference_difference_v1"].null_count() == 0


def test_without_a_template_the_run_says_so(checkpoint, corpus, tmp_path):
    settings = {
        "input": corpus,
        "model": str(checkpoint),
        "attacks": [*LIKELIHOOD_ATTACKS],
    }
    with pytest.raises(
        SettingsError, match=r"has no chat template.*conversations= text"
    ):
        audit(**settings, out=str(tmp_path / "refused"))
    as_text = audit(
        **settings,
        conversations="text",
        continue_strongest=0,
        out=str(tmp_path / "as-text"),
    )
    assert as_text["targets"].height == N_CONVERSATIONS
    assert as_text["scores"]["loss_v1"].null_count() == 0
    assert as_text["targets"]["target"][0].count("\n\n") == 3


def test_a_flag_reads_conversations_as_texts(checkpoint, corpus, tmp_path):
    arguments = ["--input", corpus, "--model", str(checkpoint), "--dry-run"]
    result = CliRunner().invoke(
        command, [*arguments, "--as-text", "--out", str(tmp_path / "run")]
    )
    assert result.exit_code == 0, result.output
    assert "8 conversations, each read as one plain text" in " ".join(
        result.output.split()
    )
    refused = CliRunner().invoke(
        command, [*arguments, "--out", str(tmp_path / "other")]
    )
    assert "no chat template" in str(refused.exception)


def test_an_endpoint_of_chats_is_sent_the_messages(corpus, tmp_path):
    with HostileServer(TinyModel()) as server:
        run = audit(
            input=corpus,
            model=MODEL,
            base_url=server.url,
            chat=True,
            attacks=["samia_v1"],
            samples=2,
            out=str(tmp_path / "run"),
        )
        answered = [answered for answered in server.asked if not answered.is_probe]
    sent = [request.fields["messages"] for request in answered]
    assert converse(3)[:1] in sent
    assert converse(3)[:3] in sent
    assert all(messages[-1]["role"] == "user" for messages in sent)
    assert run["scores"]["samia_v1"].null_count() == 0


def test_an_endpoint_of_chats_compares_whole_answers_by_default(corpus, tmp_path):
    with HostileServer(TinyModel()) as server:
        settings = {
            "input": corpus,
            "model": MODEL,
            "base_url": server.url,
            "chat": True,
            "samples": 2,
        }
        run = audit(**settings, out=str(tmp_path / "run"))
        assert run.manifest.settings["preset"] == "matched"
        assert run["scores"]["samia_matched_v1"].null_count() == 0
        with pytest.raises(SettingsError, match="which an endpoint of chats does not"):
            audit(**settings, evidence="samples", out=str(tmp_path / "refused"))


def test_an_endpoint_of_completions_needs_a_template(chat_model, corpus, tmp_path):
    with HostileServer(TinyModel()) as server:
        settings = {
            "input": corpus,
            "model": MODEL,
            "base_url": server.url,
            "attacks": ["samia_v1"],
            "samples": 2,
        }
        with pytest.raises(SettingsError, match=r"add chat= .* or tokenizer="):
            audit(**settings, out=str(tmp_path / "refused"))
        audit(**settings, tokenizer=str(chat_model), out=str(tmp_path / "run"))
        prompts = [request.prompt for request in server.asked if not request.is_probe]
    # An endpoint puts the start token itself
    assert {prompt[:17] for prompt in prompts} == {"<|im_start|>user\n"}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"window_words": 64}, "window_words= cuts documents"),
        ({"extract": True}, "extract= follows a model through documents"),
        ({"preset": "samia"}, "preset= samia cuts texts into halves"),
        ({"attacks": ["recall_prefix_v1"], "nonmember_shots": "x"}, "stand alone"),
        ({"conversations": "answers", "input": "texts"}, "has no columns of messages"),
    ],
)
def test_what_is_about_texts_is_refused(changed, reason, chat_model, corpus, tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"text": invent_text(30, "plain")}))
    if changed.get("input") == "texts":
        changed = changed | {"input": str(texts)}
    if "nonmember_shots" in changed:
        changed = changed | {"nonmember_shots": str(texts)}
    settings = {"input": corpus, "model": str(chat_model), "out": str(tmp_path / "run")}
    with pytest.raises(SettingsError, match=reason):
        planned(settings | changed)


def test_questions_that_give_members_away_are_found(chat_model, tmp_path):
    rows = []
    for number in range(60):
        messages = converse(number)[:2]
        if number % 2:
            messages.insert(0, {"role": "system", "content": "Answer as a clerk."})
        rows.append({"messages": messages, "member": number % 2})
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    run = audit(
        input=str(path),
        model=str(chat_model),
        attacks=["loss_v1"],
        continue_strongest=0,
        out=str(tmp_path / "run"),
    )
    blind = run["metrics"].filter(
        pl.col("attack").str.starts_with("blind"), metric="roc_auc"
    )
    assert blind["value"].max() == 1


def test_comparison_texts_have_the_same_form(chat_model, corpus, tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"text": invent_text(30, "plain")}))
    settings = {
        "input": corpus,
        "model": str(chat_model),
        "non_members_known": "made up in this test",
        "out": str(tmp_path / "run"),
    }
    with pytest.raises(
        CorpusError, match="conversations, and non_members= plain texts"
    ):
        planned(settings | {"non_members": str(texts)})
    comparison_path = write_conversations(
        tmp_path, "others.jsonl", range(20, 24), is_labelled=False
    )
    assert planned(settings | {"non_members": comparison_path})["targets"].startswith(
        "24"
    )
