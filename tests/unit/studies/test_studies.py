"""Studies: what their runs share, what their tables say, and what they refuse."""

from __future__ import annotations

import json
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command
from mia_batch.corpus import ColumnNames
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.extras.study import frame
from mia_batch.extras.study.min_k import _check_separation, _compute_shares
from mia_batch.extras.tune.jobs import inserted_texts, with_inserted
from mia_batch.pipeline import run_audit
from mia_batch.recipes import Recipe
from tests import runs
from tests.bases import save_bases
from tests.checkpoints import TEXTS

SHORT = [" ".join(text.split()[:20]) for text in TEXTS]


def invoke(*arguments):
    """Standard output and standard error of what exits with 0."""
    done = CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def rows_of(out, **values):
    return pl.read_parquet(out / "study.parquet").filter(metric="roc_auc", **values)


def test_more_samples_extend_one_run_and_what_is_refused_has_its_reason(
    checkpoint, tmp_path
):
    corpus = runs.written(tmp_path, runs.documents(10))
    asked = [
        "--input",
        corpus,
        "--model",
        checkpoint,
        "--engine",
        "transformers",
        "--no-report",
    ]
    asked += ["--preset", "matched"]
    out, alone = tmp_path / "study", tmp_path / "alone"
    over = ["--over", "samples=1,3", "--over", "prefix-ratio=0.5,2", "--out", out]
    asked_first = ("--dry-run", "--tokens-per-second", "probe")
    foreseen, said = invoke("study", "sweep", *asked, *over, *asked_first)
    assert not out.exists()
    rows = [line.split(maxsplit=1) for line in foreseen.splitlines()]
    assert [
        row[1].strip() for row in rows if row[0] in ("run", "samples", "shares")
    ] == [
        *(
            "prefix_ratio=0.5",
            "24",
            "samples=1-prefix_ratio=0.5 scores the first of those",
        )
    ]
    assert "measured on" in dict(rows)["time"]
    assert (
        said.count("prefix_ratio=2 is refused: --prefix-ratio must be below 1.0") == 2
    )
    printed, said = invoke("study", "sweep", *asked, *over)
    assert said.count("samples to draw: ") == 1
    assert {folder.name for folder in out.iterdir() if folder.is_dir()} == {
        "prefix_ratio=0.5"
    }
    with_one = runs.audit(
        input=corpus,
        model=str(checkpoint),
        engine="transformers",
        preset="matched",
        report=False,
        samples=1,
        out=str(alone),
    )
    wanted = with_one["metrics"].filter(
        slice="all", metric="roc_auc", attack="samia_matched_v1"
    )
    found = rows_of(out, samples=1.0, prefix_ratio=0.5, is_primary=True)
    assert found["value"].to_list() == wanted["value"].to_list() != [None]
    assert found["low"].to_list() == wanted["low"].to_list()
    refused = rows_of(out, prefix_ratio=2.0)
    assert refused["value"].to_list() == [None, None]
    assert set(refused["reason"]) == {"prefix_ratio= must be below 1.0, not '2'"}
    assert "--prefix-ratio must be below 1.0" in " ".join(printed.split())
    again, said = invoke("study", "sweep", *asked, *over)
    assert "samples to draw: " not in said
    assert again == printed


def test_what_the_target_says_is_asked_once_for_all_reference_models(
    checkpoint, tmp_path
):
    for name in ("one", "two"):
        copytree(checkpoint, tmp_path / name)
    out = tmp_path / "study"
    asked = [
        "--input",
        runs.written(tmp_path, runs.documents(10)),
        "--model",
        checkpoint,
    ]
    asked += [
        "--engine",
        "transformers",
        "--no-report",
        "--attacks",
        "loss,ref",
        "--out",
        out,
    ]
    invoke(
        "study",
        "sweep",
        *asked,
        "--over",
        f"reference-model={tmp_path / 'one'},{tmp_path / 'two'}",
    )
    made = [
        json.loads((each / "run.json").read_text()) for each in sorted(out.glob("ref*"))
    ]
    passes = [{*each["passes"]} for each in made]
    assert sorted(passes, key=len) == [
        {"reference text"},
        {"reference text", "target text"},
    ]
    first, second = (
        pl.read_parquet(each / "scores.parquet") for each in out.glob("ref*")
    )
    assert first["loss_v1"].to_list() == second["loss_v1"].to_list()
    assert first["loss_v1"].count() == 9


def test_a_sweep_over_names_has_them_without_their_folder_along_its_axis(tmp_path):
    figures = {
        "metric": "roc_auc",
        "fpr": None,
        "low": 0.5,
        "high": 0.9,
        "reason": None,
    }
    figures |= {"attack": "loss_v1", "n_members": 9, "n_nonmembers": 9, "run": "r"}
    figures |= {"is_primary": True, "blind": "separable"}
    rows = [
        {"tuning": each, "value": v, **figures}
        for each, v in (("m/lora", 0.6), ("m/full", 0.8))
    ]
    frame.publish(tmp_path, pl.DataFrame(rows), ["tuning"], x="tuning")
    drawn = (tmp_path / "study.svg").read_text()
    assert drawn.index(">lora<") < drawn.index(">full<") < drawn.index(">tuning<")
    one = pl.DataFrame(rows[:1])
    frame.publish(tmp_path, one, ["tuning"], x="tuning")
    assert not (tmp_path / "study.svg").exists()  # of one value there is no curve


def texts_of(folder, **columns):
    path = folder / "insert.parquet"
    pl.DataFrame(columns).write_parquet(path)
    return path


def test_copies_are_poisson_draws_of_each_text_alone(tmp_path):
    texts = [f"text {number}" for number in range(4000)]
    member = [number % 4 > 0 for number in range(4000)]

    def drawing(seed=3, **columns):
        return inserted_texts(
            texts_of(tmp_path, **columns), ColumnNames(), None, 4.0, Recipe(seed=seed)
        )

    all_of_them = drawing(text=texts, member=member)
    drawn = all_of_them.filter(pl.Series(member))["copies"]
    assert all_of_them.filter(~pl.Series(member))["copies"].to_list() == [0] * 1000
    assert drawn.mean() == pytest.approx(4, abs=4 * 2 / 3000**0.5)
    # Var of s2: 2 m^2 + m, over n
    assert drawn.var() == pytest.approx(4, abs=4 * 6 / 3000**0.5)
    assert (drawn == 0).sum() == pytest.approx(3000 * 0.0183, abs=30)
    some = drawing(text=texts[5:9][::-1], member=[True] * 4)
    own = dict(all_of_them.select("text", "copies").iter_rows())
    assert own[texts[5]] == dict(some.select("text", "copies").iter_rows())[texts[5]]
    by_lot = drawing(text=texts)
    assert (by_lot["copies"] > 0).sum() == pytest.approx(2000 * 0.9817, abs=130)
    other = drawing(seed=4, text=texts)
    assert other["copies"].to_list() != by_lot["copies"].to_list()


def test_texts_are_inserted_as_often_as_their_column_says(tmp_path):
    path = texts_of(tmp_path, text=["a", "b", "c"], k=[2, 0, 1])
    chosen = inserted_texts(path, ColumnNames(), "k", None, Recipe())
    assert chosen["member"].to_list() == [True, False, True]
    assert with_inserted(["x"], chosen) == ["x", "a", "a", "c"]
    with pytest.raises(
        SettingsError, match="1 of the texts to insert are among the others"
    ):
        with_inserted(["b"], chosen)


@pytest.mark.usefixtures("one_thread")
def test_a_model_is_tuned_with_inserted_texts_and_their_truth_lies_next_to_it(tmp_path):
    base, out = save_bases(tmp_path / "bases")["gpt2"], tmp_path / "tuned"
    insert = texts_of(tmp_path, text=SHORT[:6], k=[3, 0, 1, 0, 2, 0])
    pl.DataFrame({"text": SHORT[6:10]}).write_parquet(tmp_path / "data.parquet")
    asked = ["--base", base, "--data", tmp_path / "data.parquet", "--insert", insert]
    nowhere = ["--base", tmp_path / "none", *asked[2:], "--copies", "k", "--out", out]
    with pytest.raises(
        SettingsError, match=r"^--base: .*none' does not exist; give a checkpoint"
    ):
        invoke("finetune", *nowhere)
    _, said = invoke("finetune", *asked, "--copies", "k", "--epochs", 1, "--out", out)
    assert "4 texts and 6 copies of 6 more texts: 1 steps" in " ".join(said.split())
    record = json.loads((out / "training.json").read_text())
    assert record["n_texts"] == 10
    assert record["made_from"]["recipe"]["held_out"] == 0
    truth = pl.read_parquet(tmp_path / "tuned-inserted.parquet")
    assert truth.select("copies", "member").rows() == [
        *((3, True), (0, False), (1, True), (0, False), (2, True), (0, False))
    ]


@pytest.mark.parametrize(
    ("columns", "copies", "mean", "changed", "said"),
    [
        ({"text": ["a", "a"]}, None, 1.0, {}, "1 texts of .* are there twice"),
        ({"text": ["a"], "k": [-1]}, "k", None, {}, "must hold whole numbers"),
        ({"text": ["a"], "k": [0.5]}, "k", None, {}, "must hold whole numbers"),
        ({"text": ["a"], "k": [None]}, "k", None, {}, "must hold whole numbers"),
        ({"text": ["a"]}, "k", None, {}, "has no column 'k'"),
        ({"text": ["a"]}, "text", 1.0, {}, "say how often"),
        (
            {"text": ["a"]},
            None,
            1.0,
            {"held_out": 0.1},
            "copies would be missing; take 0",
        ),
    ],
)
def test_copies_that_would_be_wrong_are_refused(
    columns, copies, mean, changed, said, tmp_path
):
    with pytest.raises(SettingsError, match=said):
        inserted_texts(
            texts_of(tmp_path, **columns),
            ColumnNames(),
            copies,
            mean,
            Recipe(**changed),
        )


@pytest.mark.usefixtures("one_thread")
def test_a_contamination_study_that_is_stopped_goes_on_and_trains_nothing_twice(
    tmp_path, monkeypatch
):
    base, out = save_bases(tmp_path / "bases")["llama"], tmp_path / "study"
    copies = [0] * 8 + [1] * 6 + [6] * 6
    path = texts_of(tmp_path, text=SHORT[:20], k=copies)
    pl.DataFrame({"text": SHORT[20:30]}).write_parquet(tmp_path / "into.parquet")
    asked = ["study", "contamination", "--input", path, "--copies", "k", "--base", base]
    asked += [
        "--into",
        tmp_path / "into.parquet",
        "--engine",
        "transformers",
        "--out",
        out,
    ]
    # Of intervals, too
    asked += [
        "--over",
        "learning-rate=1e-5,3e-3",
        "--over",
        "method=full",
    ]
    asked += ["--epochs", 2, "--batch-size", 8]
    asked += ["--attacks", "loss_v1", "--max-tokens", 64]
    n_audits = []

    def stopped(settings, observer):
        n_audits.append(settings.out)
        if len(n_audits) == 3:
            raise KeyboardInterrupt
        return run_audit(settings, observer)

    foreseen, said = invoke(*asked, "--dry-run")
    assert not out.exists()
    first, second = (f"learning_rate={rate}-method=full" for rate in ("1e-05", "0.003"))
    names = ("base", f"{first}/run", f"{second}/run")
    assert [
        line.split()[1] for line in foreseen.splitlines() if line.startswith("run ")
    ] == [*names]
    assert f"{second}: 52 texts, 14 steps, " in " ".join(said.split())
    monkeypatch.setattr(frame, "run_audit", stopped)
    done = CliRunner().invoke(command, [*map(str, asked)])
    assert done.exit_code != 0
    monkeypatch.setattr(frame, "run_audit", run_audit)
    assert not (out / "study.parquet").exists()
    record = out / second / "model" / "training.json"
    before = record.stat().st_mtime_ns
    invoke(*asked)
    assert record.stat().st_mtime_ns == before
    of_training = json.loads(record.read_text())
    assert of_training["n_texts"] == 10 + 6 + 36
    assert of_training["made_from"]["recipe"]["schedule"] == "constant"
    table = rows_of(out)
    assert table.height == 3 * 3  # the base and two models: all copies, 1 and 6
    of_models = table.filter(pl.col("model") != "base")
    assert {*of_models["method"]} == {"full"}
    assert {*table["method_of_interval"]} == {"delong_logit", "newcombe_5"}
    named = table.select(
        pl.format("{} {}", "model", pl.col("copies").fill_null(0)), "value"
    )
    found = {str(name): value for name, value in named.iter_rows()}
    assert found[f"{second} 6"] >= 0.9
    assert found[f"{second} 6"] > found[f"{second} 1"]
    assert found[f"{first} 6"] == pytest.approx(found["base 6"], abs=0.1)
    counts = (
        table.filter(model="base").select("copies", "n_members", "n_nonmembers").rows()
    )
    assert counts == [(None, 12, 8), (1, 6, 8), (6, 6, 8)]


def test_known_books_have_no_say_in_their_own_threshold():
    scores = {"A": [5.0, 4], "B": [5.0, 1], "C": [2.0, 0], "D": [3.0, 2], "X": [4.5, 1]}
    kinds = {
        "A": "learnt",
        "B": "learnt",
        "C": "not learnt",
        "D": "not learnt",
        "X": "asked",
    }
    windows = pl.DataFrame(
        [(kinds[key], key, each) for key, own in scores.items() for each in own],
        ["kind", "key", "score"],
        orient="row",
    ).with_columns(member=pl.col("kind") == "learnt")
    known = windows.filter(pl.col("kind") != "asked")
    found = {key: (at, share) for _, key, at, share in _compute_shares(windows, known)}
    # Of all known windows 3 of 4 and 0 of 4 are at least 4. Without A those of B
    # decide: at 5 the rates are 1/2 and 0, at 1 they are 1 and 3/4.
    assert found["X"] == (4, 0.5)
    assert found["A"] == (5, 0.5)
    assert found["B"] == (4, 0.5)
    assert found["C"] == found["D"] == (4, 0.0)


@pytest.mark.parametrize(
    ("sides", "gap", "exploratory", "said"),
    [
        (
            ("old", "new"),
            3.0,
            False,
            "a classifier that never sees the model has AUC 1.000",
        ),
        (("old", "new"), 3.0, True, None),
        (
            ("same", "same"),
            0.0,
            False,
            "that is no better than chance (by its interval)",
        ),
    ],
)
def test_a_threshold_that_means_nothing_gives_no_share(sides, gap, exploratory, said):
    rows = [
        {
            "target_id": f"{number}",
            "key": f"{number}",
            "document_id": f"{number}",
            "group": None,
            "role": "target",
            "target": f"the {sides[number % 2]} text {number * 37 % 11} of many words",
            "member": number % 2 == 0,
            "kind": "not learnt" if number % 2 else "learnt",
            "score": number * 7 % 20 - gap * (number % 2) * 9,
        }
        for number in range(40)
    ]
    known = pl.DataFrame(rows, schema_overrides={"group": pl.String})
    manifest = SimpleNamespace(settings={"seed": 0, "exploratory": exploratory})
    run: Any = SimpleNamespace(scan=lambda _: known.lazy(), manifest=manifest)
    sentences, reason = _check_separation(run, known)
    assert sentences[0].startswith("The scores separate known windows with AUC")
    assert (reason or "").startswith(said) if said else reason is None


def test_too_few_known_books_choose_no_threshold(checkpoint, tmp_path):
    texts = pl.DataFrame({"document_id": list("abcdefgh"), "text": TEXTS[:8]})
    texts = texts.with_columns(author=pl.col("document_id") + " Smith", year=1811)
    known = texts.head(6).with_columns(member=pl.Series([True, False] * 3))
    known.write_parquet(tmp_path / "known.parquet")
    texts.tail(2).write_parquet(tmp_path / "asked.parquet")
    out = tmp_path / "study"
    asked = [
        "--known",
        tmp_path / "known.parquet",
        "--input",
        tmp_path / "asked.parquet",
    ]
    asked += [
        "--model",
        checkpoint,
        "--engine",
        "transformers",
        "--window-words",
        8,
        "--anyway",
    ]
    asked += [
        "--non-members-known",
        "made here",
        "--continue-strongest",
        0,
        "--no-yardstick",
    ]
    printed, _ = invoke("study", "books", *asked, "--out", out)
    assert (
        "No share is given: 3 books known as learnt and 3 known as not learnt are"
        " too few" in (" ".join(printed.split()))
    )
    table = pl.read_parquet(out / "study.parquet")
    assert table["share"].null_count() == table.height == 8
    assert table.filter(kind="asked")["p_value"].null_count() == 0
    assert {*table.select("key", "author", "year").rows()} == {
        (name, f"{name} Smith", 1811) for name in "abcdefgh"
    }
    assert "g Smith" in printed
    assert not (out / "study.svg").exists()


def opened(out, kind, *, dry_run=False):
    return frame.open_study(out, kind, {"dry_run": dry_run, "tokens_per_second": None})


def test_a_folder_is_of_one_study_and_one_process(tmp_path):
    mine, others = tmp_path / "mine", tmp_path / "others"
    with opened(mine, "sweep") as study:
        assert study.folder == mine
        with pytest.raises(RunFolderError, match="is held by another study"):
            opened(mine, "sweep").__enter__()
        (mine / "run").mkdir()
    with pytest.raises(RunFolderError, match="holds another study, sweep"):
        opened(mine, "books", dry_run=True).__enter__()
    with opened(mine, "sweep", dry_run=True) as study:
        assert study.folder != mine
        assert (study.folder / "run").samefile(mine / "run")
    others.mkdir()
    (others / "letter.txt").write_text("not of a study")
    with pytest.raises(
        RunFolderError, match="others holds other files; give this study another"
    ):
        opened(others, "sweep").__enter__()
    assert [each.name for each in others.iterdir()] == ["letter.txt"]
    with pytest.raises(RunFolderError, match=r"letter.txt cannot be made or written"):
        opened(others / "letter.txt", "sweep", dry_run=True).__enter__()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["sweep", "--over", "samples=1,,2"], "does not read NAME=VALUE,VALUE"),
        (["sweep", "--over", "samples"], "does not read NAME=VALUE,VALUE"),
        (["sweep", "--over", "q=1", "--over", "q=2"], "each name once"),
        (["sweep", "--over", "fpr=0.1"], "changes no figure"),
        (["sweep", *(f"--over={each}=1" for each in "abc")], "3 are too many"),
        (
            ["sweep", "--over", "samples=1", "--samples", "2"],
            "--samples is in --over, too",
        ),
        (["books", "--known-members", "a"], "give --known, or both"),
    ],
)
def test_a_study_that_cannot_be_is_a_wrong_request(asked, said, tmp_path):
    done = CliRunner().invoke(command, ["study", *asked, "--out", str(tmp_path / "s")])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
