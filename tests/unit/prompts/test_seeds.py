from __future__ import annotations

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from mia_batch.prompts.views import SAMPLES_PER_TARGET, sample_seed

TARGETS = st.text(max_size=64)
RUN_SEEDS = st.integers(min_value=-(2**70), max_value=2**70)


def test_a_seed_never_changes_between_releases():
    assert sample_seed(0, "9f86d081884c7d65") == 0x120AFF3C7C3C0000


@given(RUN_SEEDS, TARGETS)
def test_a_seed_is_the_top_of_a_hash_of_run_and_target(run_seed: int, target_id: str):
    digest = blake2b(f"{run_seed}:{target_id}".encode(), digest_size=8, person=b"mia-batch")
    bits = f"{int(digest.hexdigest(), 16):064b}"
    assert sample_seed(run_seed, target_id) == int(bits[:46] + "0" * 16, 2)


@given(RUN_SEEDS, TARGETS)
def test_seeds_of_all_samples_fit_a_signed_64_bit_integer(run_seed: int, target_id: str):
    first = sample_seed(run_seed, target_id)
    assert first >= 0
    assert first + SAMPLES_PER_TARGET <= 2**62


@given(RUN_SEEDS, st.lists(TARGETS, unique=True, max_size=50))
def test_seeds_of_two_targets_never_overlap(run_seed: int, targets: list[str]):
    firsts = [sample_seed(run_seed, target) for target in targets]
    assert len({first // SAMPLES_PER_TARGET for first in firsts}) == len(targets)


@given(TARGETS, RUN_SEEDS, RUN_SEEDS)
def test_another_run_seed_gives_other_seeds(target_id: str, one: int, other: int):
    assert (sample_seed(one, target_id) == sample_seed(other, target_id)) == (one == other)
