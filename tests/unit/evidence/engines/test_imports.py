from __future__ import annotations

import gc

import pytest

from mia_batch.evidence.engines.imports import kept_for_good


@pytest.fixture(autouse=True)
def unfrozen():
    yield
    gc.unfreeze()


def test_what_was_imported_is_left_out_and_garbage_is_collected_again():
    with kept_for_good():
        assert not gc.isenabled()
        made: list[object] = [[]]
    assert gc.isenabled()
    assert not any(one is made for one in gc.get_objects())


def test_an_import_that_fails_leaves_the_collector_at_work():
    with pytest.raises(ImportError), kept_for_good():
        raise ImportError
    assert gc.isenabled()
