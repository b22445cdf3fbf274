"""Settings: options over file over defaults, and one sentence for each thing that is wrong."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import mia_batch
from mia_batch import attacks
from mia_batch.attacks import Attack
from mia_batch.errors import RequestError, SettingsError
from mia_batch.kernels import WORD_RULES
from mia_batch.settings import (
    CONFIG_NAME,
    Mark,
    SamplingSettings,
    Settings,
    flattened,
    load_settings,
    nested,
    stored_settings,
)

GIVEN = {"input": "corpus.parquet", "model": "models/llama"}


def refusal(**settings):
    with pytest.raises(SettingsError) as caught:
        load_settings(GIVEN | settings)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """No settings file of the working directory takes part, and no attack stays registered."""
    monkeypatch.setattr(attacks, "_REGISTERED", {})
    monkeypatch.chdir(tmp_path)
    Path("corpus.parquet").touch()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            GIVEN,
            {"continuations": 10, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "max_length": 1024}
            | {"prefix_ratio": 0.5, "preset": "default", "word_rule": "script", "engine": "auto"},
        ),
        (GIVEN | {"preset": "samia"}, {"word_rule": "space"}),
        (GIVEN | {"base_url": "http://host/v1"}, {"engine": "openai"}),
        (
            {"input": "corpus.parquet", "samples_from": "made/samples.parquet"},
            {"engine": "replay", "model": "recorded"},
        ),
        *((GIVEN | {"word_rule": rule}, {"word_rule": rule}) for rule in WORD_RULES),
    ],
)
def test_what_follows_from_what_is_given(given, wanted):
    settings = load_settings(given)
    assert {name: getattr(settings, name) for name in wanted} == wanted


def test_settings_of_evidence_are_those_that_change_a_sample():
    named = set(Settings.marked(Mark.EVIDENCE))
    assert {"engine", "dtype", "preset", "word_rule", "top_k", "seed"} < named
    assert not {"samples", "attacks", "attacks_from", "input", "out"} & named
    given = {**GIVEN, "engine_arg": {"max_num_seqs": 8, "max_model_len": 512}}
    assert load_settings(given).evidence_values["engine_arg"] == {"max_model_len": 512}


@pytest.mark.parametrize("temperature", ["0", "0.0", 0, 0.0])
def test_at_temperature_0_one_sample_says_all(temperature):
    assert load_settings({**GIVEN, "temperature": temperature}).samples == 1
    assert load_settings({**GIVEN, "temperature": "0.1"}).continuations == 10


def test_options_as_text_are_parsed():
    settings = load_settings(
        GIVEN
        | {
            "samples": "3",
            "top_p": "0.95",
            "attacks": "samia_v1, samia_v1,samia_n2_v1",
            "preset": "samia",
            "text_length": "64",
            "engine_arg": ("max-model-len=128", "quantization=fp8", "enforce_eager=true"),
        }
    )
    assert settings.samples == 3
    assert settings.top_p == 0.95
    assert settings.attacks == ("samia_v1", "samia_n2_v1")
    assert settings.text_length == 64
    assert settings.engine_arg == {
        "max_model_len": 128,
        "quantization": "fp8",
        "enforce_eager": True,
    }


def test_a_named_file_is_read_options_win_and_paths_are_the_files_own(tmp_path):
    folder = tmp_path / "demo"
    (folder / "model").mkdir(parents=True)
    (folder / CONFIG_NAME).write_text(
        'model = "model"\nseed = 7\nout = "run"\n[sampling]\nsamples = 4\n'
    )
    settings = load_settings({"config": "demo/mia-batch.toml", "input": "c", "samples": "2"})
    assert settings.model == str(Path("demo/model"))
    assert settings.out == Path("demo/run")
    assert (settings.samples, settings.seed, settings.config) == (2, 7, "demo/mia-batch.toml")


def test_a_file_near_the_input_is_not_read(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / CONFIG_NAME).write_text("samples = \n")  # would be refused
    for source in ("data", "data/corpus.parquet", tmp_path / "data"):
        settings = load_settings(GIVEN | {"input": source})
        assert (settings.samples, settings.config) == (None, None)


@pytest.mark.parametrize(
    "wrong", [{"samples": "0"}, {"input": "none.parquet"}, {"primary": 3}, {"max_failed": "2"}]
)
def test_code_of_attacks_runs_only_after_all_else_was_found_right(tmp_path, wrong):
    (tmp_path / "mine.py").write_text("open('ran', 'w').close()\n" + MINE)
    with pytest.raises(RequestError):
        load_settings(GIVEN | {"attacks_from": "mine.py"} | wrong)
    assert not Path("ran").exists()
    load_settings(GIVEN | {"attacks_from": "mine.py"})
    assert Path("ran").exists()


def test_of_a_stored_run_no_code_is_loaded_and_unknown_attacks_stay_names(tmp_path):
    (tmp_path / "mine.py").write_text("open('ran', 'w').close()\n" + MINE)
    stored = GIVEN | {"attacks_from": "mine.py", "attacks": ["own_v1"], "primary": "own_v1"}
    settings = stored_settings(stored)
    assert (settings.attacks, settings.primary) == (("own_v1",), "own_v1")
    assert not Path("ran").exists()


def test_a_named_file_wins_over_that_of_the_working_directory(tmp_path):
    (tmp_path / CONFIG_NAME).write_text("[sampling]\nsamples = 4\n")
    other = tmp_path / "other.toml"
    other.write_text("[sampling]\nsamples = 5\n[texts]\nprefix-ratio = 0.25\n")
    settings = load_settings(GIVEN | {"config": other})
    assert (settings.samples, settings.prefix_ratio) == (5, 0.25)


@pytest.mark.parametrize(
    ("source", "model", "folder"),
    [
        ("data/corpus.parquet", "models/llama", "runs/corpus-llama"),
        ("books/", "owner/Name-7b.v2", "runs/books-Name-7b.v2"),
        ("parts/*.parquet", "m", "runs/_-m"),
        (".", "m", "runs/here-m"),
    ],
)
def test_the_run_folder_is_named_after_input_and_model(source, model, folder):
    assert load_settings({"input": source, "model": model}).folder == Path(folder)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("[engine.engine_arg]\nmax_model_len = 64\n", {"engine_arg": {"max_model_len": 64}}),
        ('\ufeffmodel = "owner/name"\r\n', {"model": "owner/name"}),  # which stays a hub name
    ],
)
def test_what_a_file_may_set(tmp_path, content, wanted):
    (tmp_path / CONFIG_NAME).write_bytes(content.encode())
    settings = load_settings(
        {"model": "m", "input": "corpus.parquet"}
        if "engine" in content
        else {"input": "corpus.parquet"}
    )
    assert {name: getattr(settings, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("attacks_from = 'mine.py'", "setting 'attacks_from' runs code and cannot be set in mia-b"),
        ("attacks-from = 'mine.py'", "setting 'attacks_from' runs code and cannot be set in mia-b"),
        ("config = 'other.toml'", "setting 'config' names this file and cannot be set in mia-batc"),
        (
            "[engine.engine_arg]\ntrust_remote_code = true",
            "mia-batch.toml sets trust_remote_code, which",
        ),
        (
            "[engine]\nengine_arg = ['worker-cls=a.B']",
            "mia-batch.toml sets worker_cls, which may load code",
        ),
        (
            "samples = 4",
            "'samples' in mia-batch.toml stands in the table 'sampling': write it below [sampling]",
        ),
        (
            "[texts]\nseed = 4",
            "'seed' in mia-batch.toml stands in no table: write it above all tables",
        ),
        ("sampling = 4", "'sampling' in mia-batch.toml is a table of settings, such as samples, "),
        ("[texts]\nsamples = 4", "'samples' in mia-batch.toml stands in the table 'sampling'"),
        (
            "[sampling]\nsample = 4",
            "table [sampling] in mia-batch.toml: there is no setting "
            "'sample'; did you mean 'samples'?",
        ),
        (
            "colour = 1",
            "there is no setting 'colour' in mia-batch.toml; `mia-batch --help` lists them all",
        ),
        ("samples = ", "setting 'config': "),
        ("samples = ", "mia-batch.toml cannot be read"),
        ("\udcff", "mia-batch.toml cannot be read"),
    ],
)
def test_a_file_of_settings_that_is_refused(tmp_path, content, said):
    (tmp_path / "mine.py").write_text("open('ran', 'w').close()\n" + MINE)
    (tmp_path / CONFIG_NAME).write_bytes(content.encode(errors="surrogateescape"))
    assert said in refusal()
    assert not Path("ran").exists()


def test_tables_are_mappings_or_parts_and_four_names_are_also_settings():
    asked = {"seed": 1, "sampling": {"top-k": 5}, "engine": "vllm", "extract": True, "tuning": None}
    part = SamplingSettings(samples=3)  # of which what is set counts
    assert flattened(asked) == {
        "seed": 1,
        "top_k": 5,
        "engine": "vllm",
        "extract": True,
        "tuning": None,
    }
    assert flattened({"sampling": part, "report": {"slice_by": "a"}}) == {
        "samples": 3,
        "slice_by": "a",
    }
    flat = {"seed": 1, "samples": 3, "engine": "vllm", "extract": True, "what": 2}
    assert flattened(nested(flat)) == flat
    with pytest.raises(SettingsError, match=r"^setting 'samples' .*: write sampling={'samples'"):
        mia_batch.audit("corpus.parquet", "model", samples=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"stop_when_decided": True},
            "setting 'stop_when_decided' needs 'level' 'group', not 'target'",
        ),
        (
            {"stop_when_decided": True, "level": "group", "ties": "random"},
            "setting 'stop_when_decided' needs 'ties' 'conservative', not 'random'",
        ),
        ({"non_members": "nulls.parquet"}, "setting 'non_members' needs 'non_members_known' "),
        ({"samples": "0"}, "setting 'samples' is '0': input should be greater than or equal to 1"),
        ({"samples": True}, "setting 'samples' is True: input must not be a boolean"),
        ({"temperature": True}, "setting 'temperature' is True: input must not be a boolean"),
        ({"sample": 3}, "there is no setting 'sample'; did you mean 'samples'?"),
        ({"config": "none.toml"}, "setting 'config': there is no file none.toml"),
        ({"model": None}, "setting 'model' is missing: give --model, or model = ... in mia-batch"),
        ({"out": ""}, "setting 'out' is '': name a folder"),
        ({"input": "i", "out": "./i/"}, "setting 'out' is the input itself, 'i'"),
        ({"out": "x/../models/llama"}, "setting 'out' is the model itself"),
        ({"out": "notes.txt"}, "setting 'out' is 'notes.txt', which is a file; name a folder"),
        (
            {"engine_arg": ["max_model_len=abc"]},
            "setting 'engine_arg' is ['max_model_len=abc']: max_model_len should be a whole number",
        ),
        (
            {"engine_arg": {"max_model_len": -5}},
            "setting 'engine_arg' is {'max_model_len': -5}: max_model_len should be a whole number",
        ),
        *(
            (
                {"engine": engine},
                f"setting 'engine' is {engine!r}: known engines are auto, vllm, transformers, "
                "openai, replay",
            )
            for engine in ("x", "masked", "")
        ),
        ({"prefix_ratio": "1"}, "setting 'prefix_ratio' is '1': input should be less than 1"),
        ({"prefix_ratio": "nan"}, "setting 'prefix_ratio' is 'nan': "),
        (
            {"temperature": "-1"},
            "setting 'temperature' is '-1': input should be greater than or equal to 0",
        ),
        (
            {"temperature": "0", "samples": "2"},
            "setting 'samples' is 2, but at temperature 0 all samples",
        ),
        ({"temperature": "inf"}, "setting 'temperature' is 'inf': input should be a finite number"),
        ({"engine_arg": ("dtype",)}, "setting 'engine_arg' is ('dtype',): each must read KEY=VAL"),
        (
            {"base_url": ["http://a/v1", "http://b/v1"]},
            "setting 'base_url' is ['http://a/v1', 'http://b/v1']: give one address; to ask "
            "several servers, put a load balancer in front of them",
        ),
        ({"base_url": "http://a/v1,http://b/v1"}, "setting 'base_url': give one address; to ask s"),
        ({"engine": "openai"}, "engine 'openai' needs setting 'base_url' "),
        ({"engine": "vllm", "base_url": "http://a/v1"}, "setting 'base_url' belongs to engine 'op"),
        ({"engine": "replay"}, "engine 'replay' needs setting 'samples_from' "),
        ({"base_url": "http://a/v1", "max_cost": "1"}, "setting 'max_cost' needs prices; give 'pr"),
        ({"tokenizer": "gpt2"}, "setting 'tokenizer' belongs to engine 'openai'; leave it out"),
        ({"engine": "vllm", "max_cost": "1"}, "setting 'max_cost' belongs to engine 'openai'; le"),
        ({"samples_from": "a", "chat": True}, "setting 'chat' belongs to engine 'openai'; leave "),
        ({"candidate_column": "a"}, "setting 'candidate_column' belongs to engine 'replay'; leave"),
        (
            {"base_url": "http://a/v1", "chat_instruction": "Go on."},
            "setting 'chat_instruction' belongs to 'chat'; set that",
        ),
        (
            {"samples": "65537"},
            "setting 'samples' is 65537: a target has seeds for 65536 samples; ask for fewer",
        ),
        ({"stride": "3"}, "setting 'stride' needs 'window_words' or 'window_characters' "),
        (
            {"window_words": "3", "window_characters": "9"},
            "settings 'window_words' and 'window_characters' are two; leave out one of them",
        ),
        ({"text_length": "64"}, "setting 'text_length' belongs to preset 'samia'; leave it out or"),
        ({"attacks": ","}, "setting 'attacks' is ',': name at least one attack"),
        (
            {"preset": "samia", "word_rule": "whitespace"},
            "setting 'word_rule' is 'whitespace', but preset 'samia' needs 'space'",
        ),
        (
            {"preset": "samia", "text_length": "64", "window_words": "32"},
            "settings 'window_words' (32) and 'text_length' (64) must be equal where both are gi",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_what_came_and_what_is_allowed(settings, message):
    Path("notes.txt").touch()
    assert refusal(**settings).startswith(message)
    assert len(refusal(samples="0", engine="x").splitlines()) == 2


MINE = """
import polars as pl
from mia_batch.attacks import Attack, names

most = Attack(
    name="most_words_v1", expr=pl.col("words_candidate").max(), source="none", undefined="never"
)
"""


@pytest.mark.parametrize("kind", [str, Path])
def test_attacks_of_a_file_are_those_of_the_run(tmp_path, kind):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    assert load_settings(GIVEN | {"attacks_from": kind(path)}).attacks == ("most_words_v1",)
    both = {"attacks_from": kind(path), "attacks": "samia_v1,most_words_v1"}
    assert load_settings(GIVEN | both).attacks == ("samia_v1", "most_words_v1")


def test_attacks_may_be_given_as_objects_and_are_kept_by_name():
    mine = Attack(name="mine_v7", expr=pl.len(), source="none", undefined="never")
    assert load_settings(GIVEN | {"attacks": mine}).attacks == ("mine_v7",)
    settings = load_settings(GIVEN | {"attacks": [mine, "samia_v1"], "primary": "mine_v7"})
    assert settings.model_dump(mode="json")["attacks"] == ["mine_v7", "samia_v1"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("x = (\n", "mine.py, line 1 cannot be run (SyntaxError: '(' was never closed"),
        ("\n\nraise ValueError('so')\n", "mine.py, line 3 cannot be run (ValueError: so)"),
        ("import sys\nsys.exit(0)\n", "mine.py, line 2 cannot be run (SystemExit: 0)"),
        ("x = 1\n", "mine.py binds no Attack to a name"),
        (MINE.replace("most_words_v1", "samia_v1"), "there is another attack 'samia_v1'"),
    ],
)
def test_a_file_of_attacks_that_is_wrong_is_named_with_its_line(tmp_path, content, said):
    path = tmp_path / "mine.py"
    path.write_text(content)
    message = refusal(attacks_from=str(path))
    assert said in message
    assert len(message.splitlines()) == 1
