"""What there is to decode, added up before anything is."""

from __future__ import annotations

from mia_batch.evidence.budget import Budget
from mia_batch.evidence.workload import Workload
from mia_batch.models.measure import estimate_tokens


def test_the_sums_of_two_targets_and_one_without_room():
    budget = Budget(scope="matched", max_length=1024, max_model_len=100)
    workload = Workload()
    for prefix, reference in (("a" * 40, "b" * 80), ("c" * 80, "d" * 40), ("e" * 400, "f")):
        (measure,) = estimate_tokens([prefix], [reference])
        workload.add(prefix, measure, 10, budget)
    first = [20 + 5 + 8, 10 + 2 + 8]
    assert workload == Workload(
        prefixes=2,
        samples=20,
        too_long=1,
        prompt_bytes=120,
        first_tokens=10 * sum(first),
        most_tokens=10 * (33 + 66 + 90 + 20 + 40 + 80),
        paper_tokens=10 * (1014 + 1004),
    )
    assert dict(workload.lines())["tokens to decode"] == "530, at most 3,290"
    assert workload.outcome(500) == (
        "decoded 500 tokens, 250 a target; to the paper's 1,024 tokens it would have been "
        "up to 20,180"
    )
