"""A tiny masked model for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mia_batch.evidence.engines.masked import MaskedModel


@pytest.fixture(scope="session")
def masked_model(tmp_path_factory: pytest.TempPathFactory) -> MaskedModel:
    from mia_batch.evidence.engines.masked import MaskedModel
    from tests.checkpoints import save_masked_checkpoint

    return MaskedModel.load(str(save_masked_checkpoint(tmp_path_factory.mktemp("masked"))))
