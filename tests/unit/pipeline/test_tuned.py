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
MADE = ("self_prompt", "candidate", "shadow-0", "shadow-1")


@pytest.fixture(scope="module", autouse=True)
def counted_trainings():
    """It is known what is trained."""
    train = TrainingConfig.train

    def counted(making, work, say, observer=None):
        STARTED.append(str(work))
        return train(making, work, say, observer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingConfig, "train", counted)
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
    found = [folder.rpartition("/")[2].split(".")[1] for folder in STARTED]
    STARTED.clear()
    return found


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

    def _hear(self, said: str) -> None:
        self._left -= said.startswith(self._what)
        if self._left == 0:
            raise KeyboardInterrupt


def stopped(settings, what, n=1):
    """Run until something is heard; what was said until then."""
    listener = Stopping(what, n)
    with pytest.raises(KeyboardInterrupt):
        runs.audit(**settings, observer=listener)
    return listener.sentences


def test_all_tables_models_and_scores_are_there_or_have_a_reason(finished, settings):
    run = finished
    for name, schema in (TABLES | PARTS).items():
        if run.path(name).exists():
            schema.validate(run.scan(name).collect())
    known = run.manifest.models
    assert {*known} == {"target", "reference", "masked", *MADE}
    for model in map(known.get, MADE):
        assert model["base"]["name"] == settings["reference_model"]
        assert (model["recipe"]["epochs"], model["recipe"]["rank"]) == (1, 2)
        assert [row["epoch"] for row in model["losses"]] == [1.0]
        assert (run.folder / model["source"]["name"] / "training.json").is_file()
    n_texts = [known[name]["n_texts"] for name in MADE]
    assert n_texts[:2] == [8, 4]
    assert sum(n_texts[2:]) == N_TUNED
    assert len({known[name]["source"]["digest"] for name in MADE}) == len(MADE)
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
    each = shadows.group_by("target_id").agg(pl.col("trained").sum(), n=pl.len())
    assert each.height == N_TUNED
    assert set(each.select("trained", "n").rows()) == {(1, 2)}
    others = run["logprobs"].filter(~pl.col("model").str.starts_with("shadow-"))
    assert others["trained"].null_count() == others.height
    said = run["samples"].filter(view="generation", model="target")
    asked = run["prompts"].filter(view="generation")
    assert said.height == 8
    assert said["n_tokens"].max() == 6
    assert set(said["target_id"]) == set(asked["target_id"])
    assert asked["context"].str.len_chars().min() > 0
    rows = finished["logprobs"].filter(pl.col("view") != "text")
    key = ["view", "target_id", "view_index"]
    of = ("target", "self_prompt")
    own, theirs = (
        rows.filter(model=name).sort(key).select(*key, "token_ids") for name in of
    )
    assert own.equals(theirs)
    assert own["token_ids"].null_count() == 0
    asked = finished["prompts"].filter(pl.col("view") != "generation")
    assert set(asked["model"]) == {"target", "reference"}
    assert set(own["view"]) == {"paraphrase", "noise", "neighbour", "perturbation"}


@pytest.mark.parametrize(
    "one_each", [False, pytest.param(True, marks=pytest.mark.long)]
)
def test_models_of_the_run_are_asked_by_one_engine(
    one_each, copied, finished, monkeypatch
):
    """Its answers are those of an engine each, to the byte."""
    turned = "the same transformers goes on as "
    for name in MADE:
        for part in Run(copied["out"]).path("logprobs").glob(f"*.{name}-*"):
            part.unlink()
    if one_each:
        monkeypatch.setattr(KeptEngine, "serves", lambda *_: False)
    listener = Listener()
    run = runs.audit(**copied, observer=listener)
    said = [each for each in listener.sentences if each.startswith(turned)]
    assert said == ([] if one_each else [turned + name for name in MADE[1:]])
    started = sum(each.startswith("starting ") for each in listener.sentences)
    assert started == (len(MADE) if one_each else 1)
    assert tables_of(run.folder) == tables_of(finished.folder)


def test_noise_of_the_papers_own_scale_is_other_evidence(copied):
    """Its standard deviation is 0.05 then, whatever the embeddings: SPV-MIA, appendix A.6.4."""
    absolute = {"noise_scale": "absolute"}
    asked = load_settings(copied | absolute, use_config=False)
    view = build_view(asked, "target", "noise")
    assert (asked.noise, view.noise, view.is_absolute) == (0.05, 0.05, True)
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
    named = table.with_columns(
        role=pl.when(row < 2).then(pl.lit("canary")).otherwise("role").cast(Role),
        target=pl.when(row == 1).then(pl.col("target").last()).otherwise("target"),
    )
    sink(named.lazy(), audit.run.path("targets"), Targets)
    trained = [assign_halves(audit, RunModel.shadow(number)) for number in (0, 1)]
    assert [each["trained"][0] for each in trained] == [False, False]
    assert sorted(each["trained"][1] for each in trained) == [False, True]
    for each in trained:
        assert each["trained"][1] == each["trained"][-1]
        assert each["learnt"].to_list() == [False] * 2 + [True] * (N_TUNED - 2)


def test_a_finished_run_is_verified_scored_and_shown(copied, nothing_starts):
    run = Run(copied["out"])
    checked = verify(run.folder)
    assert (checked.faults, checked.not_found) == ([], [])
    before = run["scores"]
    rescore(run.folder, attacks=("rmia_v1", "self_prompt_difference_v1"))
    assert run["scores"]["rmia_v1"].equals(before["rmia_v1"])
    shown = CliRunner().invoke(
        command, ["show", copied["out"], before["target_id"][0], "--scores"]
    )
    assert shown.exit_code == 0, shown.output
    assert "rmia_v1" in shown.output
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
    stopped(settings, "log-probabilities: answered")
    stopped(settings, "generating: answered")
    stopped(settings, "candidate: epoch 1 of 1")
    assert len(trainings()) == 2
    stopped(settings, "log-probabilities: answered")
    found = trainings()
    assert len(found) == len(set(found)) == len(MADE) - 1  # the first was finished
    run = runs.audit(**settings)
    assert trainings() == []
    assert tables_of(run.folder) == tables_of(finished.folder)
    assert run.manifest.models == finished.manifest.models
    assert not list((run.folder / "models").glob(".*"))


def test_further_shadows_change_nothing_of_the_first(copied):
    settings = copied | {"attacks": ("rmia_v1", "lira_online_v1")}
    before = tables_of(Path(copied["out"]))
    two = rescore(copied["out"], attacks=settings["attacks"])["scores"]
    trainings()
    run = runs.audit(**settings | {"shadows": 4})
    assert len(trainings()) == 2
    rows = run["logprobs"].filter(pl.col("model").str.starts_with("shadow-"))
    each = rows.group_by("target_id").agg(pl.col("trained").sum(), n=pl.len())
    assert set(each.select("trained", "n").rows()) == {(2, 4)}
    kept = {name: held for name, held in before.items() if name.startswith("logprobs/")}
    assert kept.items() <= tables_of(run.folder).items()
    assert not run["scores"].equals(two)
    again = runs.audit(**settings)
    assert trainings() == []
    assert again["scores"].equals(two)


@pytest.mark.long
def test_a_corpus_that_grows_has_shadows_tuned_anew(copied, tmp_path):
    more = pl.DataFrame({"text": twenty_words(40, 4), "member": [True, False] * 2})
    more = pl.concat([pl.read_parquet(copied["input"]), more])
    settings = copied | {
        "attacks": ("rmia_v1",),
        "input": runs.written(tmp_path, more, "grown"),
    }
    left = planned(settings)
    assert "tuned on 10 texts each: 6 steps" in left["2 shadow models"]
    assert left["shadow-0 text"] == "4 forward passes"
    before = Run(copied["out"]).manifest.models
    trainings()
    run = runs.audit(**settings)
    assert len(trainings()) == 2
    rows = run["logprobs"].filter(pl.col("model").str.starts_with("shadow-"))
    each = rows.group_by("target_id").agg(pl.col("trained").sum(), n=pl.len())
    assert (each.height, set(each.select("trained", "n").rows())) == (
        N_TUNED + 4,
        {(1, 2)},
    )
    assert run.manifest.passes["shadow-0 text"] == N_TUNED + 4
    for name in ("shadow-0", "shadow-1"):
        assert (
            run.manifest.models[name]["source"]["digest"]
            != before[name]["source"]["digest"]
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
    asked = settings | {"attacks": (name, "loss_v1"), "out": str(tmp_path / "run")}
    before = runs.audit(**asked)["scores"][name]
    more = asked | {"generations": 12}
    trainings()
    found = runs.audit(**more)
    assert len(trainings()) == 1
    assert found["samples"].filter(view="generation").height == 12
    assert not found["scores"][name].equals(before)
    alone = runs.audit(**more | {"out": str(tmp_path / "alone")})
    assert found["scores"][name].equals(alone["scores"][name])


def fresh(settings, folder, **changed):
    given = {"out": str(folder / "run"), "attacks": ("self_prompt_difference_v1",)}
    return settings | given | changed


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
    given = fresh(
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
            runs.audit(**given | {"base_url": server.url})
        assert server.asked == []
    tiny = TinyModel()
    with HostileServer(
        lambda a: echo(a) if a.fields.get("echo") else tiny(a)
    ) as server:
        given |= {"base_url": server.url, "out": str(tmp_path / "second")}
        left = planned(given)
        assert left["generations: requests"] == "4 to 8"
        assert "48 output tokens, cost" in left["generations: at most, first attempts"]
        run = runs.audit(**given)
        assert run["scores"]["spv_neighbour_v1"].null_count() == 0
        assert run["samples"].filter(view="generation").height == 8
        assert run.manifest.models["self_prompt"]["n_texts"] == 8
        n_asked = len(server.asked) + len(server.probes)
        runs.audit(**given)
        assert len(server.asked) + len(server.probes) == n_asked


def test_generations_of_another_distribution_are_warned_of(settings, tmp_path):
    cut = fresh(settings, tmp_path, preset="min-k")
    said = stopped(cut, "generations are drawn with another")
    assert "drawn with another top_k than the target's own distribution" in said[-1]


def test_a_training_that_failed_can_be_given_another_way(
    settings, tmp_path, monkeypatch
):
    """Generations are kept; the model that failed binds nobody."""
    given = fresh(settings, tmp_path)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patch:
        patch.setattr(TrainingConfig, "train", full)
        with pytest.raises(
            EngineError, match="cannot be tuned: OutOfMemoryError: CUDA out of"
        ):
            runs.audit(**given)
    listener = Listener()
    run = runs.audit(**given | {"tuning_batch": 2}, observer=listener)
    assert sum(said.startswith("starting") for said in listener.sentences) == 1
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
    for name, each in weights.items():
        begin, end = end, end + each.nbytes
        shape = list(each.shape)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
    written = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(written).to_bytes(8, "little") + written)
        file.truncate(file.tell() + end)
    return str(folder)


def test_a_dry_run_says_what_a_large_model_takes(settings, nothing_starts, tmp_path):
    large = save_large(tmp_path / "large")
    given = settings | {
        "model": large,
        "reference_model": large,
        "generations": 1000,
        "generation_tokens": 128,
        "tuning_rank": 64,
        "tuning_batch": 16,
        "tuning_epochs": 4,
        "out": str(tmp_path / "run"),
    }
    left = planned(given)
    assert left["generations"] == "1,002 texts, at most 128,256 tokens"
    assert left["model self_prompt"] == f"{large} tuned on 1,000 texts: 228 steps"
    assert left["2 shadow models"] == f"{large} tuned on 8 texts each: 8 steps"
    assert "9,994,240 of 666,914,816 weights" in left["model self_prompt, size"]
    assert "of memory without activations" in left["2 shadow models, size"]
    assert left["self_prompt paraphrase"] == "64 forward passes"
    assert left["shadow-1 text"] == "16 forward passes"
    assert not (tmp_path / "run").exists()


def test_a_stored_run_with_models_is_the_same_on_another_machine(
    settings, on_machine, url, request, server, run
):
    given = settings | {"attacks": ("candidate_difference_v1",), "out": url}
    stored = runs.audit(**given)
    names = {name for name in server.contents(run) if name.startswith("models/")}
    here = {
        path.relative_to(stored.folder).as_posix()
        for path in (stored.folder / "models").rglob("*")
        if path.is_file()
    }
    assert names == here
    on_machine("two")
    request.getfixturevalue("nothing_starts")
    runs.audit(**given)
    assert verify(url).faults == []
