from __future__ import annotations

import pytest

from mia_batch.errors import SettingsError
from mia_batch.targets import TargetPlan


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prefix_ratio": 0.0}, "prefix_ratio is 0.0; it must lie between 0 and 1"),
        ({"prefix_ratio": 1.0}, "prefix_ratio is 1.0; it must lie between 0 and 1"),
        ({"prefix_ratio": float("nan")}, "prefix_ratio is nan; it must lie between 0 and 1"),
        ({"window_words": 0}, "window_words is 0; it must be at least 1"),
        (
            {"window_words": 3, "prefix_ratio": 0.3},
            "window_words is 3, too few to split with prefix_ratio 0.3; make windows longer",
        ),
        ({"window_words": 5, "stride": -1}, "stride is -1; it must be at least 1"),
        ({"stride": 5}, "stride is 5 without window_words; set window_words too"),
        (
            {"max_windows_per_document": 5},
            "max_windows_per_document is 5 without window_words; set window_words too",
        ),
        (
            {"window_words": 5, "max_windows_per_document": 0},
            "max_windows_per_document is 0; it must be at least 1",
        ),
        ({"text_length": 64}, "text_length is 64 without preset samia; leave it out"),
        ({"preset": "samia", "text_length": 0}, "text_length is 0; it must be at least 1"),
        (
            {"preset": "samia", "text_length": 64, "window_words": 32},
            "text_length is 64 but window_words is 32; make them equal",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(SettingsError) as error:
        TargetPlan(**settings)
    assert str(error.value) == message


def test_what_makes_sense_is_accepted():
    TargetPlan(preset="samia", text_length=64, window_words=64, stride=100)
    TargetPlan(preset="samia", window_words=64)
