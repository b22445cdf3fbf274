from __future__ import annotations

import json
from hashlib import sha256

import numpy as np
import pytest

from mia_batch.corpus import canary_documents, commitment, draw, read_canaries
from mia_batch.errors import CorpusError
from mia_batch.schemas import Documents

TEXTS = ["ein Vers", "ein\u2028anderer \u00e4", 'ein "dritter"']


def line(name="verse", texts=TEXTS, seed=7, **changes):
    hashed = commitment(name, texts)
    published = draw(hashed, len(texts), seed)
    fields = {"set": name, "texts": texts, "commitment": hashed}
    return json.dumps(fields | {"seed": seed, "published": published} | changes)


def written(tmp_path, *lines):
    path = tmp_path / "canaries.jsonl"
    path.write_text("".join(one + "\n" for one in lines), encoding="utf-8")
    return path


def test_the_commitment_is_the_hash_of_json_without_spaces():
    content = '{"set":"verse","texts":["ein Vers","ein\u2028anderer \u00e4","ein \\"dritter\\""]}'
    assert commitment("verse", TEXTS) == sha256(content.encode()).hexdigest()


def test_the_draw_is_that_of_numpy_from_seed_and_commitment():
    hashed = commitment("verse", TEXTS)
    rng = np.random.default_rng([7, int(hashed, 16)])
    assert draw(hashed, 3, 7) == rng.integers(3)
    drawn = [draw(hashed, 3, seed) for seed in range(3000)]
    assert np.bincount(drawn).tolist() == pytest.approx([1000] * 3, abs=90)


def test_sets_of_one_seed_draw_independently():
    drawn = [draw(commitment(f"set {n}", TEXTS), 3, 7) for n in range(3000)]
    assert np.bincount(drawn).tolist() == pytest.approx([1000] * 3, abs=90)


def test_sets_are_read_in_order(tmp_path):
    path = written(tmp_path, line(), line("other", ["a", "b"], seed=0))
    first, second = read_canaries(path)
    assert (first.name, first.texts) == ("verse", tuple(TEXTS))
    assert first.published == draw(commitment("verse", TEXTS), 3, 7)
    assert (second.name, second.texts) == ("other", ("a", "b"))


def test_separators_of_lines_inside_a_text_do_not_cut_it(tmp_path):
    path = tmp_path / "canaries.jsonl"
    path.write_text(json.dumps(json.loads(line()), ensure_ascii=False), encoding="utf-8")
    assert read_canaries(path)[0].texts == tuple(TEXTS)


def test_documents_of_canaries(tmp_path):
    sets = read_canaries(written(tmp_path, line()))
    table = canary_documents(sets)
    Documents.validate(table)
    assert table["document_id"].to_list() == ["verse/0", "verse/1", "verse/2"]
    assert table["text"].to_list() == TEXTS
    assert table["group"].unique().to_list() == ["verse"]
    assert table["member"].arg_true().to_list() == [sets[0].published]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("{", "this is not a set of canaries"),
        ("", "this is not a set of canaries"),
        ("[1]", "this is not a set of canaries"),
        (line().replace('"seed"', '"sead"'), "'seed': "),
        (line(texts=["a"]), "'texts': "),
        (line(published="1"), "'published': "),
        (line(note="x"), "'note': "),
        (line(texts=["a", "a"]), "has a text twice"),
        (line(commitment="0" * 64), "are not those committed"),
        (line(texts=["a", "b"], commitment=commitment("verse", ["b", "a"])), "not those committed"),
        (line(published=99), "draws another text"),
        (line(name="first"), "'first' comes twice"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, broken, message):
    path = written(tmp_path, line(name="first"), broken)
    with pytest.raises(CorpusError, match=f"canaries.jsonl, line 2: .*{message}"):
        read_canaries(path)


def test_another_seed_draws_another_text(tmp_path):
    honest = json.loads(line(texts=[str(n) for n in range(50)]))
    path = written(tmp_path, json.dumps(honest | {"seed": honest["seed"] + 1}))
    with pytest.raises(CorpusError, match="draws another text"):
        read_canaries(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CorpusError, match="cannot be read as canaries"):
        read_canaries(tmp_path / "none.jsonl")
