"""Whole audits under each word rule: text without spaces, and text that is hardly any."""

from __future__ import annotations

import json

import polars as pl
import pytest

import mia_batch
from mia_batch import targets

PAIRS = {
    "zh": ("我们去了。然后他回家", ["。然后他回来", "、回家"]),
    "ja": ("東京タワーへ行く人", ["へ行くよ、人", ""]),
    "th": ("ภาษาไทย ดี", ["ไทย", "ดี ไทย"]),
    "odd": ("e\u0301te\u0301\0 🙂 b c", [" c 🙂b", "\0\u200d👩"]),
}
"""Documents, each with what was recorded for it."""


@pytest.fixture
def audited(tmp_path):
    def audit(**settings):
        texts = {name: text for name, (text, _) in PAIRS.items()}
        corpus = {"document_id": list(texts), "text": list(texts.values())}
        pl.DataFrame(corpus).write_parquet(tmp_path / "corpus.parquet")
        rows = [
            {"document_id": name, "candidate": candidate, "finish_reason": "length"}
            for name, (_, candidates) in PAIRS.items()
            for candidate in candidates
        ]
        pl.DataFrame(rows).write_parquet(tmp_path / "recording.parquet")
        return mia_batch.audit(
            input=str(tmp_path / "corpus.parquet"),
            samples_from=str(tmp_path / "recording.parquet"),
            out=tmp_path / "run",
            **settings,
        )

    return audit


def test_text_without_spaces_is_cut_and_scored_by_unicode_words(audited):
    run = audited(word_rule="unicode", attacks="samia_matched_v1,samia_matched_n2_v1,rouge_l_v1")
    assert run["targets"].select("n_words", "prefix", "reference").rows() == [
        (9, "我们去了", "。然后他回家"),
        (7, "東京タワー", "へ行く人"),
        (8, "ภาษา", "ไทย ดี"),
        (3, "e\u0301te\u0301", "\0 🙂 b c"),
    ]
    assert run["samples"]["short"].to_list() == [False, True, False, True, True, False, False, True]
    expected = {  # by hand, a term for each of the two samples
        "samia_matched_v1": [(4 + 2) / 5, 3 / 4 + 0, (3 + 4) / 4, 2 / 2 + 0],
        "samia_matched_n2_v1": [3 / 4 + 1 / 4, 2 / 3 + 0, (2 + 2) / 3, 0],
        "rouge_l_v1": [(4 + 2) / 5, 4 / 4 + 0, (3 + 3) / 4, 1 / 2 + 0],
    }
    for attack, sums in expected.items():
        assert run["scores"][attack].to_list() == pytest.approx([total / 2 for total in sums])


@pytest.mark.parametrize(
    ("rule", "n_words", "reason"),
    [
        ("whitespace", [1, 1, 2, 4], targets.TOO_SHORT),
        ("space", [1, 1, 2, 4], targets.TOO_SHORT),
        ("rouge", [0, 0, 0, 4], targets.EMPTY_TEXT),
    ],
)
def test_rules_that_find_too_few_words_there_say_so(audited, rule, n_words, reason):
    run = audited(word_rule=rule, attacks="samia_matched_v1")
    assert run["targets"]["n_words"].to_list() == n_words
    refused = [n < 2 for n in n_words]
    assert run["scores"]["samia_matched_v1"].is_null().to_list() == refused
    assert run["unscored"]["reason"].to_list() == [reason] * sum(refused)


def test_windows_of_text_without_spaces(tmp_path):
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"text": PAIRS["zh"][0]}))
    recorded = [
        {"prefix": "我们", "candidate": "去了吗"},
        {"prefix": "然后", "candidate": "她回"},
    ]
    (tmp_path / "recording.jsonl").write_text("\n".join(map(json.dumps, recorded)))
    run = mia_batch.audit(
        input=str(tmp_path / "corpus.jsonl"),
        samples_from=str(tmp_path / "recording.jsonl"),
        out=tmp_path / "run",
        word_rule="unicode",
        window_words=4,
        attacks="samia_matched_v1",
    )
    assert run["targets"]["target"].to_list() == ["我们去了", "然后他回"]
    assert run["scores"]["samia_matched_v1"].to_list() == [1.0, 0.5]
