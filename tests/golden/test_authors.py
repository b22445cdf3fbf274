"""The authors' procedure on real text, held against a reference implementation to the last bit."""

from importlib.util import find_spec

import polars as pl
import pytest

from mia_batch.attacks import families
from tests import reference_scores
from tests.runs import audit_demo
from tests.texts import king_james_passages

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not installed"
)


@pytest.mark.parametrize("length", [64, pytest.param(128, marks=pytest.mark.long)])
@pytest.mark.parametrize(  # the second rows hold the texts of most tokens
    ("rows", "samples", "max_length"), [((0, 5), 2, 1024), ((200, 350), 1, 192)]
)
def test_preset_samia_equals_its_reference_implementation_to_the_last_bit(
    demo, tmp_path, length, rows, samples, max_length
):
    texts = king_james_passages(length, n=400)[slice(*rows)]
    pl.DataFrame({"input": texts}).write_parquet(tmp_path / "corpus.parquet")
    run = audit_demo(
        demo,
        tmp_path / "run",
        engine="vllm",
        input=str(tmp_path / "corpus.parquet"),
        preset="samia",
        evidence="samples",
        text_column="input",
        text_length=length,
        samples=samples,
        max_length=max_length * length // 64 if samples == 1 else max_length,
    )
    family = [attack.name for attack in families()["SaMIA"]]
    names = [
        name for name in family if reference_scores.CLASSIC_ZLIB or "zlib" not in name
    ]
    sampled = dict(run["samples"].group_by("target_id", maintain_order=True))
    found = run["scores"].select("target_id", *names).rows(named=True)
    for text, row in zip(texts, found, strict=True):
        of_text = sampled[(row.pop("target_id"),)]
        # A prefix that leaves no room to continue
        if of_text["reason"].null_count() == 0:
            assert set(row.values()) == {None}
            continue
        prefix = reference_scores.authors_prefix(text)
        outputs = [
            (prompt or prefix) + candidate
            for prompt, candidate in of_text.select("prompt", "candidate").iter_rows()
        ]
        expected = reference_scores.authors_scores(text, outputs, length)
        assert row == {name: expected[name] for name in names}
