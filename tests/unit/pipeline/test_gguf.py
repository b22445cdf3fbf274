"""Audits of GGUF files: the same scores as of the checkpoint, custody, refusals."""

import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command
from mia_batch.errors import SettingsError
from tests.gguf_files import needs_llama_cpp, save_gguf
from tests.runs import audit, documents, said_of, written

pytestmark = needs_llama_cpp
LIKELIHOOD_ATTACKS = ("loss_v1", "loss_zlib_v1", "min_k_20_v1", "min_k_plus_plus_20_v1")
# Scores of models that are not quantised, computed by llama.cpp and by transformers
LARGEST_DIFFERENCE = 2e-4


@pytest.fixture(scope="module")
def gguf(checkpoint, tmp_path_factory):
    return save_gguf(checkpoint, tmp_path_factory.mktemp("gguf") / "model.gguf")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return written(tmp_path_factory.mktemp("corpus"), documents(12))


def audit_both(corpus, models, folder, **settings):
    return [
        audit(
            input=corpus,
            model=str(model),
            out=str(folder / f"run-{number}"),
            continue_strongest=0,
            **settings,
        )
        for number, model in enumerate(models)
    ]


def test_scores_are_those_of_the_checkpoint(gguf, checkpoint, corpus, tmp_path):
    runs = audit_both(
        corpus, [gguf, checkpoint], tmp_path, attacks=[*LIKELIHOOD_ATTACKS]
    )
    tables = [run["scores"].sort("target_id") for run in runs]
    assert tables[0]["target_id"].equals(tables[1]["target_id"])
    for name in LIKELIHOOD_ATTACKS:
        assert tables[0][name].null_count() == tables[1][name].null_count() == 1
        differences = (tables[0][name] - tables[1][name]).abs()
        assert differences.max() < LARGEST_DIFFERENCE, name
    logprobs = [run["logprobs"].sort("target_id") for run in runs]
    assert logprobs[0]["token_ids"].equals(logprobs[1]["token_ids"])
    engine = runs[0].manifest.engines["logprobs of target"]
    assert (engine["engine"], engine["dtype"]) == ("llama-cpp", "F32")
    verified = CliRunner().invoke(command, ["verify", str(runs[0].folder)])
    assert verified.exit_code == 0, verified.output


def test_arguments_of_llama_cpp_do_not_reach_a_checkpoint_for_reference(
    gguf, checkpoint, corpus, tmp_path
):
    settings = {
        "model": str(gguf),
        "reference_model": str(checkpoint),
        "engine": "llama-cpp",
        "attacks": ["reference_difference_v1"],
        "continue_strongest": 0,
    }
    arguments = {"n_gpu_layers": 0, "n_threads": 1, "max_model_len": 200}
    runs = [
        audit(
            input=corpus,
            out=str(tmp_path / f"run-{number}"),
            **settings,
            **engine_settings,
        )
        for number, engine_settings in enumerate([{"engine_arg": arguments}, {}])
    ]
    engines = runs[0].manifest.engines
    assert engines["logprobs of target"]["engine"] == "llama-cpp"
    assert engines["logprobs of reference"]["engine"] == "transformers"
    scores = [run["scores"].sort("target_id") for run in runs]
    assert scores[0]["reference_difference_v1"].null_count() == 1
    assert scores[0].equals(scores[1])
    with pytest.raises(SettingsError, match="no argument 'batch_size'"):
        audit(
            input=corpus,
            out=str(tmp_path / "refused"),
            **settings | {"reference_model": None, "attacks": ["loss_v1"]},
            engine_arg={"batch_size": 4},
        )


def test_samples_and_next_words_are_asked_too(checkpoint, corpus, tmp_path):
    run = audit(
        input=corpus,
        model=str(save_gguf(checkpoint, tmp_path / "model.gguf", "Q8_0")),
        out=str(tmp_path / "run"),
        attacks=["samia_v1", "probe_first_word_v1"],
        evidence="samples",
        samples=2,
        probes=4,
        continue_strongest=0,
    )
    scores = run["scores"]
    assert scores["samia_v1"].null_count() < scores.height
    assert scores["probe_first_word_v1"].null_count() < scores.height
    assert run.manifest.evidence["engine"] == "llama-cpp"
    assert said_of(run)[0] == (
        "The target model is a file quantised to Q8_0, which is a model of its own: what"
        " is said here holds for this file, not for another quantisation or the weights"
        " that it was made of."
    )


def test_a_reference_may_have_another_form(gguf, checkpoint, corpus, tmp_path):
    """The reference is the target in float32, so that their difference is rounding."""
    (run,) = audit_both(
        corpus,
        [gguf],
        tmp_path,
        attacks=["reference_difference_v1"],
        reference_model=str(checkpoint),
    )
    engines = run.manifest.engines
    assert engines["logprobs of reference"]["engine"] in ("transformers", "vllm")
    assert run["scores"]["reference_difference_v1"].abs().max() < LARGEST_DIFFERENCE


def test_another_file_in_its_place_is_refused(checkpoint, corpus, tmp_path):
    model = save_gguf(checkpoint, tmp_path / "model.gguf")
    settings = {"attacks": ["loss_v1"]}
    audit_both(corpus, [model], tmp_path, **settings)
    save_gguf(checkpoint, model, "Q8_0")
    with pytest.raises(SettingsError, match=r"'source' of model 'target'|digest"):
        audit_both(corpus, [model], tmp_path, **settings)


REFUSALS = [
    ({"model": "{gguf}", "revision": "main"}, "is a GGUF file, which has none"),
    (
        {"model": "{gguf}", "attacks": ["spv_embedding_uncalibrated_v1"]},
        "engine llama-cpp cannot compute noise on embeddings; give a checkpoint",
    ),
    ({"model": "{gguf}", "engine": "vllm"}, "vllm"),
    ({"model": "llama3.2:1b"}, "add --base-url http://localhost:11434/v1"),
    ({"model": "{cut}"}, "and its header says"),
    ({"model": "{gguf}", "dtype": "float16"}, "has its own number format"),
    ({"model": "{gguf}", "engine_arg": {"block_size": 9}}, "no argument 'block_size'"),
    ({"model": "/no/such.gguf"}, "give a checkpoint folder, a GGUF file or a hub"),
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSALS)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    gguf, corpus, tmp_path, settings, sentence
):
    cut_file = tmp_path / "cut.gguf"
    cut_file.write_bytes(gguf.read_bytes()[:-1000])
    file_settings = {
        name: value.format(gguf=gguf, cut=cut_file) if isinstance(value, str) else value
        for name, value in settings.items()
    }
    with pytest.raises(SettingsError) as refused:
        audit(input=corpus, out=str(tmp_path / "run"), **file_settings)
    assert sentence in str(refused.value)
    if "attacks" not in settings:  # which may be changed in a run that has begun
        assert not (tmp_path / "run").exists()


def test_tuning_a_file_is_refused(gguf, corpus, tmp_path):
    arguments = [
        "finetune",
        "--base",
        str(gguf),
        "--data",
        str(corpus),
        "--out",
        str(tmp_path / "tuned"),
    ]
    refused = CliRunner().invoke(command, arguments)
    assert "which can be asked and neither tuned nor changed" in str(refused.exception)
