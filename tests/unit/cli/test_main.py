"""The command as a user runs it: exit codes, what is printed where, what is loaded."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import polars as pl
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from filelock import FileLock

from mia_batch.cli import help as helping
from mia_batch.cli.help import TOPICS
from mia_batch.cli.main import command
from mia_batch.settings import Settings
from tests.checkpoints import TEXTS, change, save_masked_checkpoint
from tests.forked import forked_command
from tests.hostile_server import MODEL, HostileServer, Script, failure
from tests.processes import HANGS

ENGINES = {"ray", "torch", "transformers", "vllm"}
MODELS = {"scipy", "sklearn", *ENGINES}
HEAVY = {"numpy", "obstore", "polars", *MODELS}
LOADED = {
    "import mia_batch": HEAVY,
    "from mia_batch.cli import main": HEAVY,
    "from mia_batch.cli.help import complete_attacks; complete_attacks(None, None, 'm')": (
        MODELS
    ),
    "import mia_batch.metrics": MODELS,
    "from mia_batch.evidence.engines.registry import choose_engine; "
    "choose_engine('auto', 'samples', frozenset())": (ENGINES),
}
"""Statements, one after the other in one process, and what is not loaded after each."""


def run(*arguments, cwd=None):
    """Exit code, standard output, standard error."""
    with TemporaryDirectory() as folder:
        stdout_path, stderr_path = Path(folder, "out"), Path(folder, "err")
        with forked_command(
            [*map(str, arguments)], stdout_path, stderr_path, cwd=cwd
        ) as process:
            process.wait(HANGS)
        return process.poll(), stdout_path.read_text(), stderr_path.read_text()


def test_nothing_heavy_is_loaded_before_it_is_needed():
    steps = (
        f"{statement}; print(json.dumps(sorted(sys.modules)))" for statement in LOADED
    )
    code = "\n".join(["import sys, json", *steps])
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True
    )
    for unwanted, line in zip(LOADED.values(), result.stdout.splitlines(), strict=True):
        assert unwanted.isdisjoint(json.loads(line))


KINDS = (
    *("--input PATH", "--model MODEL", "--out FOLDER", "--samples N", "--max-cost X"),
    *("--preset default|matched|samia|min-k|spv", "--text-length 32|64|128|256"),
    *(
        "--engine-arg KEY=VALUE",
        "--neighbours-column COLUMN",
        "--reference-model MODEL",
    ),
    *("--non-members PATH", "--non-members-known TEXT", "--length-edges N,..."),
    *("--slice-by NAME,...", "--primary NAME"),
)


def screen(*arguments, width=80):
    """What the command prints in this process, on a terminal of so many columns."""
    result = CliRunner().invoke(
        command, [*arguments], terminal_width=width, prog_name="mia-batch"
    )
    return result.output


def test_the_first_screen_is_short_and_the_help_names_every_setting():
    code, stdout, err = run()
    assert (code, err) == (0, "")
    assert len(stdout.splitlines()) <= 25
    assert max(map(len, stdout.splitlines())) <= 100
    with click.Context(command) as context:
        assert [
            name for name in command.list_commands(context) if name not in stdout
        ] == []
    assert stdout == screen("-h")
    text = screen("--help")
    assert len(text.splitlines()) <= 110
    options = {word.rstrip(",") for word in text.split() if word.startswith("--")}
    assert {f"--{name.replace('_', '-')}" for name in Settings.model_fields} <= options
    short = screen("audit", "-h")
    assert "--non-members PATH" in short
    assert "--logits-memory" not in short


def test_topics_describe_every_setting_and_say_of_what_kind_it_is():
    text = "\n".join(screen("help", topic, width=200) for topic in TOPICS)
    flat = " ".join(text.split())
    for name, field in Settings.model_fields.items():
        assert " ".join(str(field.description).split()) in flat, name
    lines = [f"{line.strip()} " for line in text.splitlines()]
    kind_lines = [
        line for kind in KINDS for line in lines if line.startswith(f"{kind} ")
    ]
    assert len(kind_lines) == len(KINDS)
    assert not any("()" in line for line in kind_lines)
    with click.Context(command) as context:
        topics = {*TOPICS, *command.list_commands(context)}
    assert {
        *re.findall(r"^  ([a-z-]+) ", screen("help", width=200), re.MULTILINE)
    } == topics


@pytest.mark.parametrize(
    ("about", "text"),
    [
        ("--max-cost", "--max-cost X  Stop before this much money"),
        ("report", "Usage: mia-batch report"),
        ("report", "[report]"),
        ("completion", 'eval "$(_MIA_BATCH_COMPLETE=bash_source mia-batch)"'),
        ("smapling", "did you mean `mia-batch help sampling`?"),
        ("tempreature", "did you mean `mia-batch help temperature`?"),
        ("", "mia-batch help completion"),
    ],
)
def test_help_is_about_settings_topics_and_commands(about, text):
    assert text in screen("help", *about.split())


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("aud", ["audit"]),
        ("audit --attacks loss,min-", ["loss,min-k", "loss,min-k++"]),
        ("attacks probe_f", ["probe_first_word_v1"]),
        ("--preset s", ["samia", "spv"]),
        ("audit --engine rep", ["replay"]),
        ("audit --yardstick n", ["none"]),
        ("audit --max-cost", ["--max-cost"]),
        ("help sam", ["sampling"]),
        ("compare a b --attack ez", ["ez-mia", "ez_mia_v1"]),
    ],
)
def test_a_shell_completes_commands_attacks_and_choices(typed, completed):
    *words_before, incomplete = typed.split()
    completions = ShellComplete(command, {}, "mia-batch", "_").get_completions(
        words_before, incomplete
    )
    assert [item.value for item in completions] == completed


def test_an_audit_is_asked_for_by_its_name_or_without(
    checkpoint, tmp_path, monkeypatch
):
    pl.DataFrame({"text": ["one two three four " * 4]}).write_parquet(
        tmp_path / "c.parquet"
    )
    (tmp_path / "given.toml").write_text(f'model = "{checkpoint}"\n')
    monkeypatch.chdir(tmp_path)
    arguments = "--attacks Min-K%++,recall_prefix,LOSS --nonmember-shots c.parquet"
    options = ("--config", "given.toml", *arguments.split(), "--dry-run")
    by_name = screen("audit", "c.parquet", *options, width=120)
    assert by_name == screen("--input", "c.parquet", *options, width=120)
    assert "min_k_plus_plus_20_v1, recall_prefix_v1, loss_v1" in by_name
    # As a shell leaves an empty variable out
    empty = screen("--base-url", "--price-in", "0.5")
    assert "--base-url has no value, for --price-in follows; give it one" in empty
    # As a shell fills a glob in
    for twice in (
        ("--input", "c.parquet"),
        ("d.parquet", "e.parquet"),
    ):
        assert "give one INPUT, and the model with --model; of several" in screen(
            "audit", "c.parquet", *twice, *options
        )


def test_attacks_are_listed_by_family_and_shown_with_formula_source_and_needs():
    code, stdout, _ = run("attacks")
    assert code == 0
    lines = stdout.partition("\n\n")[0].splitlines()
    assert len(lines) < 50
    rows = {line.split()[0]: re.split(" {2,}", line)[1:] for line in lines}
    assert rows["min-k++"] == [
        *("Min-K%++", "1 pass", "1 of 7: min_k_plus_plus_20_v1", "full distribution"),
    ]
    assert rows["samia"] == [
        "SaMIA",
        "10 samples",
        "1 of 16: samia_v1",
        "whole samples",
    ]
    needed = "log-probabilities, --masked-model or --neighbours-column"
    assert rows["neighbour"][1::2] == ["26 passes", needed]
    code, stdout, _ = run("attacks", "min_k_20_v1")
    details = dict(line.split(None, 1) for line in stdout.splitlines())
    assert code == 0
    assert details["formula"].strip() == "mean of the lowest 20 % of logprob"
    assert details["needs"].strip() == "log-probabilities"
    assert details["family"].strip() == "min-k, which stands for min_k_20_v1"
    assert "2310.16789" in details["source"]
    assert "no token of the text has a log-probability" in details["null"]
    _, stdout, _ = run("attacks", "samia_v1")
    text = " ".join(stdout.split())
    assert "costs about 9,240 tokens to decode for a text of 200 tokens" in text
    assert "samia_matched_v1 about 1,330" in text


MINE = """
import polars as pl
from mia_batch.attacks import Attack

most = Attack(
    name="most_words_v1", expr=pl.col("words_candidate").max(), source="none", undefined="never"
)
"""


def test_a_finished_run_is_scored_with_other_attacks_without_a_model(tmp_path):
    pl.DataFrame({"text": ["a b c d", "e f g h"]}).write_parquet(tmp_path / "c.parquet")
    recorded = {
        "prefix": ["a b", "e f"],
        "candidate": [" c x y", " g h"],
        "sample_index": [0, 0],
    }
    pl.DataFrame(recorded).write_parquet(tmp_path / "r.parquet")
    (tmp_path / "mine.py").write_text(MINE)
    audit_arguments = (
        "--input",
        "c.parquet",
        "--samples-from",
        "r.parquet",
        "--samples",
        1,
        "--out",
        "run",
    )
    assert run(*audit_arguments, "--attacks", "samia_v1", cwd=tmp_path)[0] == 0

    def score_run(*options):
        code, _, err = run("score", "run", *options, cwd=tmp_path)
        return code, err

    attack_options = ("--attacks", "rouge_l_v1,most_words_v1")
    assert score_run(*attack_options, "--attacks-from", "mine.py")[0] == 0
    both_scores = pl.read_parquet(tmp_path / "run" / "scores.parquet")
    assert both_scores.columns[-2:] == ["rouge_l_v1", "most_words_v1"]
    assert both_scores.select("rouge_l_v1", "most_words_v1").rows() == [
        (0.5, 3.0),
        (1.0, 2.0),
    ]
    code, err = score_run(*attack_options)
    assert (
        code,
        "whose code is run only if you name it; give --attacks-from" in err,
    ) == (2, True)
    # A formula that gives no finite number scores nothing, which is no success.
    (tmp_path / "none.py").write_text(
        MINE.replace(".max()", ".max() / 0").replace("most_", "no_")
    )
    code, err = score_run("--attacks-from", "none.py", "--replace")
    assert (code, "no text has a score (reasons above)" in err) == (1, True)
    scores_before = (tmp_path / "run" / "scores.parquet").read_bytes()
    code, err = score_run("--attacks", "loss_v1")
    assert (code, "loss_v1 needs log-probabilities" in err) == (2, True)
    assert (tmp_path / "run" / "scores.parquet").read_bytes() == scores_before


def test_a_dry_run_shows_settings_targets_and_budget_and_writes_its_plan(
    checkpoint, tmp_path
):
    words = " ".join(f"w{number}" for number in range(20))
    pl.DataFrame({"text": [words, words, None]}).write_parquet(
        tmp_path / "corpus.parquet"
    )
    arguments = (
        "--input",
        "corpus.parquet",
        "--model",
        checkpoint,
        "--preset",
        "matched",
    )
    code, stdout, err = run(*arguments, "--samples", 4, "--dry-run", cwd=tmp_path)
    assert (code, err) == (0, "")
    facts = dict(
        line.split(None, 1) for line in stdout.splitlines() if len(line.split()) > 1
    )
    assert facts["samples"].strip() == "8"
    assert facts["targets"].strip() == "3"
    assert facts["--preset"].strip() == "matched"
    assert not {"--stride", "--prefix-ratio", "attack"} & set(facts)
    corpus, lodged = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert (corpus.name, lodged.name) == ("corpus.parquet", "plan.json")
    assert sha256(lodged.read_bytes()).hexdigest() in stdout


@pytest.fixture(scope="module")
def models(checkpoint, tmp_path_factory):
    """Folders: a good model, one without a tensor, with another's tokenizer, a masked one."""
    folder = tmp_path_factory.mktemp("models")
    damaged = shutil.copytree(checkpoint, folder / "damaged")
    change(
        damaged,
        lambda tensors: {
            name: tensors[name] for name in tensors if name != "lm_head.weight"
        },
    )
    foreign = shutil.copytree(checkpoint, folder / "foreign")
    change(foreign, lambda tensors: tensors, eos_token_id=7)
    masked = save_masked_checkpoint(folder / "masked")
    return {
        "model": checkpoint,
        "damaged": damaged,
        "foreign": foreign,
        "masked": masked,
    }


INPUT_AND_MODEL = "--input {corpus} --model {model}"
DAMAGED = "--input {corpus} --model {damaged}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--input none.parquet --model nowhere/at/all", "none.parquet"),
        ("--input {corpus} --model nowhere/at/all", "--model: 'nowhere/at/all' "),
        ("--input {corpus}", "--model is missing"),
        (f"{INPUT_AND_MODEL} --samples 0", "--samples must be at least 1, not '0'"),
        (f"{INPUT_AND_MODEL} --engine x", "--engine is 'x'"),
        (f"{INPUT_AND_MODEL} --out {{corpus}}", "--out is '"),
        (f"{INPUT_AND_MODEL} --attacks x_v1", "no attack 'x_v1'"),
        (f"{INPUT_AND_MODEL} --config no.toml", "no file no.toml"),
        (f"{DAMAGED} --dry-run", "lack lm_head.weight"),
        (f"{DAMAGED} --engine vllm", "lack lm_head.weight"),
        (f"{DAMAGED} --engine transformers", "lack lm_head.weight"),
        ("--input {corpus} --model {foreign} --dry-run", "is of another model: it"),
        ("--input {corpus} --model {masked} --engine vllm", "is a masked model"),
        ("attacks samia_v", "no attack 'samia_v'; did you mean samia_v1"),
        (
            "attacks min_kk",
            "did you mean the family min-k (min_k_5_v1 ... min_k_60_v1)?",
        ),
        ("{corpus}", "did you mean `mia-batch audit {corpus}`?"),
        ("--xyzzy", "there is no option --xyzzy; `mia-batch -h` says what it takes"),
        ("audit --modle m", "there is no option --modle; did you mean --model?"),
        ("--samples", "Option '--samples' requires an argument; `mia-batch -h` says"),
        (
            "report",
            "Missing argument 'RUN...'; `mia-batch report -h` says what it takes",
        ),
        (
            "audit --device cuda",
            "no option --device; GPUs are taken as they are visible",
        ),
        ("audit --batch-size 4", "no option --batch-size; batches are chosen by"),
        ("finetune --input x", "there is no option --input; finetune and privacy take"),
        ("version", "there is no command 'version'; give --version"),
        ("show {corpus}", "corpus.parquet is a file, no run; give the folder of a run"),
        ("help ReCaLL", "`mia-batch attacks recall_prefix_v1` describes the attack"),
        (
            "bench --model nowhere/at/all",
            "'nowhere/at/all' does not exist; give a checkpoint",
        ),
        ("--samples 3 attacks", "takes its own options"),
    ],
)
def test_a_wrong_request_exits_with_2_one_sentence_and_no_traceback(
    models, tmp_path, arguments, message
):
    corpus = tmp_path / "corpus.parquet"
    pl.DataFrame({"text": ["one two three four"]}).write_parquet(corpus)
    filled = arguments.format(corpus=corpus, **models).split()
    code, stdout, err = run(*filled, cwd=tmp_path)
    assert code == (1 if arguments.startswith("show {") else 2)
    assert not stdout or "--dry-run" in arguments  # which says first what it knows
    assert "Usage:" not in err
    assert message.format(corpus=corpus, **models) in err
    assert "Traceback" not in err


def shell(script, folder):
    """Exit code, standard output, standard error of a script that runs the command as ``$M``."""
    result = subprocess.run(
        ["sh", "-c", script],
        capture_output=True,
        cwd=folder,
        env=os.environ | {"M": f"{sys.executable} -m mia_batch"},
        text=True,
        timeout=HANGS,
        check=False,
    )
    return result.returncode, result.stdout, result.stderr


def test_what_the_system_refuses_is_said_in_one_sentence(checkpoint, tmp_path):
    full = "mia-batch: the system refused to read or write: No space left on device\n"
    assert shell("$M attacks >/dev/full", tmp_path) == (1, "", full)
    message = (
        "mia-batch: the working directory has been deleted; change to one that exists\n"
    )
    pl.DataFrame({"text": ["one two three four"]}).write_parquet(
        tmp_path / "corpus.parquet"
    )
    (tmp_path / "x").mkdir()
    script = (
        f"cd x; rmdir ../x; $M --input {tmp_path}/corpus.parquet --model {checkpoint}"
    )
    assert shell(script, tmp_path) == (1, "", message)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("$M attacks >&-", 0),
        ("$M attacks <&- >&- 2>&-", 0),
        ("$M attacks 2>&- >out; head -1 out >/dev/null", 0),
        ("$M --input none --model x <&- >&- 2>&-", 2),
        ("env -u HOME COLUMNS=5 TERM=dumb NO_COLOR=1 LC_ALL=C $M attacks >out", 0),
    ],
)
def test_closed_streams_and_poor_terminals_change_nothing(tmp_path, script, code):
    assert shell(script, tmp_path) == (code, "", "")


def test_a_name_that_the_terminal_cannot_show_is_shown_all_the_same(tmp_path):
    pl.DataFrame({"text": ["one two three four"]}).write_parquet(
        tmp_path / "a [b] é?.parquet"
    )
    recorded = {"prefix": ["one two"], "candidate": [" x"], "sample_index": [0]}
    pl.DataFrame(recorded).write_parquet(tmp_path / "r.parquet")
    script = (
        "PYTHONIOENCODING=ascii $M --input ./a*.parquet --samples-from r.parquet"
        " --dry-run"
    )
    code, stdout, err = shell(script, tmp_path)
    assert (code, err) == (0, "")
    assert "./a [b] \\xe9?.parquet" in stdout


@pytest.fixture(scope="module")
def small_cli_run(checkpoint, tmp_path_factory):
    """An audit of three unlabelled texts, one of them null."""
    folder = tmp_path_factory.mktemp("cli")
    texts = ["[red]markup[/red] \x1b[2Jclear " * 10, "plain words " * 10, None]
    pl.DataFrame({"text": texts}).write_parquet(folder / "corpus.parquet")
    (folder / "mia-batch.toml").write_text(
        f'model = "{checkpoint}"\nengine = "transformers"\nout ='
        ' "run"\n[sampling]\nsamples = 2\n'
    )
    return *run("--input", "corpus.parquet", cwd=folder), folder


def test_unlabelled_input_shows_the_highest_scores_and_a_folder_that_is_held_exits_with_1(
    small_cli_run,
):
    code, stdout, err, folder = small_cli_run
    assert code == 0, err
    assert "strongest passages by probe_leading_rarity_v1" in stdout
    assert "[red]markup[/red] \ufffd[2Jclear" in stdout
    assert "1 text without a score of probe_leading_rarity_v1, probe_" in stdout
    assert "sampling: 24 of 24 points" in err
    scores = pl.read_parquet(folder / "run" / "scores.parquet")
    assert scores["probe_leading_rarity_v1"].null_count() == 1
    with FileLock(folder / "run" / ".lock"):
        code, stdout, err = run("--input", "corpus.parquet", cwd=folder)
    assert (code, stdout) == (1, "")
    assert "held by another live run" in err
    assert "Traceback" not in err


TURN = '{"messages": [{"role": "user", "content": "what is it"}]}'
NO_WORDS = {
    "empty.txt": ("", "empty.txt has no words; give a file with text"),
    "blank.jsonl": (
        '{"text": ""}\n{"text": " "}',
        "blank.jsonl: none of the 2 texts has words; give files with text, or name"
        " their column with --text-column",
    ),
    "asked.jsonl": (
        f"{TURN}\n{TURN}",
        "asked.jsonl: no conversation has an answer with words, and answers are what is"
        " asked about; give conversations with answers, or --conversations text to"
        " read each as one text",
    ),
}


@pytest.mark.parametrize("name", NO_WORDS)
def test_texts_without_words_are_refused_before_anything_is_asked(name, tmp_path):
    content, sentence = NO_WORDS[name]
    (tmp_path / name).write_text(content)
    with HostileServer(Script(failure(400, "never asked"))) as server:
        options = [
            "--input",
            name,
            "--base-url",
            server.url,
            "--model",
            MODEL,
            "--chat",
        ]
        options += ["--preset", "matched"]
        status, _, stderr = run(*options, cwd=tmp_path)
        assert (status, stderr.splitlines()[-1]) == (2, f"mia-batch: {sentence}")
        assert run(*options, "--dry-run", cwd=tmp_path)[0] == 2
    assert server.asked == server.probes == []


def test_more_failures_than_allowed_make_the_exit_code_1(tmp_path):
    texts = [" ".join(text.split()[:40]) for text in TEXTS[:6]]
    # Empty texts are never asked about, so that they are no failures.
    pl.DataFrame({"text": [*texts, "", " "]}).write_parquet(tmp_path / "corpus.parquet")
    refused = Script(failure(400, "this text is not allowed"))
    with HostileServer(refused) as server:
        options = [
            "--input",
            "corpus.parquet",
            "--base-url",
            server.url,
            "--model",
            MODEL,
            *("--preset", "matched"),  # one prompt a text
        ]
        status, stdout, stderr = run(*options, cwd=tmp_path)
        enough, *_ = run(*options, "--max-failed", "0.2", cwd=tmp_path)
        again, mended, _ = run(*options, "--retry-failed", cwd=tmp_path)
    assert (status, enough, again) == (1, 0, 0)
    assert (
        "1 text without samples: the endpoint refused the request: status 400" in stdout
    )
    assert (
        stderr.splitlines()[-1]
        == "mia-batch: 1 of 6 texts have failed samples, more than --max-failed (0.05) "
        "allows; the same command with --retry-failed tries them again"
    )
    assert "without samples" not in mended


def test_answers_about_other_tools_name_options_that_there_are():
    table = Path(helping.__file__).with_name("other_tools.toml")
    answers = tomllib.loads(table.read_text("utf-8"))
    audit = command.commands["audit"]
    options = {flag for option in audit.params for flag in option.opts}
    assert {f"--{name}" for name in answers} & options == {"--input"}
    for answer in answers.values():
        named_options = {*re.findall(r"--[a-z-]+", answer)} - {"--data"}
        assert named_options <= options
