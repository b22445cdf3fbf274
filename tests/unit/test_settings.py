"""Settings: options over file over defaults, and one sentence for each thing that is wrong."""

from pathlib import Path
from typing import Any

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
    find_user_only,
    flatten,
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
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    Path("corpus.parquet").touch()


DEFAULTS: dict[str, Any] = {
    "continuations": 10,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "max_length": 1024,
    "prefix_ratio": 0.5,
    "preset": "default",
    "word_rule": "folded",
    "engine": "auto",
}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, DEFAULTS),  # the decoding of the papers
        ({"preset": "samia"}, {"word_rule": "space"}),
        *(({"word_rule": rule}, {"word_rule": rule}) for rule in WORD_RULES),
        *(({"temperature": zero}, {"samples": 1}) for zero in ("0", "0.0", 0, 0.0)),
        ({"temperature": "0.1"}, {"continuations": 10}),
        ({"base_url": "http://host/v1"}, {"engine": "openai"}),
        (
            {"model": None, "samples_from": "s.jsonl"},
            {"engine": "replay", "model": "recorded"},
        ),
        ({"samples": "3", "top_p": "0.95"}, {"samples": 3, "top_p": 0.95}),
        ({"model": Path("models/llama")}, {"model": "models/llama"}),
        ({"preset": "samia", "text_length": "64"}, {"text_length": 64}),
        (
            {"attacks": "samia_v1, samia_v1,samia_n2_v1"},
            {"attacks": ("samia_v1", "samia_n2_v1")},
        ),
        (
            {
                "engine_arg": (
                    "max-model-len=128",
                    "quantization=fp8",
                    "enforce_eager=true",
                )
            },
            {
                "engine_arg": {
                    "max_model_len": 128,
                    "quantization": "fp8",
                    "enforce_eager": True,
                }
            },
        ),
        *(
            ({"input": source, "model": model}, {"folder": Path("runs", folder)})
            for source, model, folder in (
                ("data/corpus.parquet", "models/llama", "corpus-llama"),
                ("books/", "owner/Name-7b.v2", "books-Name-7b.v2"),
                ("parts/*.parquet", "m", "_-m"),
                (".", "m", "here-m"),
            )
        ),
    ],
)
def test_options_and_what_follows_from_them(options, found):
    settings = load_settings(GIVEN | options)
    assert {name: getattr(settings, name) for name in found} == found


def test_a_file_that_is_named_is_read_and_one_in_the_folder_of_the_input_is_not(
    tmp_path,
):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / CONFIG_NAME).write_text("samples = \n")  # would be refused
    for source in ("data", "data/corpus.parquet", tmp_path / "data"):
        settings = load_settings(GIVEN | {"input": source})
        assert (settings.samples, settings.config) == (None, None)
    (tmp_path / CONFIG_NAME).write_text(
        'model = "owner/name"\n[sampling]\nsamples = 9\n'
    )
    # No path, as nothing is there
    assert load_settings({"input": "c"}).model == "owner/name"
    folder = tmp_path / "demo"
    (folder / "model").mkdir(parents=True)
    (folder / CONFIG_NAME).write_text(
        '\ufeffmodel = "model"\nseed = 7\nout = "run"\n[sampling]\nsamples = 4\n'
        "[texts]\nprefix-ratio = 0.25\n"
    )
    settings = load_settings({"config": "demo/mia-batch.toml", "input": "c"})
    assert (settings.model, settings.out) == (str(Path("demo/model")), Path("demo/run"))
    assert (settings.samples, settings.seed, settings.prefix_ratio) == (4, 7, 0.25)
    assert settings.config == "demo/mia-batch.toml"
    named = {"config": Path("demo/mia-batch.toml"), "input": "c", "samples": "2"}
    assert load_settings(named).samples == 2


MINE = """
import polars as pl
from mia_batch import attacks
from mia_batch.attacks import Attack

most = Attack(
    name="most_words_v1", expr=pl.col("words_candidate").max(), source="none", undefined="never"
)
"""
HERE = "in mia-batch.toml"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "attacks_from = 'mine.py'",
            "attacks_from= runs code and cannot be set in mia-b",
        ),
        (
            "attacks-from = 'mine.py'",
            "attacks_from= runs code and cannot be set in mia-b",
        ),
        (
            "config = 'other.toml'",
            "config= names this file and cannot be set in mia-batc",
        ),
        (
            "[engine.engine_arg]\ntrust_remote_code = true",
            "mia-batch.toml sets trust_remote_code",
        ),
        (
            "[engine]\nengine_arg = ['worker-cls=a.B']",
            "sets worker_cls, which may load code",
        ),
        (
            "samples = 4",
            (
                f"`samples` {HERE} stands in the table 'sampling': write it below"
                " [sampling]"
            ),
        ),
        (
            "[texts]\nseed = 4",
            f"`seed` {HERE} stands in no table: write it above all tables",
        ),
        (
            "sampling = 4",
            f"'sampling' {HERE} is a table of settings, such as samples, ",
        ),
        ("[texts]\nsamples = 4", f"`samples` {HERE} stands in the table 'sampling'"),
        (
            "[sampling]\nsample = 4",
            (
                f"table [sampling] {HERE}: there is no setting 'sample'; did you mean"
                " 'samples'?"
            ),
        ),
        ("colour = 1", f"no setting 'colour' {HERE}; `mia-batch help` lists them all"),
        ("samples = ", "config: mia-batch.toml cannot be read as TOML: "),
        ("\udcff", "config: mia-batch.toml cannot be read as TOML: "),
    ],
)
def test_a_file_of_settings_that_is_refused_runs_no_code(tmp_path, content, said):
    (tmp_path / "mine.py").write_text("open('ran', 'w').close()\n" + MINE)
    (tmp_path / CONFIG_NAME).write_bytes(content.encode(errors="surrogateescape"))
    assert said in refusal()
    assert not Path("ran").exists()


ONLY_THE_USER = {
    "base_url": "http://127.0.0.1:1/v1",
    "api_key_env": "AWS_SECRET_ACCESS_KEY",
    "ray": "ray://127.0.0.1:1",
    "out": "s3://bucket/run",
    "known_index": "http://127.0.0.1:1#index",
    "attacks_from": "mine.py",
    "config": "other.toml",
    "plan": "plan.json",
    "texts_to": "texts.jsonl",
    "requests_to": "requests",
    "input": "https://127.0.0.1:1/corpus.jsonl",
    "non_members": "s3://bucket/new.parquet",
    "calibration": "hf://datasets/org/name",
    "known_corpus": "gs://bucket/corpus",
    "prompts_from": "https://127.0.0.1:1/prompts.jsonl",
    "candidate_from": "https://127.0.0.1:1/candidates.jsonl",
}


def test_each_setting_that_no_file_decides_is_known_by_its_name():
    assert {
        name for name in Settings.model_fields if find_user_only(name)
    } == ONLY_THE_USER.keys()


@pytest.mark.parametrize("name", ONLY_THE_USER)
@pytest.mark.parametrize("file", [CONFIG_NAME, "named.toml"])
def test_what_sends_or_runs_counts_from_the_user_alone(tmp_path, name, file):
    (text,) = _toml({name: ONLY_THE_USER[name]})
    (tmp_path / file).write_text(text)
    settings = {} if file == CONFIG_NAME else {"config": file}
    marked = find_user_only(name)
    assert marked is not None
    assert f"{name}= {marked.reason} and cannot be set in {file}; " in refusal(
        **settings
    )


def _toml(settings):
    for key, value in nested(settings).items():
        table, inside = (
            (f"[{key}]\n", value) if isinstance(value, dict) else ("", {key: value})
        )
        yield table + "".join(f"{name} = '{each}'\n" for name, each in inside.items())


def test_the_users_own_file_may_name_a_server_and_other_files_come_before_it(tmp_path):
    own = tmp_path / "home" / "mia-batch" / CONFIG_NAME
    own.parent.mkdir(parents=True)
    server = {
        "base_url": SERVER,
        "api_key_env": "MY_KEY",
        "timeout": 5,
        "max_retries": 3,
    }
    own.write_text("seed = 3\n" + "".join(_toml(server)))
    assert load_settings(GIVEN).api_key_env == "MY_KEY"
    (tmp_path / CONFIG_NAME).write_text("[endpoint]\ntimeout = 6\nmax_retries = 4\n")
    settings = load_settings(GIVEN | {"max_retries": 5})
    assert (settings.base_url, settings.seed) == (SERVER, 3)
    assert (settings.timeout, settings.max_retries) == (6, 5)
    assert settings.config == f"{CONFIG_NAME} and {own}"
    assert load_settings(GIVEN, use_config=False).base_url is None


def test_a_file_of_settings_may_set_arguments_that_load_nothing(tmp_path):
    (tmp_path / CONFIG_NAME).write_text("[engine.engine_arg]\nmax_model_len = 64\n")
    assert load_settings(GIVEN).engine_arg == {"max_model_len": 64}
    given = {**GIVEN, "engine_arg": {"max_num_seqs": 8, "max_model_len": 512}}
    evidence = load_settings(given).evidence_values  # not memory
    assert evidence["engine_arg"] == {"max_model_len": 512}


@pytest.mark.parametrize(
    "wrong",
    [{"samples": "0"}, {"input": "none.parquet"}, {"primary": 3}, {"max_failed": "2"}],
)
def test_code_of_attacks_runs_only_after_all_else_was_found_right(tmp_path, wrong):
    (tmp_path / "mine.py").write_text("open('ran', 'w').close()\n" + MINE)
    with pytest.raises(RequestError):
        load_settings(GIVEN | {"attacks_from": "mine.py"} | wrong)
    stored = GIVEN | {
        "attacks_from": "mine.py",
        "attacks": ["own_v1"],
        "primary": "own_v1",
    }
    # Of a stranger's run, unknown attacks stay names
    settings = stored_settings(stored)
    assert (settings.attacks, settings.primary) == (("own_v1",), "own_v1")
    assert not Path("ran").exists()
    load_settings(GIVEN | {"attacks_from": "mine.py"})
    assert Path("ran").exists()


def test_tables_are_mappings_or_parts_and_four_names_are_also_settings():
    asked = {
        "seed": 1,
        "sampling": {"top-k": 5},
        "engine": "vllm",
        "extract": True,
        "tuning": None,
    }
    rest = {"seed": 1, "engine": "vllm", "extract": True, "tuning": None}
    assert flatten(asked) == rest | {"top_k": 5}
    part = SamplingSettings(samples=3)  # of which what is set counts
    found = flatten({"sampling": part, "report": {"slice_by": "a"}})
    assert found == {"samples": 3, "slice_by": "a"}
    flat = {"seed": 1, "samples": 3, "engine": "vllm", "extract": True, "what": 2}
    assert flatten(nested(flat)) == flat


def test_a_setting_may_be_given_by_its_name_alone_but_not_twice():
    assert flatten({"samples": 3, "non_members": "new/"}) == {
        "samples": 3,
        "non_members": "new/",
    }
    nothing_named = {"sampling": None, "engine": None}
    assert flatten(nothing_named | {"samples": 3})["samples"] == 3
    with pytest.raises(SettingsError, match=r"^samples= is given twice: by itself and"):
        mia_batch.audit("corpus.parquet", "model", sampling={"samples": 5}, samples=3)
    with pytest.raises(SettingsError, match=r"^samples= must be at least 1, not 0"):
        mia_batch.audit("corpus.parquet", "model", samples=0)


ROUNDS = {"stop_when_decided": True, "level": "group"}
SERVER, OTHER = "http://a/v1", "http://b/v1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sample": 3}, "there is no setting 'sample'; did you mean 'samples'?"),
        (
            {"recordings": {}},
            "there is no setting 'recordings'; did you mean 'recording'?",
        ),
        (
            {"model": None},
            "model= is missing; give it, or write model = ... in mia-batch",
        ),
        ({"config": "none.toml"}, "config: there is no file none.toml"),
        (
            ROUNDS | {"level": "target"},
            "stop_when_decided= needs level= 'group', not 't",
        ),
        (
            ROUNDS | {"ties": "random"},
            "stop_when_decided= needs ties= 'conservative', n",
        ),
        (
            {"non_members": "nulls.parquet"},
            "non_members= needs non_members_known= as well: say how it is known that",
        ),
        ({"samples": "0"}, "samples= must be at least 1, not '0'"),
        ({"samples": True}, "samples= is True: it must not be true or false"),
        ({"temperature": True}, "temperature= is True: it must not be true or false"),
        ({"prefix_ratio": "1"}, "prefix_ratio= must be below 1.0, not '1'"),
        ({"prefix_ratio": "nan"}, "prefix_ratio= must be a number, not 'nan'"),
        (
            {"temperature": "-1"},
            "temperature= must be at least 0.0, not '-1'",
        ),
        ({"temperature": "inf"}, "temperature= must be a number, not 'inf'"),
        (
            {"temperature": "0", "samples": "2"},
            "samples= is 2, but at temperature 0 all samples",
        ),
        (
            {"samples": "65537"},
            "samples= is 65537: a target has seeds for 65536 samples; ask for fewer",
        ),
        (
            {"engine_arg": ("dtype",)},
            "engine_arg= is ('dtype',): each must read KEY=VAL",
        ),
        *(
            (
                {"engine_arg": wrong},
                f"engine_arg= is {wrong!r}: max_model_len should be a",
            )
            for wrong in (["max_model_len=abc"], {"max_model_len": -5})
        ),
        (
            {"base_url": [SERVER, OTHER]},
            (
                f"base_url= is ['{SERVER}', '{OTHER}']: give one address; to ask"
                " several servers, put a load balancer in front of them"
            ),
        ),
        (
            {"base_url": f"{SERVER},{OTHER}"},
            "base_url: give one address; to ask several",
        ),
        *(
            (
                {"engine": name},
                f"engine= is {name!r}: known engines are auto, vllm, trans",
            )
            for name in ("x", "vlm", "masked", "")  # masked gives no evidence
        ),
        ({"engine": "openai"}, "engine 'openai' needs base_url="),
        ({"engine": "replay"}, "engine 'replay' needs samples_from="),
        (
            {"engine": "vllm", "base_url": SERVER},
            "base_url= belongs to engine 'openai'; ",
        ),
        ({"tokenizer": "gpt2"}, "tokenizer= belongs to engine 'openai'; leave it out"),
        (
            {"engine": "vllm", "max_cost": "1"},
            "max_cost= belongs to engine 'openai'; le",
        ),
        (
            {"samples_from": "a", "chat": True},
            "chat= belongs to engine 'openai'; leave ",
        ),
        (
            {"candidate_column": "a"},
            "candidate_column= belongs to engine 'replay'; leave",
        ),
        ({"base_url": SERVER, "max_cost": "1"}, "max_cost= needs price_in= as well"),
        (
            {"base_url": SERVER, "max_cost": "1", "price_in": 1},
            "max_cost= needs price_out= as well",
        ),
        (
            {"base_url": SERVER, "chat_instruction": "Go on."},
            "chat_instruction= needs chat= as well",
        ),
        ({"stride": "3"}, "stride= needs window_words= or window_characters= as well"),
        (
            {"window_words": "3", "window_characters": "9"},
            "window_words= and window_characters= are two; leave out one of them",
        ),
        (
            {"text_length": "64"},
            "text_length= belongs to preset 'samia'; leave it out or",
        ),
        (
            {"preset": "samia", "word_rule": "whitespace"},
            "word_rule= is 'whitespace', but preset 'samia' needs 'space'",
        ),
        (
            {"preset": "samia", "text_length": "64", "window_words": "32"},
            "window_words= (32) and text_length= (64) must be equal where both are gi",
        ),
        ({"attacks": ","}, "attacks= is ',': name at least one attack"),
        ({"out": ""}, "out= is '': name a folder"),
        (
            {"out": "./corpus.parquet/"},
            "out= is 'corpus.parquet', which is a file; name",
        ),
        ({"input": "i", "out": "./i/"}, "out= is the input itself, 'i'"),
        ({"out": "x/../models/llama"}, "out= is the model itself"),
    ],
)
def test_a_wrong_setting_is_named_with_what_came_and_what_is_allowed(settings, message):
    assert refusal(**settings).startswith(message)


def test_an_unknown_attack_names_the_nearest_and_every_wrong_setting_has_its_line():
    message = refusal(attacks="samia_v1,samia_matchd_v1")
    assert message.startswith("attacks=")
    assert "'samia_matchd_v1'" in message
    assert "samia_matched_v1" in message
    assert len(refusal(samples="0", engine="x").splitlines()) == 2


def test_evidence_settings_are_settings_and_how_many_samples_is_none_of_them():
    marked = set(Settings.marked(Mark.EVIDENCE))
    assert marked < set(Settings.model_fields)
    assert {"engine", "dtype", "preset", "word_rule", "top_k", "seed"} < marked
    assert not {"samples", "attacks", "attacks_from", "input", "out"} & marked


def own(expr, *more):
    """A file of an attack on log-probabilities, as a user writes it."""
    arguments = ", ".join(
        ('"mean_v1"', expr, 'evidence="logprobs"', 'source="mine"', *more)
    )
    text = (
        "import polars as pl\nfrom mia_batch.attacks import Attack\n\nmine ="
        f" Attack({arguments})"
    )
    return text.replace('"mean_v1", ', 'undefined="no token", name="mean_v1", expr=', 1)


@pytest.mark.parametrize("kind", [str, Path])
def test_attacks_of_a_file_are_those_of_the_run(tmp_path, kind):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    assert load_settings(GIVEN | {"attacks_from": kind(path)}).attacks == (
        "most_words_v1",
    )
    both = {"attacks_from": kind(path), "attacks": "samia_v1"}
    assert load_settings(GIVEN | both).attacks == ("samia_v1", "most_words_v1")
    first = both | {"attacks": "most_words_v1,samia_v1"}
    assert load_settings(GIVEN | first).attacks == ("most_words_v1", "samia_v1")


def test_attacks_may_be_given_as_objects_and_are_kept_by_name():
    mine = Attack(name="mine_v7", expr=pl.len(), source="none", undefined="never")
    assert load_settings(GIVEN | {"attacks": mine}).attacks == ("mine_v7",)
    settings = load_settings(
        GIVEN | {"attacks": [mine, "samia_v1"], "primary": "mine_v7"}
    )
    assert settings.model_dump(mode="json")["attacks"] == ["mine_v7", "samia_v1"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("x = (\n", "mine.py, line 1 cannot be run (SyntaxError: '(' was never closed"),
        (
            "\n\nraise ValueError('so')\n",
            "mine.py, line 3 cannot be run (ValueError: so)",
        ),
        ("import sys\nsys.exit(0)\n", "mine.py, line 2 cannot be run (SystemExit: 0)"),
        ("x = 1\n", "mine.py binds no Attack to a name"),
        (
            MINE.replace("most_words_v1", "samia_v1"),
            "there is another attack 'samia_v1'",
        ),
        (
            own('pl.col("log_prob").list.mean().first()'),
            (
                "attack 'mean_v1' (mine.py, line 4) reads the column 'log_prob', which"
                " rows of the view text do not have; did you mean 'logprob'? They have "
            ),
        ),
        (
            own('pl.col("logprob").list.first().str.len_bytes().first()'),
            (
                "attack 'mean_v1' (mine.py, line 4) cannot be computed: invalid series"
                " dtype: expected `String`, got `f32` for series with name `logprob`"
            ),
        ),
        (
            own('pl.col("logprob").mean()'),
            (
                "attack 'mean_v1' (mine.py, line 4) cannot be computed: `mean` operation"
                " not supported for dtype `list[f32]`; a list column holds a number for"
                " each token: compute with .list, as in .list.mean(), and end with"
                ' .first(). Its expression is col("logprob").mean()'
            ),
        ),
        (
            own('pl.col("logprob").list.mean()'),
            "mine.py, line 4: attack 'mean_v1' must aggregate",
        ),
        (
            own('pl.col("logprob").list.first().first().cast(pl.String)'),
            (
                "attack 'mean_v1' (mine.py, line 4) makes values of type String, not"
                " numbers"
            ),
        ),
        (
            own("pl.len()", 'reads=(("target", "continuation"),)'),
            (
                "mine.py, line 4: attack 'mean_v1' reads log-probabilities of the view"
                " 'continuation'"
            ),
        ),
    ],
)
def test_a_file_of_attacks_that_is_wrong_is_named_with_its_line(
    tmp_path, content, said
):
    path = tmp_path / "mine.py"
    path.write_text(content)
    message = refusal(attacks_from=str(path)).replace(f"{tmp_path}/", "")
    assert said in message
    assert len(message.splitlines()) == 1
