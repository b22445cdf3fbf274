"""Fragments, embedded by a tiny model and given back: what is shown, kept and refused."""

import json
import re
from dataclasses import replace
from random import Random

import numpy as np
import polars as pl
import pytest
from benches.inversion import random, texts_of_books
from click.testing import CliRunner
from polars.testing import assert_frame_equal

from mia_batch.cli.main import command
from mia_batch.errors import CorpusError, RunFolderError, SettingsError
from mia_batch.evidence.endpoint import ClientSettings
from mia_batch.extras.privacy.inversion.models import permute_across_clusters, recover
from mia_batch.extras.privacy.inversion.training import invert
from mia_batch.recipes import Recipe
from mia_batch.schemas import Inversion, InversionTexts
from tests.embedding_server import EmbeddingServer
from tests.hostile_server import HostileServer
from tests.texts import king_james_books
from tests.unit.evidence.endpoint.asking import KEY

RECIPE = Recipe(
    method="full",
    epochs=7,
    learning_rate=4e-3,
    batch_size=16,
    max_tokens=24,
    patience=3,
)

pytestmark = pytest.mark.usefixtures("one_thread")

SHARE = 0.7
STRANGE = [None, " ", "word after word " * 20]


@pytest.fixture(scope="module")
def fragments():
    """Runs of the commonest words of an English text, 20 a group.

    Its words are shuffled, because it repeats itself so often that neighbours give much
    away.
    """
    shuffle = Random(0)
    books = {name: text.split() for name, text in king_james_books().items()}
    shuffled = {
        name: " ".join(shuffle.sample(words, len(words)))
        for name, words in books.items()
    }
    return texts_of_books("fragments", 2500, shuffled)


@pytest.fixture(scope="module")
def embedder(fragments, tmp_path_factory):
    """A causal model of random weights."""
    folder = tmp_path_factory.mktemp("embedder")
    random(folder, fragments["text"].to_list())
    return folder


@pytest.fixture(scope="module")
def data(fragments, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "texts.parquet"
    strange_texts = pl.DataFrame(
        {"group": None, "text": STRANGE}, schema=fragments.schema
    )
    pl.concat([fragments, strange_texts]).write_parquet(path)
    return path


@pytest.fixture(scope="module")
def inverted(data, embedder, tmp_path_factory):
    run_folder = tmp_path_factory.mktemp("inverted") / "run"
    return invert(
        data=data, embedder=str(embedder), out=run_folder, recipe=RECIPE, share=SHARE
    )


def f1(inverted, method, versus=None, metric="f1"):
    rows = inverted.figures.filter(unit="tokens", metric=metric, method=method)
    (row,) = rows.filter(pl.col("versus").eq_missing(versus)).iter_rows(named=True)
    return row


def test_inversion_beats_the_nearest_neighbour_and_needs_the_right_embedding(inverted):
    assert f1(inverted, "inverter", "nearest")["low"] > 0.03
    assert f1(inverted, "inverter", "shuffled")["low"] > 0.1
    nothing = f1(inverted, "shuffled", "unconditional")
    assert abs(nothing["value"]) < 0.5 * f1(inverted, "inverter", "shuffled")["value"]
    assert "give away words of texts that the attacker never saw" in inverted.sentence


def test_the_tables_are_of_the_texts_alone(inverted, data):
    """No label, no suffix, nothing of the auxiliary side; a row with a reason for each other."""
    texts, input_table = inverted.texts, pl.read_parquet(data)
    InversionTexts.validate(texts)
    Inversion.validate(inverted.figures)
    assert set(texts["text"]) <= set(input_table["text"])
    assert texts.group_by("method").len()["len"].n_unique() == 1
    missing = texts.filter(pl.col("reason").is_not_null(), method="nearest")
    assert missing.filter(pl.col("text").is_null()).height == 1
    reasons = {
        re.sub(r"\d+ tokens", "N tokens", reason) for reason in missing["reason"]
    }
    empty, long = (
        "there is no text",
        "the text has N tokens, more than max_tokens, which is 24",
    )
    assert {empty} <= reasons <= {empty, long}
    measured = ("recovered", "precision", "recall", "f1", "exact", "shared_tokens")
    assert missing.select(pl.col(measured).is_null().all()).row(0) == (True,) * len(
        measured
    )
    scored = texts.filter(pl.col("reason").is_null())
    assert (
        scored.select("recovered", "recall", "f1", "exact").null_count().row(0)
        == (0,) * 4
    )
    nearest = scored.filter(method="nearest")
    attacked = set(scored["text"])
    assert not attacked & set(nearest["recovered"])
    groups = input_table.filter(pl.col("text").is_in(nearest["recovered"].to_list()))[
        "group"
    ]
    assert not set(groups) & set(scored["group"])


def test_figures_are_those_of_the_table(inverted):
    inverter_rows = inverted.texts.filter(method="inverter").drop_nulls("recovered")
    shared, true, recovered = (
        inverter_rows[f"{name}_tokens"].sum()
        for name in ("shared", "true", "recovered")
    )
    assert f1(inverted, "inverter")["value"] == pytest.approx(
        2 * shared / (true + recovered)
    )
    assert f1(inverted, "inverter")["n_texts"] == inverter_rows.height
    assert f1(inverted, "inverter", metric="exact")["value"] == pytest.approx(
        inverter_rows["exact"].mean()
    )
    # Shuffled is what the decoder says to the embedding of another text.
    shuffled, constant = (
        inverted.texts.filter(method=method)["recovered"].drop_nulls()
        for method in ("shuffled", "unconditional")
    )
    assert sorted(inverter_rows["recovered"]) == sorted(shuffled)
    assert constant.n_unique() == 1


@pytest.mark.parametrize("sizes", [[1] * 9, [5, 3, 2], [4, 4], [1, 2, 3, 4]])
def test_shuffling_gives_each_text_one_of_another_cluster(sizes):
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    for seed in range(5):
        shuffled = permute_across_clusters(cluster, seed)
        assert sorted(shuffled) == list(range(len(cluster)))
        assert (cluster[shuffled] != cluster).all()


def test_greedy_decoding_is_the_most_likely_token_each_time(inverted):
    """Beside one text at a time, read whole at each step, without a cache."""
    import torch
    from transformers import AutoTokenizer

    from mia_batch.extras.privacy.inversion.models import load_inverter

    folder = inverted.folder / "inverter"
    decoder, tokenizer = load_inverter(folder), AutoTokenizer.from_pretrained(folder)
    size = decoder.inversion.linear.in_features
    embeddings = np.random.default_rng(0).normal(size=(3, size)).astype(np.float32)
    expected = []
    for embedding in torch.from_numpy(embeddings):
        ids: list[int] = []
        while len(ids) < 24 and tokenizer.eos_token_id not in ids:
            scaled = (embedding - decoder.inversion.mean) / decoder.inversion.spread
            states = decoder.inversion.linear(scaled)[None]
            words = decoder.get_input_embeddings()(torch.tensor(ids, dtype=torch.long))
            with torch.inference_mode():
                logits = decoder(inputs_embeds=torch.cat([states, words])[None]).logits
            ids.append(int(logits[0, -1].argmax()))
        expected.append(tokenizer.decode(ids, skip_special_tokens=True))
    assert recover(folder, embeddings, 24) == expected


def test_the_same_request_again_makes_nothing_and_says_the_same(
    inverted, data, embedder
):
    modified_before = {
        path: path.stat().st_mtime_ns
        for path in (inverted.folder / "inverter").iterdir()
    }
    again = invert(
        data=data,
        embedder=str(embedder),
        out=inverted.folder,
        recipe=RECIPE,
        share=SHARE,
    )
    assert_frame_equal(again.texts, inverted.texts)
    assert_frame_equal(again.figures, inverted.figures)
    modified_after = {
        path: path.stat().st_mtime_ns
        for path in (inverted.folder / "inverter").iterdir()
    }
    assert modified_after == modified_before
    figures = pl.read_parquet(inverted.folder / "figures.parquet")
    assert_frame_equal(figures, inverted.figures)
    summary = json.loads((inverted.folder / "summary.json").read_text())
    assert summary["sentence"] == inverted.sentence
    fewer = replace(RECIPE, epochs=1)
    with pytest.raises(RunFolderError, match="holds a model made of another"):
        invert(
            data=data,
            embedder=str(embedder),
            out=inverted.folder,
            recipe=fewer,
            share=SHARE,
        )


def test_the_command_prints_the_figures(inverted, data, embedder):
    options = {
        "data": data,
        "embedder": embedder,
        "out": inverted.folder,
        "epochs": RECIPE.epochs,
    }
    options |= {
        "learning-rate": RECIPE.learning_rate,
        "batch-size": 16,
        "max-tokens": 24,
    }
    options |= {"held-out": 0, "share": SHARE}
    arguments = ["invert", *(f"--{name}={value}" for name, value in options.items())]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    row = f1(inverted, "inverter")
    limits = f"{row['value']:.3f} [0-9.]+ {row['low']:.3f} to {row['high']:.3f}"
    assert re.search(
        rf"tokens inverter [0-9.]+ [0-9.]+ {limits}", " ".join(result.output.split())
    )
    assert inverted.sentence in " ".join(result.stderr.split())
    assert "inverter less nearest" in result.output
    contradiction = CliRunner().invoke(
        command, [*arguments, "--base-url=http://127.0.0.1:9/v1", "--model=m"]
    )
    assert contradiction.exit_code == 2
    assert (
        "give --embedder MODEL, or --base-url URL and --model NAME"
        in contradiction.output
    )


ENDPOINT = ClientSettings(base_url="http://127.0.0.1:9/v1", model="m")


@pytest.mark.parametrize(
    ("texts", "changed", "error", "reason"),
    [
        (
            ["a"],
            {"share": 1.0},
            SettingsError,
            "give a share of auxiliary texts between 0 and 1",
        ),
        (["a"], {"embedder": ENDPOINT}, SettingsError, "name a 'decoder'"),
        ([" ", None], {}, CorpusError, "there is no text in the data"),
        (
            ["a b c d e f g " * 9, "b c d e f g h " * 9],
            *(
                {"recipe": RECIPE},
                CorpusError,
                "has no text that could be attacked or learnt",
            ),
        ),
        (
            *(
                ["a"],
                {"decoder": True, "recipe": replace(RECIPE, max_tokens=63)},
                SettingsError,
            ),
            "has a context of 64 tokens, .* at most 62 as max",
        ),
    ],
)
def test_what_is_refused(texts, changed, error, reason, embedder, tmp_path):
    data = tmp_path / "texts.parquet"
    pl.DataFrame({"text": texts}, schema={"text": pl.String}).write_parquet(data)
    settings = {
        "data": data,
        "embedder": str(embedder),
        "out": tmp_path / "out",
    } | changed
    if "decoder" in settings:
        settings["decoder"] = str(embedder)
    with pytest.raises(error, match=reason):
        invert(**settings)
    assert not (tmp_path / "out" / "inverter").exists()


def test_an_endpoint_is_inverted_with_a_named_decoder(fragments, embedder, tmp_path):
    texts = fragments.head(40).with_columns(group=pl.lit(None, pl.String))
    texts.write_parquet(tmp_path / "texts.parquet")
    options = {
        "data": tmp_path / "texts.parquet",
        "model": "embedder",
        "decoder": embedder,
    }
    options |= {"out": tmp_path / "out", "epochs": 1, "max-tokens": 24}
    with HostileServer(EmbeddingServer(refuses=texts["text"][7])) as server:
        arguments = [
            "invert",
            *(f"--{name}={value}" for name, value in options.items()),
        ]
        for _ in range(2):
            result = CliRunner(env={"OPENAI_API_KEY": KEY}).invoke(
                command,
                [*arguments, f"--base-url={server.url}"],
                catch_exceptions=False,
            )
            assert result.exit_code == 0
    # All at once, then one by one, then never again
    assert len(server.asked + server.probes) == 41
    text_rows = pl.read_parquet(tmp_path / "out" / "texts.parquet")
    reasons = text_rows.drop_nulls("reason").select("text", "reason").unique()
    refused = (
        "the endpoint gives no embedding (status 400: maximum context length exceeded)"
    )
    assert set(reasons.rows()) <= {(texts["text"][7], refused)}
    assert KEY.encode() not in b"".join(
        path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()
    )
