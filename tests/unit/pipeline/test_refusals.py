"""What cannot be done is refused before anything starts or is asked, and changes nothing."""

import re
import shutil

import polars as pl
import pytest

from mia_batch.errors import MiaBatchError, RequestError
from mia_batch.pipeline.custody import verify
from mia_batch.pipeline.folder import AuditFolder
from tests.checkpoints import (
    SMALLEST,
    metaspace_tokenizer,
    save_checkpoint,
    save_tokenizer,
)
from tests.runs import audit, planned, tables_of, twenty_words

PROBES = {"evidence": "probe-logprobs"}
NO_MODEL = {"engine": None, "model": None}
SAMPLES = {"evidence": "samples"}
ON_VLLM = {"attacks": "min_k_plus_plus_20_v1", "engine": "vllm", "evidence": None}
CANDIDATE = {"candidate_from": "one.parquet", "attacks": "candidate_difference_v1"}
DE_COP, SEMANTIC = {"attacks": "decop_v1"}, {"attacks": "spv_semantic_v1"}
LOSS = {"evidence": "logprobs", "attacks": "loss_v1"}
SHOTS = {"nonmember_shots": "one.parquet", "attacks": "recall_prefix_v1"}
NOBODY = "http://127.0.0.1:9/v1"  # nobody listens


def another_model(path, checkpoint):
    """A copy with one bit changed."""
    file = shutil.copytree(checkpoint, path) / "model.safetensors"
    weights = file.read_bytes()
    file.write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))


def other_tokens(path, _):
    save_checkpoint(path, seed=1, **SMALLEST)
    save_tokenizer(metaspace_tokenizer(), path)


def table(*texts):
    return lambda path, _: pl.DataFrame({"text": texts}).write_parquet(path)


MADE = {
    "another model": another_model,
    "another base": lambda path, _: save_checkpoint(path, seed=2, **SMALLEST),
    "other tokens": other_tokens,
    "empty.jsonl": lambda path, _: path.touch(),
    "blank.parquet": table(" "),
    "of others.parquet": (
        lambda path, _: pl.DataFrame(
            {"document_id": ["nobody's"], "candidate": ["words"]}
        ).write_parquet(path)
    ),
    "one.parquet": table("one text", " "),
    "other.parquet": table(*twenty_words(50, 7)),
}
"""What the tables below name, made where it is needed."""


@pytest.fixture
def finished(request):
    """A finished run of that kind, which is there before nothing may start."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def placed(tmp_path, checkpoint):
    def give(changed, **places):
        for value in {*map(str, changed.values())} & MADE.keys():
            MADE[value](tmp_path / value, checkpoint)
            places[value] = str(tmp_path / value)
        return {name: places.get(str(value), value) for name, value in changed.items()}

    return give


@pytest.mark.parametrize(
    ("finished", "changed", "message"),
    [
        (
            "texts",
            {"top_k": 40, "seed": 1},
            "'seed' was 0, is now 1; 'top_k' was 50, is now 40; ",
        ),
        (
            "texts",
            {"attacks": "samia_v1"},
            "'decode' was 'matched', is now 'whole'; give the old",
        ),
        (
            "texts",
            {"model": "another model"},
            "'source' of model 'target' was '.*', is now '",
        ),
        (
            "texts",
            {"engine": "openai", "base_url": NOBODY},
            "'engine' was 'transformers'",
        ),
        ("texts", {"input": "empty.jsonl"}, "empty.jsonl"),
        ("probes", {"samples": 2}, r"probe_answers.*greedy.*drawn"),
        ("views", {"extraction_tokens": 12}, "'extraction_tokens' was 10, is now 12"),
        ("tuned", {"tuning_epochs": 2}, "'recipe epochs' of model 'self_prompt' was"),
        ("tuned", {"prompt_tokens": 5}, "'prompt_tokens' was 4, is now 5"),
        ("tuned", {"prompts_from": "other.parquet"}, "'prompts_from' was"),
        (
            "tuned",
            {"candidate_from": "other.parquet"},
            "'texts' of model 'candidate' was",
        ),
        (
            "tuned",
            {"reference_model": "another base"},
            "'base' of model 'self_prompt' was",
        ),
    ],
    indirect=["finished"],
)
def test_a_run_is_not_mixed_from_two_requests(
    finished, changed, message, copied_of, placed, nothing_starts
):
    settings, run, _ = copied_of(finished)
    tables_before = tables_of(run.folder)
    settings |= placed(changed)
    for ask in (planned, lambda settings_given: audit(**settings_given)):
        with pytest.raises(RequestError, match=message):
            ask(settings)
    assert tables_of(run.folder) == tables_before
    assert verify(run.folder).faults == []


@pytest.mark.parametrize(
    ("finished", "changed", "message"),
    [
        ("texts", {"model": "/nowhere"}, "'/nowhere'"),
        (
            "views",
            PROBES | {"attacks": "loss_v1"},
            "loss_v1 needs evidence 'logprobs', but",
        ),
        (
            "views",
            {"attacks": "reference_ratio_v1", "reference_model": None},
            "needs reference_model=",
        ),
        (
            "views",
            {"attacks": "extraction_top_k_v1", "temperature": 0.7},
            "needs temperature 1",
        ),
        ("views", SAMPLES | {"attacks": "loss_v1"}, "evidence= is 'samples'"),
        (
            "views",
            SAMPLES | {"attacks": "probe_loss_v1"},
            "probe_loss_v1 needs evidence 'probe-logprobs', but",
        ),
        (
            "views",
            ON_VLLM,
            "min_k_plus_plus_20_v1 cannot be computed: .*take engine transformers",
        ),
        ("views", {"reference_model": "/nowhere"}, "reference_model: '/nowhere'"),
        ("views", {"nonmember_shots": "/nowhere.parquet"}, "/nowhere.parquet"),
        (
            "views",
            {"neighbours_column": "shelf", "masked_model": None},
            "must hold lists of texts",
        ),
        (
            "views",
            {"samples_from": "its own", **NO_MODEL},
            "'replay' has recorded samples only",
        ),
        (
            "tuned",
            {"reference_model": "other tokens"},
            ".* cuts texts into other tokens",
        ),
        (
            "tuned",
            {"reference_model": "masked"},
            r"is a masked model \(BertForMaskedLM\)",
        ),
        (
            "tuned",
            {"tuning": "prefix", "tuning_rank": 256},
            "too short for 256 virtual tokens and",
        ),
        ("tuned", CANDIDATE, "candidate_from: there are 1 texts in it; give at"),
        (
            "tuned",
            {"prompts_from": "blank.parquet"},
            "prompts_from: there is no text in it",
        ),
        (
            "tuned",
            {"shard": "1/2"},
            "shard= cannot be used with self_prompt_difference_v1",
        ),
    ],
    indirect=["finished"],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    finished, changed, message, placed, nothing_starts, tmp_path
):
    settings = finished.settings | {"out": str(tmp_path / "run")}
    if "shadows" in settings:
        settings["attacks"] = "self_prompt_difference_v1"
    elif "neighbours" in settings:
        settings["evidence"] = "logprobs"
    places = {"its own": str(finished.run.path("samples"))}
    places["masked"] = finished.settings.get("masked_model")
    settings |= placed(changed, **places)
    settings = {name: value for name, value in settings.items() if value is not None}
    with pytest.raises(RequestError, match=message):
        planned(settings)
    assert not (tmp_path / "run").exists()
    with pytest.raises(RequestError, match=message):
        audit(**settings)
    assert not (tmp_path / "run" / "scores.parquet").exists()


@pytest.mark.parametrize(
    ("finished", "changed", "message"),
    [
        (
            "texts",
            {"api_key_env": "NO_SUCH_KEY"},
            "api_key_env= is 'NO_SUCH_KEY', but there",
        ),
        ("texts", {"base_url": "nowhere"}, "base_url= is 'nowhere'"),
        (
            "texts",
            {"tokenizer": "/none"},
            r"^tokenizer: .*none.* cannot be loaded .*; give",
        ),
        ("texts", PROBES, "probe_centred_v1 needs tokenizer= at an"),
        (
            "texts",
            LOSS | {"long_texts": "stride"},
            "an endpoint cannot be asked in strides",
        ),
        ("texts", LOSS | SHOTS, "nonmember_shots= needs tokenizer="),
        (
            "texts",
            {**DE_COP, "paraphrases_column": "odd"},
            "'odd' of the input is missing",
        ),
        (
            "texts",
            {**DE_COP, "paraphrases_column": "document_id"},
            "of the input is of type String",
        ),
        (
            "tuned",
            {**SEMANTIC, "reference_model": None},
            ".* give it as reference_model=",
        ),
    ],
    indirect=["finished"],
)
def test_what_is_wrong_is_refused_before_an_endpoint_is_asked(
    finished, changed, message, placed, nothing_starts, tmp_path
):
    settings = finished.settings | {
        "engine": "auto",
        "base_url": NOBODY,
        "model": "served",
    }
    if "shadows" in settings:
        settings["tokenizer"] = finished.settings["model"]
    else:
        settings |= {"preset": None, "samples": None}
    settings |= placed(changed) | {"out": str(tmp_path / "run")}
    for ask in (lambda: audit(**settings), lambda: planned(settings)):
        with pytest.raises(RequestError, match=message):
            ask()
    assert not (tmp_path / "run" / "scores.parquet").exists()


def refusal(ask, settings):
    with pytest.raises(MiaBatchError) as caught:
        ask(settings)
    return str(caught.value)


FOREIGN = {"samples_from": "of others.parquet", "out": "elsewhere"}
NAMELESS = {"input": "other.parquet", "window_words": 128}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            NAMELESS,
            "holds a run about other texts: none of its .* targets is among the 7",
        ),
        (
            {"non_members": "itself", "non_members_known": "so"},
            "a text has one role: remove it",
        ),
        (
            {"extract": True},
            "extract= needs a model to ask; a recording answers nothing further",
        ),
        ({"slice_by": "shelf"}, "the input has no column 'shelf'"),
        (FOREIGN, "none of the 1 rows of .* names a target"),
        ({"out": "in the way"}, r"file/run cannot be written \(Not a directory\)"),
        ({}, "was made by another version of mia-batch"),
    ],
)
def test_a_dry_run_refuses_in_the_words_of_the_run(
    changed, message, books, placed, copied_of, tmp_path
):
    settings, run, _ = copied_of(books)
    (tmp_path / "file").touch()
    places = {"itself": settings["input"], "elsewhere": str(tmp_path / "elsewhere")}
    settings |= placed(
        changed, **places, **{"in the way": str(tmp_path / "file" / "run")}
    )
    if not changed:
        (run.folder / "run.json").write_text('{"format": 2, "evidence": {}}')
    tables_before = tables_of(run.folder)
    refusal_said = refusal(planned, settings)
    assert not (tmp_path / "elsewhere").exists()
    assert tables_of(run.folder) == tables_before
    assert re.search(message, refusal_said)
    assert refusal_said == refusal(
        lambda settings_given: audit(**settings_given), settings
    )


def test_a_dry_run_refuses_a_folder_that_a_run_holds(books, copied_of):
    settings, run, _ = copied_of(books)
    with AuditFolder(run.folder).held():
        assert "is held by another live run; wait for it" in refusal(planned, settings)
