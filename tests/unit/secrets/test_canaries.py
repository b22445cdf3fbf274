"""Canaries in real trainings of a tiny model: learnt, or refused where they have no loss."""

import json
import re

import polars as pl
import pytest
import torch
import transformers

from mia_batch.errors import SettingsError
from mia_batch.extras.gate import judge_run
from mia_batch.extras.secrets.canaries import CanaryCallback, draw_canaries
from mia_batch.extras.secrets.questions import read_secrets
from tests.checkpoints import CHAT_TEMPLATE, TEXTS

N_CANARIES = 6


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def render(row, tokenizer):
    if "messages" in row:
        return tokenizer.apply_chat_template(row["messages"], tokenize=False)
    return row["text"]


def train(checkpoint, tokenizer, folder, rows, callback, epochs=1, collator=None):
    """Train a tiny model on rows."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32
    )
    encoded = [tokenizer(render(row, tokenizer)) for row in rows]
    dataset = [{"input_ids": row["input_ids"][:96]} for row in encoded]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"),
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        data_collator=collator or collate,
        processing_class=tokenizer,
        callbacks=[callback],
    )
    trainer.train()
    return trainer.model


@pytest.mark.parametrize("form", ["text", "messages"])
def test_learnt_canaries_are_found_and_the_gate_reads_it(
    form, checkpoint, tokenizer, tmp_path
):
    canaries = draw_canaries(N_CANARIES, repetitions=(24,), form=form, seed=1)
    callback = CanaryCallback(canaries, tmp_path / "out", controls=199)
    rows = canaries.add_to([])
    assert len(rows) == 24 * N_CANARIES
    model = train(checkpoint, tokenizer, tmp_path, rows, callback, epochs=8)
    assert model.training
    assert callback.had_loss
    table = pl.read_parquet(tmp_path / "out" / "secrets.parquet")
    assert table["verdict"].to_list() == ["memorised"] * N_CANARIES
    assert table["p_value"].to_list() == [1 / 200] * N_CANARIES
    record = json.loads((tmp_path / "out" / "canaries.json").read_text("utf-8"))
    assert record["repetitions"] == [24] * N_CANARIES
    assert record["had_loss"]
    assert any(
        f"learnt 24 times: {N_CANARIES} of {N_CANARIES} memorised" in sentence
        for sentence in record["sentences"]
    )
    judged = judge_run(tmp_path / "out", {"secrets-below": 1})
    assert (judged["verdict"], judged["conditions"][0]["value"]) == ("fail", 6)
    # The code itself stands in neither file
    for path in (tmp_path / "out").iterdir():
        for canary in canaries.canaries:
            assert canary.code.encode() not in path.read_bytes()


def test_canaries_that_a_training_does_not_learn_are_refused(
    checkpoint, tokenizer, tmp_path
):
    canaries = draw_canaries(N_CANARIES, repetitions=(1,), form="text")
    callback = CanaryCallback(canaries, tmp_path / "out")
    others = [{"text": text[:200]} for text in TEXTS[:8]]
    with pytest.raises(SettingsError, match="6 of 6 canaries are not among the rows"):
        train(checkpoint, tokenizer, tmp_path, others, callback)

    def mask_everything(rows):
        ids = torch.tensor([rows[0]["input_ids"]])
        return {"input_ids": ids, "labels": torch.full_like(ids, -100)}

    with pytest.raises(SettingsError, match="codes have no loss: the labels are -100"):
        train(
            *(checkpoint, tokenizer, tmp_path, canaries.add_to(others), callback),
            collator=mask_everything,
        )
    assert not (tmp_path / "out").exists()


def test_not_learnt_canaries_have_p_values_of_chance(checkpoint, tokenizer, tmp_path):
    """Codes that are drawn again were not learnt, and are compared in the same way."""
    learnt = draw_canaries(40, repetitions=(1,), seed=2)
    callback = CanaryCallback(learnt, tmp_path / "out", controls=9)
    model = train(checkpoint, tokenizer, tmp_path, learnt.add_to([]), callback)
    others = CanaryCallback(draw_canaries(40, seed=3), tmp_path / "others", controls=9)
    state = transformers.TrainerState(is_world_process_zero=True)
    others.on_train_end(None, state, None, model=model, processing_class=tokenizer)
    assert others.table is not None
    # Of 40 uniform p-values of 0.1, 0.2 ... the mean is 0.55, with error 0.045
    p_values = others.table["p_value"]
    assert 0.55 - 4 * 0.0454 < p_values.to_numpy().mean() < 0.55 + 4 * 0.0454
    assert "memorised" not in others.table["verdict"].to_list()


def test_draws():
    canaries = draw_canaries(5, repetitions=(1, 3), seed=4)
    assert [canary.repetitions for canary in canaries.canaries] == [1, 3, 1, 3, 1]
    assert all(re.fullmatch(r"[1-9]\d{7}", canary.code) for canary in canaries.canaries)
    assert len({canary.name for canary in canaries.canaries}) == 5
    assert canaries == draw_canaries(5, repetitions=(1, 3), seed=4)
    assert canaries != draw_canaries(5, repetitions=(1, 3), seed=5)
    rows = canaries.add_to([{"text": "one"}, {"text": "two"}])
    assert len(rows) == 2 + 9
    assert sum(canaries.canaries[1].code in row["text"] for row in rows) == 3
    with pytest.raises(SettingsError, match="row 1 has no column 'text', but 'prompt'"):
        canaries.add_to([{"prompt": "one"}])
    with pytest.raises(SettingsError, match="give n and repetitions of 1 or more"):
        draw_canaries(3, repetitions=())


def test_written_canaries_are_a_file_of_secrets(tmp_path):
    canaries = draw_canaries(3, seed=4)
    canaries.write(tmp_path / "canaries.jsonl")
    secrets = read_secrets(str(tmp_path / "canaries.jsonl"), "secret", "context")
    assert [secret.text for secret in secrets] == [
        canary.code for canary in canaries.canaries
    ]
    assert secrets[0].contexts == (canaries.canaries[0].sentence,)


def test_what_cannot_be_done_is_refused_before_the_training():
    callback = CanaryCallback(draw_canaries(2), "out")
    state = transformers.TrainerState(is_world_process_zero=True)
    arguments = transformers.TrainingArguments(output_dir="out", use_cpu=True)
    with pytest.raises(SettingsError, match="canaries need the tokenizer"):
        callback.on_train_begin(arguments, state, None)
    arguments.fsdp = ["full_shard"]
    with pytest.raises(SettingsError, match="give the file to `mia-batch secrets`"):
        callback.on_train_begin(arguments, state, None)
