"""Data sets and models by name: their records, the content of a set, and what they say of a run."""

import json
from datetime import date
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import polars as pl
import pytest
from click.testing import CliRunner
from huggingface_hub import constants, errors

from mia_batch.cli.main import command
from mia_batch.diagnostics.blind import blind_baseline
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.known import advice, content_digest, find_set, named_sets
from mia_batch.pipeline import plan
from mia_batch.settings import load_settings
from mia_batch.targets import Windowing, build_targets
from tests.file_server import FileServer, serve_data_set
from tests.texts import king_james_passages

FACTS = ("licence", "published", "hub", "revision", "files", "rows", "sha256", "blind")


def test_a_record_has_each_fact_or_the_reason_why_not():
    for name, each in named_sets().items():
        missing = {fact for fact in FACTS if getattr(each, fact) is None}
        assert missing - {"files"} <= set(each.unknown), name
        assert each.hub or each.address, name
        assert each.files or "files" in each.unknown or each.hub is None, name
        assert "{set}" not in f"{each.hub}{each.files}{each.only}", name
        assert isinstance(each.published, date | None), name
        marks = each.columns.get("label") or each.folders or each.counted
        assert bool(marks) is bool(each.labels), name


@pytest.fixture(scope="module")
def wikimia(shared_data):
    return shared_data / "wikimia"


def test_wikimia_is_the_recorded_one_in_any_order_and_format(wikimia, tmp_path):
    for words, n_rows in ((64, 542), (128, 250)):
        named = find_set(f"WikiMIA:{words}")
        checked = named.check(named.read(str(wikimia / f"{words}.jsonl"), {}), None)
        assert checked.n_documents == n_rows == named.rows
        rows = pl.read_ndjson(wikimia / f"{words}.jsonl")
        shuffled = rows.sample(fraction=1, shuffle=True, seed=1)
        shuffled.rename({"input": "words"}).write_parquet(tmp_path / "copy.parquet")
        copied = named.read(str(tmp_path / "copy.parquet"), {"text": "words"})
        assert content_digest(copied.documents) == named.sha256
        notes = named.check(copied, None).notes[-2:]
        assert notes[0].endswith("; its content is the one recorded")
        assert "tells them apart with AUC 0.99" in notes[1]


def test_the_recorded_classifier_is_the_one_that_a_run_finds(wikimia):
    named = find_set("wikimia:128")
    documents = named.read(str(wikimia / "128.jsonl"), {}).documents
    texts = build_targets(documents, Windowing())
    found = blind_baseline(texts).metrics.sort(
        "value", descending=True, nulls_last=True
    )
    best = found.row(0, named=True)
    auc = dict(found.select("attack", "value").iter_rows())
    assert auc["blind_naive_bayes_v1"] == pytest.approx(0.91, abs=0.02)
    assert auc["blind_year_v1"] == pytest.approx(0.90, abs=0.02)
    assert named.blind is not None
    assert (best["attack"], round(best["value"], 6)) == (
        named.blind["classifier"],
        named.blind["auc"],
    )
    # A run groups near-copies
    assert best["low"] == pytest.approx(named.blind["low"], abs=0.01)


def corpus(folder, rows, name="rows.jsonl"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def test_a_content_is_refused_unless_it_is_recorded_pinned_or_said_to_be_unknown(
    tmp_path,
):
    named, rows = find_set("wikimia:64"), [{"input": "Ein Wort — \u2028", "label": 1}]
    read = named.read(corpus(tmp_path, rows), {})
    row = '["Ein Wort — \u2028",true]'.encode()
    found = sha256(sha256(row).digest()).hexdigest()
    with pytest.raises(
        CorpusError, match=rf"not wikimia:64: .* {found}, .* {named.sha256};"
    ):
        named.check(read, None)
    assert named.check(read, found).notes[-2].endswith("the one pinned")
    with pytest.raises(CorpusError, match="--dataset-sha256 says ff"):
        named.check(read, "f" * 64)
    rows = [
        {"snippet": "a b", "label": 0, "book": "B"},
        {"snippet": "c", "label": 1, "book": "C"},
    ]
    named = find_set("bookmia")
    read = named.read(corpus(tmp_path, rows), {})
    assert read.documents.select("text", "member", "group").collect().rows() == [
        ("a b", False, "B"),
        ("c", True, "C"),
    ]
    digest = content_digest(read.documents)
    assert (
        f"not checked (no copy of it was at hand); --dataset-sha256 {digest}"
        in (named.check(read, None).notes[-1])
    )
    traps = find_set("copyright-traps:seq_len_25_n_rep_10")
    few = traps.read(corpus(tmp_path, [{"text": "a", "label": 1}], "few.jsonl"), {})
    with pytest.raises(CorpusError, match="it has 1 rows and not 1,000"):
        traps.check(few, None)


def test_labels_are_taken_from_folders_counts_and_rows_of_one_condition(tmp_path):
    named = find_set("mimir:arxiv/ngram_7_0.2")
    for folder, texts in (("train", ["seen", 'said "so"']), ("test", ["unseen"])):
        corpus(tmp_path, texts, f"cache/{folder}/arxiv_ngram_7_0.2.jsonl")
        corpus(tmp_path, ["another"], f"cache/{folder}/github_ngram_7_0.2.jsonl")
    read = named.read(str(tmp_path), {})
    found = read.documents.select("text", "member").collect().rows()
    assert sorted(found) == [('said "so"', True), ("seen", True), ("unseen", False)]
    assert read.n_documents == 3
    assert len({file.name for file in read.files}) == 2
    with pytest.raises(
        CorpusError, match=r"has no train/arxiv_.*\.jsonl and test/arxiv_"
    ):
        named.read(str(tmp_path / "cache" / "train"), {})
    counted = [{"text": "a", "duplicates": 0}, {"text": "b", "duplicates": 16}]
    hubble = find_set("hubble:passages_wikipedia").read(corpus(tmp_path, counted), {})
    assert hubble.documents.collect()["member"].to_list() == [False, True]
    rows = [
        {"text": text, "membership": label, "condition": condition}
        for text, label, condition in (
            ("a", 1, "plain_1x"),
            ("b", 0, "plain_1x"),
            ("c", 1, "x"),
        )
    ]
    path = corpus(tmp_path, rows, "toaa.jsonl")
    toaa = find_set("toaa:plain_1x").read(path, {})
    assert toaa.documents.collect()["text"].to_list() == ["a", "b"]
    assert toaa.n_documents == 2
    with pytest.raises(CorpusError, match="no row of toaa:plain_4x"):
        find_set("toaa:plain_4x").read(path, {})
    with pytest.raises(
        CorpusError, match="no column 'duplicates', which hubble:chats_personachat"
    ):
        find_set("hubble:chats_personachat").read(path, {})


def test_a_text_stands_in_the_column_that_another_one_names(tmp_path):
    rows = [
        {
            "ID": book,
            "Label": label,
            "Length": length,
            "Answer": answer,
            **{f"Example_{letter}": f"{book} {letter}" for letter in "ABCD"},
        }
        for book, label, length, answer in (
            ("Emma", 1, "small", "A"),
            ("Emma", 1, "small", "C"),
            ("Emma", 1, "large", "B"),
            ("New", 0, "small", "D"),
        )
    ]
    read = find_set("booktection:small").read(corpus(tmp_path, rows), {})
    assert read.documents.select("text", "member", "group").collect().rows() == [
        ("Emma A", True, "Emma"),
        ("Emma C", True, "Emma"),
        ("New D", False, "New"),
    ]
    assert read.n_documents == 3
    rows[0]["Answer"] = "E"
    with pytest.raises(CorpusError, match="1 rows have a column 'Answer' that is none"):
        find_set("booktection:small").read(corpus(tmp_path, rows), {})


def test_topics_are_not_taken_for_labels(tmp_path):
    rows = [{"text": "a b", "label": topic} for topic in range(4)]
    named = find_set("ag-news:test")
    read = named.read(corpus(tmp_path, rows), {})
    assert read.documents.collect()["member"].to_list() == [None] * 4
    assert read.documents.collect()["label"].to_list() == [0, 1, 2, 3]
    (sentence,) = advice("own/model", named, has_reference=True)
    assert sentence.startswith("ag-news:test has no labels of membership: compare it")


@pytest.mark.parametrize("place", ["folder", "hub"])
def test_a_set_without_a_recorded_commit_says_which_one_was_read(
    place, tmp_path, monkeypatch
):
    commit = "12" * 20
    lines = b'{"input": "a", "label": 1}\n{"input": "b", "label": 0}\n'
    named = find_set("wikimia-24-hard:test")
    assert named.revision is None
    assert named.hub is not None
    with FileServer().running() as server:
        if place == "hub":
            monkeypatch.setattr(constants, "ENDPOINT", server.url)
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
            monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
            template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
            monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
            serve_data_set(server, named.hub, commit, {"test.jsonl": lines})
            path = f"hf://datasets/{named.hub}/test.jsonl"
        else:
            folder = tmp_path / "snapshots" / commit
            folder.mkdir(parents=True)
            (folder / "test.jsonl").write_bytes(lines)
            path = str(folder / "test.jsonl")
        checked = named.check(named.read(path, {}), None)
    assert checked.notes[-1] == (
        "no commit of wikimia-24-hard:test was pinned beforehand: it was read at"
        f" {commit}"
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The hub's cache of a machine without a network, with one set that somebody has fetched."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    named = find_set("wikimia:64")
    repository = tmp_path / "datasets--swj0419--WikiMIA"
    path = (
        repository
        / "snapshots"
        / named.revision
        / "data"
        / "WikiMIA_length64-0-of-1.parquet"
    )
    path.parent.mkdir(parents=True)
    pl.DataFrame({"input": ["one"], "label": [1]}).write_parquet(path)
    return tmp_path


def test_a_set_is_read_from_the_hubs_cache_without_a_network(cache):
    named = find_set("wikimia:64")
    read = named.read(named.locate(), {})
    assert read.documents.select("text", "member").collect().rows() == [("one", True)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wikimia:32", r"has no data/WikiMIA_length32-\*"),
        (
            "bookmia",
            "could not be fetched from swj0419/BookMIA .* local copy with --input PATH",
        ),
        (
            "patentmia",
            r"download https://github.com/zhang-wei-chao/DC-PDD .*--input PATH",
        ),
    ],
)
def test_what_cannot_be_fetched_says_what_to_do(cache, name, words):
    with pytest.raises(SettingsError, match=f"--dataset {name}.*{words}"):
        find_set(name).locate()


def test_a_gated_set_says_where_its_conditions_are(monkeypatch):
    answer: Any = SimpleNamespace(headers={}, request=None)

    def refuse(*_, **__):
        raise errors.GatedRepoError("gated", response=answer)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(
        SettingsError, match=r"conditions at \S+/iamgroot42/mimir, .*hf auth login"
    ):
        find_set("mimir:github/ngram_13_0.8").locate()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wikimia:46", "did you mean wikimia:64"),
        (
            "wikimia",
            "did you mean wikimia:32 or wikimia:64 or wikimia:128 or wikimia:256",
        ),
        ("nothing like it", "no data set 'nothing like it'; `mia-batch datasets`"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_ones(name, words):
    with pytest.raises(SettingsError, match=words):
        find_set(name)


TRAPS, WIKIMIA = "copyright-traps:seq_len_25_n_rep_10", "wikimia:64"
PERTURBED = "allegrolab/hubble-1b-100b_toks-perturbed-hf"


@pytest.mark.parametrize(
    ("model", "name", "words"),
    [
        (
            *("EleutherAI/pythia-6.9b", None),
            [
                "was trained on the Pile, whose texts end by 2020-12-31",
                "EleutherAI/pythia-70m ",
            ],
        ),
        ("EleutherAI/pythia-70m", None, ["was trained on the Pile"]),
        (
            "models/EleutherAI/pythia-1b-deduped",
            None,
            ["twin EleutherAI/pythia-70m-deduped "],
        ),
        (
            "EleutherAI/pythia-6.9b",
            TRAPS,
            ["after that: none can be in the training data"],
        ),
        ("EleutherAI/pythia-6.9b", "mimir:github/ngram_7_0.2", ["the Pile"]),
        (PERTURBED, None, [PERTURBED.replace("perturbed", "standard")]),
        (
            PERTURBED,
            TRAPS,
            [f"are about CroissantLLM: of {PERTURBED} they say nothing"],
        ),
        ("croissantllm/CroissantLLMBase", TRAPS, ["copyright traps"]),
        (
            "allenai/OLMo-2-1124-7B",
            WIKIMIA,
            ["are from 2023-01-01 on", "some may be in"],
        ),
        (
            "allenai/OLMo-1B-hf",
            None,
            ["was trained on Dolma v1.5, whose texts end by 2023-10-31"],
        ),
        ("HuggingFaceTB/SmolLM2-1.7B", None, ["twin HuggingFaceTB/SmolLM2-135M "]),
        ("LLM360/Amber", None, ["2023-12-11"]),
        ("sbordt/OLMo-2-179M-Exp", "toaa:plain_1x", ["twin sbordt/OLMo-2-179M "]),
        (
            "own/model",
            WIKIMIA,
            ["are about models that were released from 2017 to 2022"],
        ),
    ],
)
def test_what_the_records_say_of_a_model_and_a_set(model, name, words):
    named = None if name is None else find_set(name)
    said = " / ".join(advice(model, named, has_reference=False))
    assert [each for each in words if each not in said] == []
    assert "--reference-model" not in " / ".join(
        advice(model, named, has_reference=True)
    )
    if (name and name.startswith(("mimir", "toaa"))) or model.startswith("croissant"):
        assert "labels" not in said


def test_a_run_by_name_reads_the_hubs_cache_and_says_first_what_is_known(
    cache, checkpoint, monkeypatch
):
    (path,) = cache.rglob("*.parquet")
    texts = king_james_passages(64, n=542)
    labels = [number % 2 for number in range(542)]
    pl.DataFrame({"input": texts, "label": labels}).write_parquet(path)
    read = find_set("WikiMIA:64").read(str(path), {})
    given = {
        "dataset": "WikiMIA:64",
        "dataset_sha256": content_digest(read.documents),
        "model": str(checkpoint),
        "attacks": "loss_v1",
    }
    settings = load_settings(given, use_config=False)
    assert settings.input == str(path.parent / "WikiMIA_length64-*")
    assert (settings.dataset, settings.folder.name) == (
        "wikimia:64",
        "wikimia_64-checkpoint",
    )
    monkeypatch.chdir(cache)
    said = [*plan(settings)]
    notes = [each for name, each in said if name == "note"]
    assert [each.partition(" ")[0] for each in notes] == [
        "the",
        "wikimia:64",
        "members",
        "the",
    ]
    assert ("documents", "542") in said


def test_datasets_are_listed_and_shown():
    listed = CliRunner().invoke(command, ["datasets"])
    assert listed.exit_code == 0
    assert {name for name in named_sets() if name not in listed.output} == set()
    shown = CliRunner().invoke(command, ["datasets", "wikimia:32"]).output
    assert "revision          4de3f4f2e81c0deacf1963b58ffd9c392380fc80" in shown
    assert "sha256            unknown: no copy of it was at hand" in shown
