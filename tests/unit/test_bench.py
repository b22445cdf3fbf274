"""`mia-batch bench`: its rows, its refusals, and each way on a few texts and a tiny model."""

import json
import subprocess
from collections import Counter
from math import exp, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from scipy.stats import ttest_ind

from mia_batch.cli.main import command
from mia_batch.errors import CorpusError, EngineError, SettingsError
from mia_batch.evidence.engines import registry
from mia_batch.extras.speed import comparing, measuring, showing, ways
from mia_batch.extras.speed.machine import count_cores
from mia_batch.extras.speed.texts import write_texts
from mia_batch.kernels import pair_features
from tests.checkpoints import TEXTS

FOUND: dict[str, dict[str, Any]] = {
    "sample": {"tokens": 4000, "prompts": 20, "seconds": 2.0},
    "sample_by_vllm": {"reason": "vLLM is not there"},
    "sample_by_transformers": {"tokens": 500, "seconds": 1.0},
    "score_texts": {"tokens": 900, "seconds": 3.0},
    "compare": {"pairs": 100, "seconds": 0.5, "ours": {"pairs": 2000, "seconds": 0.1}},
    # 32 texts at half a second each, and two seconds for 8 that are continued
    "small_audit": {
        "seconds": 22.0,
        "asking": 16.0,
        "continuing": 2.0,
        "most_continued": 8,
        "peak_mb": 512.0,
    },
}
ATTACK = {
    "attack": "loss_v1",
    "is_blind": False,
    "auc": 0.75,
    "low": 0.5,
    "high": 1.0,
    "tpr_1": None,
}
ATTACK |= {"tokens": None, "seconds": 0.25}


@pytest.fixture
def texts(tmp_path):
    rows = [
        {"document_id": str(n), "text": " ".join(text.split()[:40]), "member": n < 16}
        for n, text in enumerate(TEXTS[:32])
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "texts-in.parquet")
    return tmp_path / "texts-in.parquet"


@pytest.fixture
def asked(monkeypatch):
    """Ways that measure nothing: what each is asked, and what it would have found."""
    calls = []

    def answer(way, timeout, **arguments):
        calls.append((way, arguments))
        more = {"attacks": [ATTACK]} if arguments.get("labelled") else {}
        return {**FOUND[way]} | (more if way == "small_audit" else {})

    monkeypatch.setattr(ways, "run_in_process", answer)
    return calls


def run(*arguments):
    done = CliRunner().invoke(
        command, ["bench", *map(str, arguments)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done


def unwrapped(done):
    """What was printed, whatever the width at which lines were broken."""
    return " ".join(done.stdout.split())


def by_name(rows):
    return {(row["part"], row["way"], row["figure"]): row for row in rows}


def test_a_line_has_one_figure_or_the_reason_why_there_is_none(
    asked, texts, checkpoint
):
    given = (
        "--model",
        checkpoint,
        "--input",
        texts,
        "--texts",
        800,
        "--gpu-hour-price",
        3,
    )
    done = run(*given, "--json", "-")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    rows = by_name(lines)
    values = {name: row["value"] for name, row in rows.items()}
    ours = next(way for part, way, _ in values if part == "sampling")
    assert values["sampling", ours, "tokens_per_second"] == 2000
    assert values["sampling", ours, "prompts_per_second"] == 10
    assert values["sampling", "transformers alone", "mia_batch_times_as_fast"] == 4
    assert (
        values["pairs", "plain Python, SaMIA with zlib", "mia_batch_times_as_fast"]
        == 100
    )
    bare = "a bare loop of transformers"
    assert values["log-probabilities", bare, "mia_batch_times_as_fast"] == 1
    # 300 texts would fit at 10 prompts a second, so all 32 are audited: half a second
    # each.
    assert values["audit", "32 texts, end to end", "texts_per_hour"] == 7200
    assert values["forecast", "800 texts", "hours"] == (4 + 800 * 0.5 + 2) / 3600
    assert values["forecast", "800 texts", "price"] == pytest.approx(
        3 * (4 + 800 * 0.5 + 2) / 3600
    )
    auc = rows["attacks", "loss_v1", "auc"]
    assert (auc["value"], auc["low"], auc["high"]) == (0.75, 0.5, 1.0)
    assert values["attacks", "loss_v1", "seconds_a_text_with_start"] == 0.25
    assert rows["attacks", "loss_v1", "tokens_a_text"]["reason"] == "none are decoded"
    assert rows["sampling", "vLLM alone", None]["reason"] == "vLLM is not there"
    assert all((row["value"] is None) == (row["reason"] is not None) for row in lines)
    same = {
        "model": checkpoint.name,
        "texts": 32,
        "cores": rows["forecast", "800 texts", "hours"]["cores"],
    }
    assert all(
        same.items() <= row.items() and {"cpu", "gpus", "versions"} <= row.keys()
        for row in lines
    )
    assert "vLLM alone: not measured: vLLM is not there" in done.stderr
    assert "0.75 (0.500 to 1.000)" in done.stderr


def test_a_forecast_comes_from_enough_texts_or_not_at_all(asked, checkpoint, tmp_path):
    rows = [{"document_id": str(n), "text": TEXTS[n]} for n in range(31)]
    pl.DataFrame(rows).write_parquet(tmp_path / "few.parquet")
    done = run(
        "--model", checkpoint, "--input", tmp_path / "few.parquet", "--json", "-"
    )
    lines = by_name(map(json.loads, done.stdout.splitlines()))
    assert lines["forecast", "31 texts", None]["reason"] == (
        "31 texts are too few to forecast from, 32 are needed; give an --input of more"
        " texts"
    )


def test_a_slow_machine_audits_as_many_texts_as_a_forecast_needs(
    asked, checkpoint, texts, monkeypatch
):
    slow_sampling = {"tokens": 400, "prompts": 2, "seconds": 100.0}
    monkeypatch.setitem(FOUND, "sample", slow_sampling)
    run("--model", checkpoint, "--input", texts)
    n_audited = [arguments["n"] for way, arguments in asked if way == "small_audit"]
    assert set(n_audited) == {32}


def test_a_toy_gets_no_forecast_and_unlabelled_texts_no_attacks(asked, tmp_path):
    file = tmp_path / "rows.jsonl"
    done = run("--json", file)
    rows = by_name(map(json.loads, file.read_text().splitlines()))
    why = "a toy's speed says nothing about your model; give --model"
    assert rows["forecast", "1,000,000 texts", None]["reason"] == why
    why = "give --model, and --input with labelled texts"
    assert [row["reason"] for row in rows.values() if row["part"] == "attacks"] == [why]
    assert {row["texts"] for row in rows.values()} == {256}
    assert (
        "a toy with random weights, whose speed says nothing about your model"
        in unwrapped(done)
    )


def test_where_no_model_can_be_made_pairs_are_compared(asked, monkeypatch):
    monkeypatch.setattr(
        registry,
        "find_missing_package",
        lambda *_: "the package torch is not installed",
    )
    done = run()
    assert {way for way, _ in asked} == {"compare"}
    why = (
        "not measured: no model can be made here, because the package torch is not"
        " installed"
    )
    assert unwrapped(done).count(why) == 6


def test_what_has_no_time_left_says_so(asked, texts, checkpoint, monkeypatch):
    monkeypatch.setattr(measuring, "_LEFT", dict.fromkeys(measuring._LEFT, 1.0))
    done = run("--model", checkpoint, "--input", texts)
    assert not asked
    assert unwrapped(done).count(
        "no time was left for it; give more --minutes"
    ) == 10 + (count_cores() > 1)
    reason = (
        "forecast: 32 texts: not measured: the small audit has no figures: no time was"
        " left for it"
    )
    assert reason in unwrapped(done)


@pytest.mark.parametrize(
    "wrong", [("--minutes", "0"), ("--texts", "0"), ("--gpu-hour-price", "-1")]
)
def test_numbers_without_a_meaning_are_refused(asked, wrong):
    done = CliRunner().invoke(command, ["bench", *wrong])
    assert done.exit_code == 2
    assert f"Invalid value for '{wrong[0]}'" in done.stderr


def test_texts_that_cannot_be_cut_are_refused(asked, tmp_path):
    (tmp_path / "short.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(
        CorpusError, match=r"no text of .*short.jsonl can be cut in two"
    ):
        run("--input", tmp_path / "short.jsonl")


def test_a_way_that_takes_too_long_or_fails_is_a_reason(tmp_path):
    why = ways.run_in_process("compare", 0.01, folder=str(tmp_path), model="m")
    assert why == {"reason": "not finished within 0 s; give more --minutes"}
    why = ways.run_in_process(
        "sample_by_transformers", folder=str(tmp_path), model="m", seconds=1.0
    )
    assert why["reason"].startswith("mia-batch itself has not sampled")


def test_every_way_measures_the_same_texts(texts, checkpoint, tmp_path, one_thread):
    found = write_texts(tmp_path, str(texts), counts_all=True)
    assert (found.n_all, len(found.lengths), found.has_classes) == (32, 32, True)
    place: dict[str, Any] = {"folder": str(tmp_path), "model": str(checkpoint)}
    ours = ways.sample(**place, engine="transformers", seconds=60.0)
    requests = json.loads((tmp_path / "requests.json").read_text())
    # Where answers are too short there is another
    assert ours["prompts"] == 32 <= len(requests)
    assert [each["n"] for each in requests].count(ways.SAMPLES) >= 32
    assert all(each["n"] <= ways.SAMPLES and each["most"] <= 128 for each in requests)
    other = ways.sample_by_transformers(**place, seconds=0.0)
    assert 0 < other["tokens"] <= requests[0]["n"] * requests[0]["most"]
    tokens = {
        ways.score_texts(**place, bare=bare, seconds=60.0)["tokens"]
        for bare in (True, False)
    }
    assert len(tokens) == 1
    assert tokens.pop() > 32 * 40
    audited = ways.small_audit(**place, n=8, labelled=True)
    assert 0 < audited["asking"] < audited["seconds"]
    assert {"loss_v1", "probe_leading_v1"} <= {
        each["attack"] for each in audited["attacks"]
    }


def test_plain_python_and_rouge_score_give_the_numbers_of_the_kernels(texts, tmp_path):
    pairs = pl.DataFrame({"candidate": TEXTS[:8], "reference": TEXTS[1:9]})
    columns = [pairs[name].to_list() for name in pairs.columns]
    numbers = pairs.select(pair_features(*pairs.columns)).unnest("features").to_dicts()
    expected = [
        each["overlap_1"] / each["words_reference"] * each["zlib_candidate"]
        for each in numbers
    ]
    assert ways.samia(*columns) == pytest.approx(expected)
    features = pair_features(*pairs.columns, groups=["lcs"], words="rouge")
    ours = pairs.select(features).unnest("features")
    recall = (ours["lcs_words"] / ours["words_reference"]).to_list()
    assert [
        each["rougeL"].recall for each in ways.rouge_score(*columns)
    ] == pytest.approx(recall)


def test_figures_are_repeated_and_each_repeat_is_a_line(asked, texts, checkpoint):
    done = run("--model", checkpoint, "--input", texts, "--json", "-")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    rates = [row for row in rows if row["figure"] == "prompts_per_second"]
    assert [row["repeat"] for row in rates] == [*range(1, measuring.MOST_REPEATS + 1)]
    assert len({row["taken"] for row in rows}) == 1
    # What cannot be measured is not tried again
    n_calls = Counter(way for way, _ in asked)
    assert (n_calls["sample"], n_calls["sample_by_vllm"]) == (5, 1)
    assert "2,000 (2,000 to 2,000)" in " ".join(done.stderr.split())


def test_a_repeat_begins_where_what_it_took_is_left(
    asked, texts, checkpoint, monkeypatch
):
    answer = ways.run_in_process
    clock = SimpleNamespace(now=0.0)

    def take_a_minute(way, timeout, **arguments):
        clock.now += 60
        return answer(way, timeout, **arguments)

    monkeypatch.setattr(ways, "run_in_process", take_a_minute)
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(measuring, "count_cores", lambda: 1)
    run("--model", checkpoint, "--input", texts, "--minutes", 30)
    # Of nine ways one has failed: 9 and 8 and 8 minutes, and of the fourth repeat 5
    assert len(asked) == 30
    assert asked[-1][0] == "compare"


def test_texts_are_those_of_a_named_set_and_the_forecast_is_for_all_of_them(
    asked, checkpoint, tmp_path
):
    copy = tmp_path / "rows.jsonl"
    rows = [{"snippet": TEXTS[n], "label": n % 2, "book": f"B{n}"} for n in range(60)]
    copy.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = ("--model", checkpoint, "--dataset", "bookmia", "--input", copy)
    done = run(*options, "--json", "-")
    lines = by_name(map(json.loads, done.stdout.splitlines()))
    assert ("forecast", "60 texts", "hours") in lines
    assert asked[-1][1]["labelled"]
    done = CliRunner().invoke(command, ["bench", "--dataset", "nothing"])
    assert isinstance(done.exception, SettingsError)
    assert "no data set 'nothing'" in str(done.exception)


def test_a_forecast_is_for_texts_of_the_length_that_all_have(
    asked, checkpoint, tmp_path
):
    rows = [{"text": f"{'word ' * 20 * (1 + n % 2)}end"} for n in range(600)]
    pl.DataFrame(rows).write_parquet(tmp_path / "mixed.parquet")
    found = write_texts(tmp_path, str(tmp_path / "mixed.parquet"))
    n_long = [length > 150 for length in found.lengths[:32]]
    assert 8 < sum(n_long) < 24  # they are shuffled
    audit = {"seconds": 20.0, "asking": 16.0, "continuing": 2.0, "most_continued": 8}
    assert measuring.forecast_seconds(audit, 32, 800, 1.5) == 2 + 16 * 1.5 * 25 + 2


def test_each_point_of_a_curve_has_its_rows_and_a_line_is_drawn(
    asked, checkpoint, texts, tmp_path
):
    other = tmp_path / "other"
    other.symlink_to(checkpoint)
    picture = tmp_path / "curve.svg"
    options = ("--model", checkpoint, "--model", other, "--batch-sizes", "1,8")
    done = run(*options, "--input", texts, "--json", "-", "--picture", picture)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    first = [row for row in rows if row["repeat"] == 1]
    points = [
        (row["model"], row["batch_size"])
        for row in first
        if row["figure"] == "prompts_per_second"
    ]
    names = (checkpoint.name, "other")
    assert points == [(name, size) for name in names for size in (1, 8)]
    assert {way for way, _ in asked} == {"sample", "score_texts"}
    assert {arguments["batch_size"] for _, arguments in asked} == {1, 8}
    assert rows[0]["weights_mb"] > 0.01
    drawn = picture.read_text()
    assert "sampling, other" in drawn
    assert "Texts at once (batch size)" in drawn
    assert "other: mia-batch by" in unwrapped_error(done)
    # Over the sizes of models, where nothing else differs
    sizes = [row | {"batch_size": None} for row in rows]
    sizes = [row | {"weights_mb": 10.0 * len(row["model"])} for row in sizes]
    assert "Weights of the model, MB" in str(showing.draw_rates(sizes))
    assert showing.draw_rates(sizes[:2]) is None


def unwrapped_error(done):
    return " ".join(done.stderr.split())


def test_what_no_figure_could_tell_apart_is_refused(asked, checkpoint, tmp_path):
    namesake = tmp_path / checkpoint.name
    namesake.symlink_to(checkpoint)
    for options, words in (
        (["--model", str(checkpoint), "--model", str(namesake)], "names 'checkpoint'"),
        (["--picture", str(tmp_path / "a.svg")], "draws a curve; give several"),
    ):
        done = CliRunner().invoke(command, ["bench", *options])
        assert isinstance(done.exception, SettingsError)
        assert words in str(done.exception)
    assert not asked


def test_an_engine_gets_a_batch_size_by_its_own_name(monkeypatch):
    spec = ways._build_spec("transformers", 4, 1, kind="samples", model="m")
    assert spec.engine_args == {"batch_size": 4}
    spec = ways._build_spec("vllm", 4, 2, kind="samples", model="m")
    assert (spec.engine_args, spec.tensor_parallel_size) == ({"max_num_seqs": 4}, 2)
    with pytest.raises(EngineError, match="engine masked takes no size of a batch"):
        ways._build_spec("masked", 4, 1, kind="fills", model="m")


def test_memory_of_a_child_is_its_own_and_not_that_of_its_parent():
    ballast = np.ones(10_000_000)  # 80 MB
    with subprocess.Popen(["sleep", "60"]) as child:
        assert str(child.pid) in ways.list_children()
        assert 0 < ways.read_peak_mb(str(child.pid)) < 50
        child.kill()
    assert ways.read_peak_mb(str(child.pid)) == 0
    assert ways.read_peak_mb() > ballast.nbytes / 2**20


def test_a_ratio_has_the_interval_that_is_computed_by_hand():
    # Logarithms 1, 2, 3 and 0, 1, 2: means 2 and 1, variances of the means 1/3 each, 4
    # degrees of freedom, of which tables have Student's 97.5 % quantile as 2.776445
    ratio = comparing.compare_rates([exp(1), exp(2), exp(3)], [1, exp(1), exp(2)])
    half_width = 2.776445 * sqrt(2 / 3)
    assert ratio.reason is None
    assert ratio[:3] == pytest.approx(
        (exp(1), exp(1 - half_width), exp(1 + half_width)), rel=1e-6
    )
    new, old = [5.0, 7.0, 9.0, 4.0], [3.0, 8.0, 20.0]
    by_scipy = ttest_ind(np.log(new), np.log(old), equal_var=False)
    low, high = by_scipy.confidence_interval(0.95)
    assert comparing.compare_rates(new, old)[1:3] == pytest.approx(
        (exp(low), exp(high))
    )


@pytest.mark.parametrize(("n_old", "spread"), [(3, 1.0), (5, 1.0), (5, 3.0)])
def test_an_interval_covers_what_it_promises(n_old, spread):
    rng = np.random.default_rng(n_old)
    n_covered = 0
    for _ in range(1000):
        new = np.exp(0.1 * spread * rng.standard_normal(3))
        old = np.exp(0.1 * rng.standard_normal(n_old))
        ratio = comparing.compare_rates([*new], [*old])
        assert ratio.low is not None
        assert ratio.high is not None
        n_covered += ratio.low <= 1 <= ratio.high
    assert 915 <= n_covered <= 985


def test_a_figure_without_enough_repeats_or_meaning_says_so():
    ratio = comparing.compare_rates([4.0, 4.0], [2.0, 2.1, 2.2])
    assert ratio.low is None
    assert ratio.reason == (
        "no interval, measured 2 x now and 3 x before, where 3 x are needed (more"
        " --minutes)"
    )
    ratio = comparing.compare_rates([4.0] * 3, [2.0] * 3)
    assert ratio.value == pytest.approx(2)
    assert (ratio.low, ratio.high) == (None, None)
    assert ratio.reason == "no interval, since the repeats do not differ"
    assert comparing.compare_figure("auc", [0.5], [0.5]).value is None
    zero = comparing.compare_figure("hours", [0.0], [1.0])
    assert zero == (None, None, None, "no ratio, since a value is 0")


def test_beside_an_earlier_file_what_differs_stands_first(
    asked, texts, checkpoint, tmp_path
):
    first, old = tmp_path / "first.jsonl", tmp_path / "old.jsonl"
    options = ("--model", checkpoint, "--input", texts)
    run(*options, "--json", first)
    rows = [json.loads(line) for line in first.read_text().splitlines()]
    for row in rows:
        row |= {"cpu": "Another", "versions": row["versions"] | {"polars": "0.1"}}
        if row["figure"] == "tokens_per_second":
            row["value"] /= 2 + row["repeat"] / 100
    rows[-1] |= {"part": "forecast", "way": "9 texts", "figure": "price", "value": 1.0}
    earlier = [rows[0] | {"taken": "earlier"}]
    old.write_text("".join(f"{json.dumps(row)}\n" for row in earlier + rows))
    shown = unwrapped(run(*options, "--against", old))
    comparison = shown[shown.index(f"Beside {old}") :]
    sentences = (
        "the last of its 2 runs; the others are not compared",
        "before Another: the ratios compare machines, not versions",
        "before 0.1",
        "now / before",
        "no interval, since the repeats do not differ: sampling,",
        "measured only before: forecast, 9 texts, price",
        "In brackets: 95 % intervals",
    )
    places = [comparison.index(sentence) for sentence in sentences]
    assert places == sorted(places)
    assert "2.030 (2.010 to 2.050)" in comparison
    assert "other processor" in comparison
    assert "other model" not in comparison


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read (No such file or directory); give a file that"),
        ("", "is empty; give a file that `mia-batch bench --json` wrote"),
        (
            "{}\n",
            r"line 1, is no line of `mia-batch bench --json` (part: Field required)",
        ),
        ("[" * 100_000, "line 1, is no line of `mia-batch bench --json` ("),
        (" " * 3000, "is larger than 0 MiB; give the lines of one run"),
    ],
)
def test_a_file_that_no_bench_wrote_is_refused(
    asked, content, words, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        comparing, "_MOST_BYTES", 200_000 if content and content[0] == "[" else 2000
    )
    path = tmp_path / "old.jsonl"
    if content is not None:
        path.write_text(content)
    done = CliRunner().invoke(command, ["bench", "--against", str(path)])
    assert isinstance(done.exception, SettingsError)
    assert str(done.exception).startswith(str(path))
    assert words in str(done.exception)
    assert not asked
