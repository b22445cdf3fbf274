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
from tests.runs import invoke

SHORT = [" ".join(text.split()[:20]) for text in TEXTS]


def read_aucs(study_folder, **values):
    return pl.read_parquet(study_folder / "study.parquet").filter(
        metric="roc_auc", **values
    )


def test_more_samples_extend_one_run_and_what_is_refused_has_its_reason(
    checkpoint, tmp_path
):
    corpus = runs.written(tmp_path, runs.documents(10))
    arguments = [
        "--input",
        corpus,
        "--model",
        checkpoint,
        "--engine",
        "transformers",
        "--no-report",
    ]
    arguments += ["--preset", "matched"]
    study_folder, alone = tmp_path / "study", tmp_path / "alone"
    sweep_options = [
        "--over",
        "samples=1,3",
        "--over",
        "prefix-ratio=0.5,2",
        "--out",
        study_folder,
    ]
    asked_first = ("--dry-run", "--tokens-per-second", "probe")
    foreseen, message = invoke(
        "study", "sweep", *arguments, *sweep_options, *asked_first
    )
    assert not study_folder.exists()
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
        message.count("prefix_ratio=2 is refused: --prefix-ratio must be below 1.0")
        == 2
    )
    printed, message = invoke("study", "sweep", *arguments, *sweep_options)
    assert message.count("samples to draw: ") == 1
    assert {folder.name for folder in study_folder.iterdir() if folder.is_dir()} == {
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
    single_sample = with_one["metrics"].filter(
        slice="all", metric="roc_auc", attack="samia_matched_v1"
    )
    many_samples = read_aucs(
        study_folder, samples=1.0, prefix_ratio=0.5, is_primary=True
    )
    assert many_samples["value"].to_list() == single_sample["value"].to_list() != [None]
    assert many_samples["low"].to_list() == single_sample["low"].to_list()
    refused = read_aucs(study_folder, prefix_ratio=2.0)
    assert refused["value"].to_list() == [None, None]
    assert set(refused["reason"]) == {"prefix_ratio= must be below 1.0, not '2'"}
    assert "--prefix-ratio must be below 1.0" in " ".join(printed.split())
    again, message = invoke("study", "sweep", *arguments, *sweep_options)
    assert "samples to draw: " not in message
    assert again == printed


def test_what_the_target_says_is_asked_once_for_all_reference_models(
    checkpoint, tmp_path
):
    for name in ("one", "two"):
        copytree(checkpoint, tmp_path / name)
    study_folder = tmp_path / "study"
    arguments = [
        "--input",
        runs.written(tmp_path, runs.documents(10)),
        "--model",
        checkpoint,
    ]
    arguments += [
        "--engine",
        "transformers",
        "--no-report",
        "--attacks",
        "loss,ref",
        "--out",
        study_folder,
    ]
    invoke(
        "study",
        "sweep",
        *arguments,
        "--over",
        f"reference-model={tmp_path / 'one'},{tmp_path / 'two'}",
    )
    records = [
        json.loads((folder / "run.json").read_text())
        for folder in sorted(study_folder.glob("ref*"))
    ]
    passes = [{*record["passes"]} for record in records]
    assert sorted(passes, key=len) == [
        {"reference text"},
        {"reference text", "target text"},
    ]
    first, second = (
        pl.read_parquet(folder / "scores.parquet")
        for folder in study_folder.glob("ref*")
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
        {"tuning": model, "value": v, **figures}
        for model, v in (("m/lora", 0.6), ("m/full", 0.8))
    ]
    frame.publish(tmp_path, pl.DataFrame(rows), ["tuning"], x="tuning")
    chart = (tmp_path / "study.svg").read_text()
    assert chart.index(">lora<") < chart.index(">full<") < chart.index(">tuning<")
    first_row = pl.DataFrame(rows[:1])
    frame.publish(tmp_path, first_row, ["tuning"], x="tuning")
    assert not (tmp_path / "study.svg").exists()  # of one value there is no curve


def texts_of(folder, **columns):
    path = folder / "insert.parquet"
    pl.DataFrame(columns).write_parquet(path)
    return path


def test_copies_are_poisson_draws_of_each_text_alone(tmp_path):
    texts = [f"text {number}" for number in range(4000)]
    member = [number % 4 > 0 for number in range(4000)]

    def draw_copies(seed=3, **columns):
        return inserted_texts(
            texts_of(tmp_path, **columns), ColumnNames(), None, 4.0, Recipe(seed=seed)
        )

    all_of_them = draw_copies(text=texts, member=member)
    copies = all_of_them.filter(pl.Series(member))["copies"]
    assert all_of_them.filter(~pl.Series(member))["copies"].to_list() == [0] * 1000
    assert copies.mean() == pytest.approx(4, abs=4 * 2 / 3000**0.5)
    # Var of s2: 2 m^2 + m, over n
    assert copies.var() == pytest.approx(4, abs=4 * 6 / 3000**0.5)
    assert (copies == 0).sum() == pytest.approx(3000 * 0.0183, abs=30)
    reordered = draw_copies(text=texts[5:9][::-1], member=[True] * 4)
    copies_by_text = dict(all_of_them.select("text", "copies").iter_rows())
    assert (
        copies_by_text[texts[5]]
        == dict(reordered.select("text", "copies").iter_rows())[texts[5]]
    )
    by_lot = draw_copies(text=texts)
    assert (by_lot["copies"] > 0).sum() == pytest.approx(2000 * 0.9817, abs=130)
    other_seed = draw_copies(seed=4, text=texts)
    assert other_seed["copies"].to_list() != by_lot["copies"].to_list()


def test_texts_are_inserted_as_often_as_their_column_says(tmp_path):
    path = texts_of(tmp_path, text=["a", "b", "c"], k=[2, 0, 1])
    inserted = inserted_texts(path, ColumnNames(), "k", None, Recipe())
    assert inserted["member"].to_list() == [True, False, True]
    assert with_inserted(["x"], inserted) == ["x", "a", "a", "c"]
    with pytest.raises(
        SettingsError, match="1 of the texts to insert are among the others"
    ):
        with_inserted(["b"], inserted)


@pytest.mark.usefixtures("one_thread")
def test_a_model_is_tuned_with_inserted_texts_and_their_truth_lies_next_to_it(tmp_path):
    base, tuned_folder = save_bases(tmp_path / "bases")["gpt2"], tmp_path / "tuned"
    insert = texts_of(tmp_path, text=SHORT[:6], k=[3, 0, 1, 0, 2, 0])
    pl.DataFrame({"text": SHORT[6:10]}).write_parquet(tmp_path / "data.parquet")
    arguments = [
        "--base",
        base,
        "--data",
        tmp_path / "data.parquet",
        "--insert",
        insert,
    ]
    nowhere = [
        "--base",
        tmp_path / "none",
        *arguments[2:],
        "--copies",
        "k",
        "--out",
        tuned_folder,
    ]
    with pytest.raises(
        SettingsError, match=r"^--base: .*none' does not exist; give a checkpoint"
    ):
        invoke("finetune", *nowhere)
    _, message = invoke(
        "finetune", *arguments, "--copies", "k", "--epochs", 1, "--out", tuned_folder
    )
    assert "4 texts and 6 copies of 6 more texts: 1 steps" in " ".join(message.split())
    record = json.loads((tuned_folder / "training.json").read_text())
    assert record["n_texts"] == 10
    assert record["made_from"]["recipe"]["held_out"] == 0
    truth = pl.read_parquet(tmp_path / "tuned-inserted.parquet")
    assert truth.select("copies", "member").rows() == [
        *((3, True), (0, False), (1, True), (0, False), (2, True), (0, False))
    ]


@pytest.mark.parametrize(
    ("columns", "copies", "mean", "changed", "reason"),
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
    columns, copies, mean, changed, reason, tmp_path
):
    with pytest.raises(SettingsError, match=reason):
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
    base, study_folder = save_bases(tmp_path / "bases")["llama"], tmp_path / "study"
    copies = [0] * 8 + [1] * 6 + [6] * 6
    path = texts_of(tmp_path, text=SHORT[:20], k=copies)
    pl.DataFrame({"text": SHORT[20:30]}).write_parquet(tmp_path / "into.parquet")
    arguments = [
        "study",
        "contamination",
        "--input",
        path,
        "--copies",
        "k",
        "--base",
        base,
    ]
    arguments += [
        "--into",
        tmp_path / "into.parquet",
        "--engine",
        "transformers",
        "--out",
        study_folder,
    ]
    # Of intervals, too
    arguments += [
        "--over",
        "learning-rate=1e-5,3e-3",
        "--over",
        "method=full",
    ]
    arguments += ["--epochs", 2, "--batch-size", 8]
    arguments += ["--attacks", "loss_v1", "--max-tokens", 64]
    n_audits = []

    def stop_in_training(settings, observer):
        n_audits.append(settings.out)
        if len(n_audits) == 3:
            raise KeyboardInterrupt
        return run_audit(settings, observer)

    foreseen, message = invoke(*arguments, "--dry-run")
    assert not study_folder.exists()
    first, second = (f"learning_rate={rate}-method=full" for rate in ("1e-05", "0.003"))
    names = ("base", f"{first}/run", f"{second}/run")
    assert [
        line.split()[1] for line in foreseen.splitlines() if line.startswith("run ")
    ] == [*names]
    assert f"{second}: 52 texts, 14 steps, " in " ".join(message.split())
    monkeypatch.setattr(frame, "run_audit", stop_in_training)
    result = CliRunner().invoke(command, [*map(str, arguments)])
    assert result.exit_code != 0
    monkeypatch.setattr(frame, "run_audit", run_audit)
    assert not (study_folder / "study.parquet").exists()
    record = study_folder / second / "model" / "training.json"
    written_at = record.stat().st_mtime_ns
    invoke(*arguments)
    assert record.stat().st_mtime_ns == written_at
    of_training = json.loads(record.read_text())
    assert of_training["n_texts"] == 10 + 6 + 36
    assert of_training["made_from"]["recipe"]["schedule"] == "constant"
    table = read_aucs(study_folder)
    assert table.height == 3 * 3  # the base and two models: all copies, 1 and 6
    of_models = table.filter(pl.col("model") != "base")
    assert {*of_models["method"]} == {"full"}
    assert {*table["method_of_interval"]} == {"delong_logit", "newcombe_5"}
    aucs_by_name = table.select(
        pl.format("{} {}", "model", pl.col("copies").fill_null(0)), "value"
    )
    aucs = {str(name): value for name, value in aucs_by_name.iter_rows()}
    assert aucs[f"{second} 6"] >= 0.9
    assert aucs[f"{second} 6"] > aucs[f"{second} 1"]
    assert aucs[f"{first} 6"] == pytest.approx(aucs["base 6"], abs=0.1)
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
        [
            (kinds[key], key, score)
            for key, book_scores in scores.items()
            for score in book_scores
        ],
        ["kind", "key", "score"],
        orient="row",
    ).with_columns(member=pl.col("kind") == "learnt")
    known_windows = windows.filter(pl.col("kind") != "asked")
    shares = {
        key: (threshold, share)
        for _, key, threshold, share in _compute_shares(windows, known_windows)
    }
    # Of all known windows 3 of 4 and 0 of 4 are at least 4. Without A those of B
    # decide: at 5 the rates are 1/2 and 0, at 1 they are 1 and 3/4.
    assert shares["X"] == (4, 0.5)
    assert shares["A"] == (5, 0.5)
    assert shares["B"] == (4, 0.5)
    assert shares["C"] == shares["D"] == (4, 0.0)


@pytest.mark.parametrize(
    ("sides", "gap", "exploratory", "first_words"),
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
def test_a_threshold_that_means_nothing_gives_no_share(
    sides, gap, exploratory, first_words
):
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
    known_windows = pl.DataFrame(rows, schema_overrides={"group": pl.String})
    manifest = SimpleNamespace(settings={"seed": 0, "exploratory": exploratory})
    run: Any = SimpleNamespace(scan=lambda _: known_windows.lazy(), manifest=manifest)
    sentences, reason = _check_separation(run, known_windows)
    assert sentences[0].startswith("The scores separate known windows with AUC")
    assert (reason or "").startswith(first_words) if first_words else reason is None


def test_too_few_known_books_choose_no_threshold(checkpoint, tmp_path):
    texts = pl.DataFrame({"document_id": list("abcdefgh"), "text": TEXTS[:8]})
    texts = texts.with_columns(author=pl.col("document_id") + " Smith", year=1811)
    known_books = texts.head(6).with_columns(member=pl.Series([True, False] * 3))
    known_books.write_parquet(tmp_path / "known.parquet")
    texts.tail(2).write_parquet(tmp_path / "asked.parquet")
    study_folder = tmp_path / "study"
    arguments = [
        "--known",
        tmp_path / "known.parquet",
        "--input",
        tmp_path / "asked.parquet",
    ]
    arguments += [
        "--model",
        checkpoint,
        "--engine",
        "transformers",
        "--window-words",
        8,
        "--anyway",
    ]
    arguments += [
        "--non-members-known",
        "made here",
        "--continue-strongest",
        0,
        "--no-yardstick",
    ]
    printed, _ = invoke("study", "books", *arguments, "--out", study_folder)
    assert (
        "No share is given: 3 books known as learnt and 3 known as not learnt are"
        " too few" in (" ".join(printed.split()))
    )
    table = pl.read_parquet(study_folder / "study.parquet")
    assert table["share"].null_count() == table.height == 8
    assert table.filter(kind="asked")["p_value"].null_count() == 0
    assert {*table.select("key", "author", "year").rows()} == {
        (name, f"{name} Smith", 1811) for name in "abcdefgh"
    }
    assert "g Smith" in printed
    assert not (study_folder / "study.svg").exists()


def open_folder(study_folder, kind, *, dry_run=False):
    return frame.open_study(
        study_folder, kind, {"dry_run": dry_run, "tokens_per_second": None}
    )


def test_a_folder_is_of_one_study_and_one_process(tmp_path):
    mine, others_folder = tmp_path / "mine", tmp_path / "others"
    with open_folder(mine, "sweep") as study:
        assert study.folder == mine
        with pytest.raises(RunFolderError, match="is held by another study"):
            open_folder(mine, "sweep").__enter__()
        (mine / "run").mkdir()
    with pytest.raises(RunFolderError, match="holds another study, sweep"):
        open_folder(mine, "books", dry_run=True).__enter__()
    with open_folder(mine, "sweep", dry_run=True) as study:
        assert study.folder != mine
        assert (study.folder / "run").samefile(mine / "run")
    others_folder.mkdir()
    (others_folder / "letter.txt").write_text("not of a study")
    with pytest.raises(
        RunFolderError, match="others holds other files; give this study another"
    ):
        open_folder(others_folder, "sweep").__enter__()
    assert [path.name for path in others_folder.iterdir()] == ["letter.txt"]
    with pytest.raises(RunFolderError, match=r"letter.txt cannot be made or written"):
        open_folder(others_folder / "letter.txt", "sweep", dry_run=True).__enter__()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep", "--over", "samples=1,,2"], "does not read NAME=VALUE,VALUE"),
        (["sweep", "--over", "samples"], "does not read NAME=VALUE,VALUE"),
        (["sweep", "--over", "q=1", "--over", "q=2"], "each name once"),
        (["sweep", "--over", "fpr=0.1"], "changes no figure"),
        (["sweep", *(f"--over={name}=1" for name in "abc")], "3 are too many"),
        (
            ["sweep", "--over", "samples=1", "--samples", "2"],
            "--samples is in --over, too",
        ),
        (["books", "--known-members", "a"], "give --known, or both"),
    ],
)
def test_a_study_that_cannot_be_is_a_wrong_request(arguments, message, tmp_path):
    result = CliRunner().invoke(
        command, ["study", *arguments, "--out", str(tmp_path / "s")]
    )
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
