"""Reference models that a run makes: whole audits with preset spv, and all that may go wrong."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoConfig, LlamaForCausalLM

from mia_batch.cli.main import command
from mia_batch.errors import EngineError, RunFolderError, SettingsError
from mia_batch.evidence.process import KeptEngine
from mia_batch.extras.tune.jobs import TrainingConfig
from mia_batch.observer import Observer
from mia_batch.pipeline import Run, context
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.custody import verify
from mia_batch.pipeline.folder import PARTS, TABLES
from mia_batch.pipeline.stages.evidence import assign_halves
from mia_batch.schemas import Role, Targets
from mia_batch.settings import load_settings
from mia_batch.tables import sink
from mia_batch.views import RunModel, build_view
from tests import runs
from tests.checkpoints import (
    byte_level_tokenizer,
    save_tokenizer,
)
from tests.hostile_server import MODEL, HostileServer, TinyModel
from tests.runs import N_TUNED, planned, rescore, tables_of, twenty_words
from tests.unit.evidence.endpoint.test_logprobs import echo
from tests.unit.pipeline.conftest import Listener

STARTED: list[str] = []
"""Folders in which trainings have worked, in their order."""
TUNED_MODELS = ("self_prompt", "candidate", "shadow-0", "shadow-1")


@pytest.fixture(scope="module", autouse=True)
def counted_trainings():
    """It is known what is trained."""
    train = TrainingConfig.train

    def count_training(config, work, say, observer=None):
        STARTED.append(str(work))
        return train(config, work, say, observer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingConfig, "train", count_training)
        yield


@pytest.fixture
def copied(tuned, copied_of):
    """Settings of a copy of the finished run, which may be changed."""
    settings, _, _ = copied_of(tuned)
    return settings


@pytest.fixture(scope="module")
def settings(tuned):
    return {name: value for name, value in tuned.settings.items() if name != "out"}


@pytest.fixture(scope="module")
def finished(tuned):
    return tuned.run


def trainings() -> list[str]:
    names_started = [folder.rpartition("/")[2].split(".")[1] for folder in STARTED]
    STARTED.clear()
    return names_started


class Stopping(Listener):
    """Stops the run at the n-th time that it hears of something."""

    def __init__(self, what: str, n: int = 1) -> None:
        super().__init__()
        self._what, self._left = what, n

    def stage(self, sentence: str) -> None:
        super().stage(sentence)
        self._hear(sentence)

    def working(self, what: str, **_: object) -> None:
        self._at = what

    def worked(self, texts: int, tokens: int) -> None:
        self._hear(f"{self._at}: answered")

    def _hear(self, sentence: str) -> None:
        self._left -= sentence.startswith(self._what)
        if self._left == 0:
            raise KeyboardInterrupt


def run_until(settings, beginning, n=1):
    """Run until something is heard; what was said until then."""
    listener = Stopping(beginning, n)
    with pytest.raises(KeyboardInterrupt):
        runs.audit(**settings, observer=listener)
    return listener.sentences


def test_all_tables_models_and_scores_are_there_or_have_a_reason(finished, settings):
    run = finished
    for name, schema in (TABLES | PARTS).items():
        if run.path(name).exists():
            schema.validate(run.scan(name).collect())
    models_by_name = run.manifest.models
    assert {*models_by_name} == {"target", "reference", "masked", *TUNED_MODELS}
    for model in map(models_by_name.get, TUNED_MODELS):
        assert model["base"]["name"] == settings["reference_model"]
        assert (model["recipe"]["epochs"], model["recipe"]["rank"]) == (1, 2)
        assert [row["epoch"] for row in model["losses"]] == [1.0]
        assert (run.folder / model["source"]["name"] / "training.json").is_file()
    n_texts = [models_by_name[name]["n_texts"] for name in TUNED_MODELS]
    assert n_texts[:2] == [8, 4]
    assert sum(n_texts[2:]) == N_TUNED
    assert len(
        {models_by_name[name]["source"]["digest"] for name in TUNED_MODELS}
    ) == len(TUNED_MODELS)
    attacks = run.manifest.made["scores"]["attacks"]
    missing = {
        (target, attack)
        for attack in attacks
        for target in run["scores"].filter(pl.col(attack).is_null())["target_id"]
    }
    explained = run["unscored"].filter(pl.col("reason").is_not_null())
    assert missing == set(explained.select("target_id", "attack").rows())
    nowhere = {attack for attack in attacks if not run["scores"][attack].count()}
    assert nowhere == {"lira_online_v1", "lira_offline_v1"}  # which need two of a kind


def test_each_text_is_in_half_of_the_shadows_and_all_are_asked_what_the_target_is_asked(
    finished,
):
    run = finished
    rows = run["logprobs"].filter(view="text")
    shadows = rows.filter(pl.col("model").str.starts_with("shadow-"))
    n_trained = shadows.group_by("target_id").agg(pl.col("trained").sum(), n=pl.len())
    assert n_trained.height == N_TUNED
    assert set(n_trained.select("trained", "n").rows()) == {(1, 2)}
    other_models = run["logprobs"].filter(~pl.col("model").str.starts_with("shadow-"))
    assert other_models["trained"].null_count() == other_models.height
    generations = run["samples"].filter(view="generation", model="target")
    prompts_asked = run["prompts"].filter(view="generation")
    assert generations.height == 8
    assert generations["n_tokens"].max() == 6
    assert set(generations["target_id"]) == set(prompts_asked["target_id"])
    assert prompts_asked["context"].str.len_chars().min() > 0
    rows = finished["logprobs"].filter(pl.col("view") != "text")
    key = ["view", "target_id", "view_index"]
    two_models = ("target", "self_prompt")
    own_tokens, theirs = (
        rows.filter(model=name).sort(key).select(*key, "token_ids")
        for name in two_models
    )
    assert own_tokens.equals(theirs)
    assert own_tokens["token_ids"].null_count() == 0
    prompts_asked = finished["prompts"].filter(pl.col("view") != "generation")
    assert set(prompts_asked["model"]) == {"target", "reference"}
    assert set(own_tokens["view"]) == {
        "paraphrase",
        "noise",
        "neighbour",
        "perturbation",
    }


@pytest.mark.parametrize(
    "one_each", [False, pytest.param(True, marks=pytest.mark.long)]
)
def test_models_of_the_run_are_asked_by_one_engine(
    one_each, copied, finished, monkeypatch
):
    """Its answers are those of an engine each, to the byte."""
    turned = "the same transformers goes on as "
    for name in TUNED_MODELS:
        for part in Run(copied["out"]).path("logprobs").glob(f"*.{name}-*"):
            part.unlink()
    if one_each:
        monkeypatch.setattr(KeptEngine, "serves", lambda *_: False)
    listener = Listener()
    run = runs.audit(**copied, observer=listener)
    turned_sentences = [
        sentence for sentence in listener.sentences if sentence.startswith(turned)
    ]
    assert turned_sentences == (
        [] if one_each else [turned + name for name in TUNED_MODELS[1:]]
    )
    started = sum(sentence.startswith("starting ") for sentence in listener.sentences)
    assert started == (len(TUNED_MODELS) if one_each else 1)
    assert tables_of(run.folder) == tables_of(finished.folder)


def test_noise_of_the_papers_own_scale_is_other_evidence(copied):
    """Its standard deviation is 0.05 then, whatever the embeddings: SPV-MIA, appendix A.6.4."""
    absolute = {"noise_scale": "absolute"}
    noise_settings = load_settings(copied | absolute, use_config=False)
    view = build_view(noise_settings, "target", "noise")
    assert (noise_settings.noise, view.noise, view.is_absolute) == (0.05, 0.05, True)
    with pytest.raises(
        SettingsError, match="'noise_scale' was 'relative', is now 'absolute'"
    ):
        runs.audit(**copied | absolute | {"noise": 0.1})


def test_generations_are_no_samples_of_texts(copied):
    attacks = ("self_prompt_difference_v1", "samia_matched_v1")
    run = runs.audit(**copied | {"attacks": attacks, "evidence": "both", "samples": 2})
    views = run["samples"]["view"].value_counts().sort("view").rows()
    assert views == [("continuation", 2 * N_TUNED), ("generation", 8)]
    assert set(run["features"]["view"]) == {"continuation"}
    assert run["scores"]["samia_matched_v1"].null_count() == 0
    assert run.manifest.failed["targets"] == 0


def test_a_damaged_model_is_named_and_made_again(copied, finished):
    run = Run(copied["out"])
    next(run.path("logprobs").glob("*shadow-0*")).unlink()
    name = run.manifest.models["shadow-0"]["source"]["name"]
    (run.folder / name / "adapter_config.json").write_text("{}")
    trainings()
    with pytest.raises(
        RunFolderError, match=rf"{name} was changed|was changed .* delete .*{name}"
    ):
        runs.audit(**copied)
    shutil.rmtree(run.folder / name)
    run = runs.audit(**copied)
    assert trainings() == [name.rpartition("/")[2]]
    assert tables_of(run.folder) == tables_of(finished.folder)


def test_texts_that_no_shadow_learns_are_new_to_all(copied):
    """A canary is in no half, unless it is the same as a text that is."""
    audit = Audit.begin(load_settings(copied, use_config=False), Observer())
    table, row = audit.run.scan("targets").collect(), pl.int_range(pl.len())
    named_targets = table.with_columns(
        role=pl.when(row < 2).then(pl.lit("canary")).otherwise("role").cast(Role),
        target=pl.when(row == 1).then(pl.col("target").last()).otherwise("target"),
    )
    sink(named_targets.lazy(), audit.run.path("targets"), Targets)
    trained = [assign_halves(audit, RunModel.shadow(number)) for number in (0, 1)]
    assert [shadow_rows["trained"][0] for shadow_rows in trained] == [False, False]
    assert sorted(shadow_rows["trained"][1] for shadow_rows in trained) == [False, True]
    for shadow_rows in trained:
        assert shadow_rows["trained"][1] == shadow_rows["trained"][-1]
        assert shadow_rows["learnt"].to_list() == [False] * 2 + [True] * (N_TUNED - 2)


def test_a_finished_run_is_verified_scored_and_shown(copied, nothing_starts):
    run = Run(copied["out"])
    checked = verify(run.folder)
    assert (checked.faults, checked.not_found) == ([], [])
    scores_before = run["scores"]
    rescore(run.folder, attacks=("rmia_v1", "self_prompt_difference_v1"))
    assert run["scores"]["rmia_v1"].equals(scores_before["rmia_v1"])
    result = CliRunner().invoke(
        command, ["show", copied["out"], scores_before["target_id"][0], "--scores"]
    )
    assert result.exit_code == 0, result.output
    assert "rmia_v1" in result.output
    model = next((run.folder / "models").glob("*/adapter_model.safetensors"))
    model.write_bytes(model.read_bytes()[:-1] + b"!")
    changed = model.relative_to(run.folder).as_posix()
    assert verify(run.folder).faults == [(changed, "changed")]


@pytest.mark.long
def test_a_run_that_is_stopped_everywhere_ends_as_one_that_was_not(
    settings, finished, tmp_path
):
    settings = settings | {"out": str(tmp_path / "run")}
    trainings()
    run_until(settings, "log-probabilities: answered")
    run_until(settings, "generating: answered")
    run_until(settings, "candidate: epoch 1 of 1")
    assert len(trainings()) == 2
    run_until(settings, "log-probabilities: answered")
    names_started = trainings()
    assert (
        len(names_started) == len(set(names_started)) == len(TUNED_MODELS) - 1
    )  # the first was finished
    run = runs.audit(**settings)
    assert trainings() == []
    assert tables_of(run.folder) == tables_of(finished.folder)
    assert run.manifest.models == finished.manifest.models
    assert not list((run.folder / "models").glob(".*"))


def test_further_shadows_change_nothing_of_the_first(copied):
    settings = copied | {"attacks": ("rmia_v1", "lira_online_v1")}
    tables_before = tables_of(Path(copied["out"]))
    two = rescore(copied["out"], attacks=settings["attacks"])["scores"]
    trainings()
    run = runs.audit(**settings | {"shadows": 4})
    assert len(trainings()) == 2
    rows = run["logprobs"].filter(pl.col("model").str.starts_with("shadow-"))
    n_trained = rows.group_by("target_id").agg(pl.col("trained").sum(), n=pl.len())
    assert set(n_trained.select("trained", "n").rows()) == {(2, 4)}
    logprobs_before = {
        name: content
        for name, content in tables_before.items()
        if name.startswith("logprobs/")
    }
    assert logprobs_before.items() <= tables_of(run.folder).items()
    assert not run["scores"].equals(two)
    again = runs.audit(**settings)
    assert trainings() == []
    assert again["scores"].equals(two)


@pytest.mark.long
def test_a_corpus_that_grows_has_shadows_tuned_anew(copied, tmp_path):
    more_texts = pl.DataFrame(
        {"text": twenty_words(40, 4), "member": [True, False] * 2}
    )
    more_texts = pl.concat([pl.read_parquet(copied["input"]), more_texts])
    settings = copied | {
        "attacks": ("rmia_v1",),
        "input": runs.written(tmp_path, more_texts, "grown"),
    }
    plan_left = planned(settings)
    assert "tuned on 10 texts each: 6 steps" in plan_left["2 shadow models"]
    assert plan_left["shadow-0 text"] == "4 forward passes"
    models_before = Run(copied["out"]).manifest.models
    trainings()
    run = runs.audit(**settings)
    assert len(trainings()) == 2
    rows = run["logprobs"].filter(pl.col("model").str.starts_with("shadow-"))
    n_trained = rows.group_by("target_id").agg(pl.col("trained").sum(), n=pl.len())
    assert (n_trained.height, set(n_trained.select("trained", "n").rows())) == (
        N_TUNED + 4,
        {(1, 2)},
    )
    assert run.manifest.passes["shadow-0 text"] == N_TUNED + 4
    for name in ("shadow-0", "shadow-1"):
        assert (
            run.manifest.models[name]["source"]["digest"]
            != models_before[name]["source"]["digest"]
        )
    alone = runs.audit(**settings | {"out": str(tmp_path / "alone")})
    columns = ["target_id", "model", "trained", "logprob"]
    only = alone["logprobs"].filter(pl.col("model").str.starts_with("shadow-"))
    assert (
        rows.select(columns)
        .sort(columns[:2])
        .equals(only.select(columns).sort(columns[:2]))
    )


@pytest.mark.long
def test_scores_are_those_of_the_model_that_more_generations_make(settings, tmp_path):
    """Its answers lie in parts of the same names as those of the model before."""
    name = "self_prompt_difference_v1"
    attack_settings = settings | {
        "attacks": (name, "loss_v1"),
        "out": str(tmp_path / "run"),
    }
    scores_before = runs.audit(**attack_settings)["scores"][name]
    more_settings = attack_settings | {"generations": 12}
    trainings()
    run_of_more = runs.audit(**more_settings)
    assert len(trainings()) == 1
    assert run_of_more["samples"].filter(view="generation").height == 12
    assert not run_of_more["scores"][name].equals(scores_before)
    alone = runs.audit(**more_settings | {"out": str(tmp_path / "alone")})
    assert run_of_more["scores"][name].equals(alone["scores"][name])


def fresh(settings, folder, **changed):
    fresh_settings = {
        "out": str(folder / "run"),
        "attacks": ("self_prompt_difference_v1",),
    }
    return settings | fresh_settings | changed


def test_an_endpoint_speaks_once_all_else_of_it_is_known(
    settings, tmp_path, monkeypatch
):
    """One without log-probabilities is refused before it is paid for what it says."""
    monkeypatch.setattr(
        context, "choose_engine", lambda *_, **__: ("transformers", "it starts")
    )
    corpus = pl.read_parquet(settings["input"]).head(6)
    listed = corpus.with_columns(
        near=pl.concat_list("text", pl.col("text").str.to_uppercase())
    )
    listed.write_parquet(tmp_path / "listed.parquet")
    settings_given = fresh(
        settings,
        tmp_path,
        attacks=("spv_neighbour_v1",),
        input=str(tmp_path / "listed.parquet"),
        neighbours_column="near",
        engine="auto",
        engine_arg={},
        model=MODEL,
        price_in=1000.0,
        price_out=1000.0,
    )
    with HostileServer(TinyModel(honours={"n", "seed", "top_k"})) as server:
        with pytest.raises(
            SettingsError, match="does not echo log-probabilities of prompts"
        ):
            runs.audit(**settings_given | {"base_url": server.url})
        assert server.asked == []
    tiny = TinyModel()
    with HostileServer(
        lambda a: echo(a) if a.fields.get("echo") else tiny(a)
    ) as server:
        settings_given |= {"base_url": server.url, "out": str(tmp_path / "second")}
        plan_left = planned(settings_given)
        assert plan_left["generations: requests"] == "4 to 8"
        assert (
            "48 output tokens, cost"
            in plan_left["generations: at most, first attempts"]
        )
        run = runs.audit(**settings_given)
        assert run["scores"]["spv_neighbour_v1"].null_count() == 0
        assert run["samples"].filter(view="generation").height == 8
        assert run.manifest.models["self_prompt"]["n_texts"] == 8
        n_asked = len(server.asked) + len(server.probes)
        runs.audit(**settings_given)
        assert len(server.asked) + len(server.probes) == n_asked


def test_generations_of_another_distribution_are_warned_of(settings, tmp_path):
    cut_settings = fresh(settings, tmp_path, preset="min-k")
    sentences_said = run_until(cut_settings, "generations are drawn with another")
    assert (
        "drawn with another top_k than the target's own distribution"
        in sentences_said[-1]
    )


def test_a_training_that_failed_can_be_given_another_way(
    settings, tmp_path, monkeypatch
):
    """Generations are kept; the model that failed binds nobody."""
    settings_given = fresh(settings, tmp_path)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patch:
        patch.setattr(TrainingConfig, "train", full)
        with pytest.raises(
            EngineError, match="cannot be tuned: OutOfMemoryError: CUDA out of"
        ):
            runs.audit(**settings_given)
    listener = Listener()
    run = runs.audit(**settings_given | {"tuning_batch": 2}, observer=listener)
    assert sum(sentence.startswith("starting") for sentence in listener.sentences) == 1
    assert run.manifest.models["self_prompt"]["recipe"]["batch_size"] == 2
    assert run["scores"]["self_prompt_difference_v1"].null_count() == 0
    # Nor what was begun in the first way
    assert not list((run.folder / "models").glob(".*"))


def save_large(folder: Path) -> str:
    """All of a model of Llama's widths and two layers but the weights: a hole in a file."""
    save_tokenizer(byte_level_tokenizer(), folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        weights = (
            LlamaForCausalLM(AutoConfig.from_pretrained(folder)).half().state_dict()
        )
    header, end = {}, 0
    for name, tensor in weights.items():
        begin, end = end, end + tensor.nbytes
        shape = list(tensor.shape)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
    header_bytes = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header_bytes).to_bytes(8, "little") + header_bytes)
        file.truncate(file.tell() + end)
    return str(folder)


def test_a_dry_run_says_what_a_large_model_takes(settings, nothing_starts, tmp_path):
    large = save_large(tmp_path / "large")
    large_settings = settings | {
        "model": large,
        "reference_model": large,
        "generations": 1000,
        "generation_tokens": 128,
        "tuning_rank": 64,
        "tuning_batch": 16,
        "tuning_epochs": 4,
        "out": str(tmp_path / "run"),
    }
    plan_left = planned(large_settings)
    assert plan_left["generations"] == "1,002 texts, at most 128,256 tokens"
    assert plan_left["model self_prompt"] == f"{large} tuned on 1,000 texts: 228 steps"
    assert plan_left["2 shadow models"] == f"{large} tuned on 8 texts each: 8 steps"
    assert "9,994,240 of 666,914,816 weights" in plan_left["model self_prompt, size"]
    assert "of memory without activations" in plan_left["2 shadow models, size"]
    assert plan_left["self_prompt paraphrase"] == "64 forward passes"
    assert plan_left["shadow-1 text"] == "16 forward passes"
    assert not (tmp_path / "run").exists()


def test_a_stored_run_with_models_is_the_same_on_another_machine(
    settings, on_machine, url, request, server, run
):
    stored_settings = settings | {"attacks": ("candidate_difference_v1",), "out": url}
    stored_run = runs.audit(**stored_settings)
    names = {name for name in server.contents(run) if name.startswith("models/")}
    here = {
        path.relative_to(stored_run.folder).as_posix()
        for path in (stored_run.folder / "models").rglob("*")
        if path.is_file()
    }
    assert names == here
    on_machine("two")
    request.getfixturevalue("nothing_starts")
    runs.audit(**stored_settings)
    assert verify(url).faults == []
