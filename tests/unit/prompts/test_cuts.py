"""Where prompts end, if tokens cross spaces or hold several characters of a script without any."""

import random
from functools import partial

import polars as pl
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from mia_batch import prompts
from mia_batch.models import tokens
from mia_batch.models.checkpoint_tokens import CheckpointCodec
from mia_batch.schemas import Documents
from mia_batch.targets import Windowing, build_targets, find_pauses
from tests.checkpoints import BOS, EOS, TEXTS, save_tokenizer

COMMA = "\N{FULLWIDTH COMMA}"
SPACED = [" ".join(text.split()[:80]) for text in TEXTS[1:41]]


def chinese(n=40):
    draw = random.Random(1)
    words = ["我们", "时间", "历史", "的", "在", "学习", "中国", "一个", "没有", "开始"]
    clauses = ["".join(draw.choices(words, k=6)) for _ in range(8 * n)]
    return [COMMA.join(clauses[8 * at : 8 * at + 8]) + "。" for at in range(n)]


def save_crossing_tokenizer(folder, texts, n_tokens=700):
    """Save a tokenizer that joins whatever stands together often, spaces or not."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens,
        special_tokens=[AddedToken(BOS, special=True), AddedToken(EOS, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text[:60] for text in texts], trainer)
    save_tokenizer(tokenizer, folder)
    return (str(folder), None, "tokenizer")


def documents(texts):
    types = Documents.create_empty().schema
    columns = {name: [None] * len(texts) for name in types} | {"text": texts}
    return pl.LazyFrame(columns, schema_overrides=types)


def share_known(texts, contexts, tokenizer):
    """Share of prompts after which a model that knows its texts token by token can go on."""
    pairs = zip(tokenizer.encode(contexts), tokenizer.encode(texts), strict=True)
    return sum(ids[: len(start)] == start for start, ids in pairs) / len(texts)


@pytest.mark.parametrize("texts", [SPACED, chinese()], ids=["spaced", "chinese"])
def test_prompts_end_between_the_tokens_of_the_text(tmp_path, monkeypatch, texts):
    named = save_crossing_tokenizer(tmp_path, texts)
    loaded = tokens.Tokenizer(CheckpointCodec(tokens_of(tmp_path)))
    monkeypatch.setattr(prompts, "_load", lambda *_: loaded)
    may_cut = partial(prompts.between_tokens, tokenizer=named)
    targets = {}
    for name, rule in (("anywhere", None), ("between tokens", may_cut)):
        windowing = Windowing(words="folded", may_cut=rule)
        targets[name] = build_targets(documents(texts), windowing).collect()
        assert (targets[name]["prefix"] + targets[name]["reference"]).to_list() == texts
    share = {
        name: share_known(texts, table["prefix"].to_list(), loaded)
        for name, table in targets.items()
    }
    assert share["anywhere"] < 0.8
    assert share["between tokens"] == 1
    found = targets["between tokens"]
    asked = partial(prompts.probes, found, n=8, every=1, n_words=1, words="folded")
    for rule, is_whole in ((None, False), (may_cut, True)):
        made = asked(may_cut=rule).filter(pl.col("reason").is_null())
        assert made.height == 8 * len(texts)
        whole = made.join(found.select("target_id", "target"), on="target_id")
        heads = [
            text.encode()[:cut].decode()
            for text, cut in whole.select("target", "cut").iter_rows()
        ]
        assert (share_known(whole["target"].to_list(), heads, loaded) == 1) == is_whole


def tokens_of(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_where_tokens_are_not_known_scripts_without_spaces_are_cut_before_marks():
    windowing = Windowing(words="folded", may_cut=find_pauses)
    for row in (
        build_targets(documents(chinese(8)), windowing).collect().iter_rows(named=True)
    ):
        assert row["reference"][0] in (COMMA, "。")
    spaced = build_targets(documents(SPACED), windowing).collect()
    assert spaced.equals(
        build_targets(documents(SPACED), Windowing(words="folded")).collect()
    )


def test_a_text_without_such_a_place_is_cut_as_before():
    windowing = Windowing(words="folded", may_cut=lambda _: lambda _: False)
    (row,) = (
        build_targets(documents(["a b c d"]), windowing).collect().iter_rows(named=True)
    )
    assert (row["prefix"], row["reference"]) == ("a b", " c d")
