"""The options of a run's command, less those that a run sets by itself."""

import pytest

from mia_batch.pipeline.results import list_given_settings
from mia_batch.settings import load_settings

FILLED_IN = {
    "evidence": "logprobs",
    "attacks": "loss_v1,min_k_20_v1,min_k_10_v1,min_k_5_v1,rank_v1,log_rank_v1",
    "continue_strongest": 64,
    "long_texts": "stride",
    "yardstick": "none",
    "window_words": 128,
}


@pytest.mark.parametrize(
    ("settings_given", "are_books", "options_kept"),
    [
        ({}, True, set()),
        ({}, False, {"--window-words"}),
        ({"window_words": 64}, True, {"--window-words"}),
        ({"attacks": "loss_v1,rank_v1"}, True, {"--attacks"}),
        (
            {"base_url": "http://host/v1"},
            True,
            {"--base-url", "--evidence", "--long-texts"},
        ),
    ],
)
def test_what_a_run_sets_by_itself_is_left_out(settings_given, are_books, options_kept):
    values = {"input": "books", "model": "m", **FILLED_IN, **settings_given}
    settings = load_settings(values, use_config=False)
    options = list_given_settings(settings, are_books=are_books)
    assert {option for option, _ in options} == {"--input", "--model", *options_kept}
