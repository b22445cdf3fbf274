from __future__ import annotations

import pydantic
import pytest

from mia_batch.models.weights import cause_of, first_error_in


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("no such device."), "ValueError: no such device"),
        (OSError("first line\nsecond line"), "OSError: first line"),
        (RuntimeError(), "RuntimeError: no message"),
        (KeyError("x" * 400), f"KeyError: '{'x' * 299} ..."),
    ],
)
def test_a_cause_is_type_and_first_line(error: Exception, cause: str):
    assert cause_of(error) == cause


def test_the_cause_of_a_failed_validation_is_what_failed():
    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(int).validate_python("x")
    assert cause_of(caught.value).startswith("ValidationError: Input should be a valid integer")


def test_the_first_error_of_a_log_is_its_cause():
    log = (
        "INFO loading\n"
        "(Core pid=7) ERROR [core.py:1]     raise ValueError(\n"
        "(Core pid=7) ERROR [core.py:1] ValueError: no memory for the cache.\n"
        "RuntimeError: the core did not start\n"
    )
    assert first_error_in(log) == "ValueError: no memory for the cache"


def test_a_log_without_an_error_says_so():
    assert first_error_in("INFO all is well\n") == "the log names no error"
