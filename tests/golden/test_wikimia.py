"""WikiMIA itself: its flaw is found, and a repair that fools itself is seen through."""

import pytest

from mia_batch.corpus import ColumnNames
from mia_batch.errors import CorpusError
from mia_batch.extras.sets import build_set

_TEXT = ColumnNames(text="input")


def test_whole_texts_cannot_be_repaired(shared_data, tmp_path):
    with pytest.raises(CorpusError, match=r"blind AUC is 0\.9[789]\d") as caught:
        build_set(
            documents=shared_data / "wikimia" / "128.jsonl",
            out=tmp_path / "sets",
            lengths=(128,),
            columns=_TEXT,
        )
    assert (
        "139 members and 111 non-members; a third is held out to test the set"
        in str(caught.value)
    )
    assert not (tmp_path / "sets").exists()


@pytest.mark.long
def test_the_test_within_the_set_alone_would_be_fooled(shared_data, tmp_path):
    """Matching leaves texts that mislead classifiers trained on such texts, and only these."""
    built = build_set(
        documents=shared_data / "wikimia",
        out=tmp_path / "sets",
        lengths=(32,),
        columns=_TEXT,
    )
    copies = built.thrown_away.filter(reason="copy of another document")
    assert copies.height == 250  # every text of 128 words begins with one of 64
    after = built.tests.filter(stage="after")
    within = max(after.filter(learnt_from="the set")["roc_auc"].to_list())
    outside = max(after.filter(learnt_from="held out")["roc_auc"].to_list())
    assert max(built.tests.filter(stage="before")["roc_auc"].to_list()) > 0.98
    assert within < 0.56
    assert outside > within + 0.05
    row = built.summary["sets"][0]
    assert row["members"] == row["nonmembers"] > 100
    assert row["verdict"] != "not separable"
    assert "It can carry no conclusion" in built.summary["sentences"][0]
