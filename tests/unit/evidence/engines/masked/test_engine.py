"""Variants of texts from a masked model in a process of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mia_batch.evidence.engines.masked import neighbours, paraphrases, perturbations
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import EngineSpec, Request
from tests.checkpoints import TEXTS, save_masked_checkpoint
from tests.engine_conformance import answers

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia_batch.evidence.engines.masked import Variants

MAKERS: dict[str, Callable[..., Variants]] = {
    "neighbour": neighbours,
    "perturbation": perturbations,
    "paraphrase": paraphrases,
}


def test_the_worker_gives_what_the_model_gives_here(masked_model, tmp_path, one_thread):
    texts = [" ".join(TEXTS[3].split()[:20]), "word"]
    asked = [
        Request(request_id=4 * number + which, kind="fills", view=view, text=text, n=4, seed=65536)
        for number, text in enumerate(texts)
        for which, view in enumerate(MAKERS)
    ]
    shared = replace(asked[2], request_id=8, share=0.9)
    spec = EngineSpec(
        engine="masked", kind="fills", model=str(save_masked_checkpoint(tmp_path / "masked"))
    )
    with EngineProcess.start(spec, log=tmp_path / "engine.log") as engine:
        assert engine.info.device == "cpu"
        found = answers(engine, [*asked, shared])
    for each in asked:
        made = MAKERS[each.view](masked_model, each.text, n=4, seed=65536)
        answer = found[each.request_id]
        assert tuple(given.text for given in answer.continuations) == made.texts
        assert answer.error == made.reason
    assert found[4].error is not None
    more = paraphrases(masked_model, shared.text, n=4, seed=65536, share=0.9)
    assert tuple(given.text for given in found[8].continuations) == more.texts
