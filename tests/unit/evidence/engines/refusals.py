"""Start vLLM with one wrong specification after the other, in one process; print what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mia_batch.errors import MiaBatchError
from mia_batch.evidence.engines.registry import load_engine
from mia_batch.evidence.request import Decoding, EngineSpec

wrong = json.loads(sys.argv[1])
said = []
for changes in wrong:
    changes["decoding"] = Decoding(**changes.pop("decoding", {}))
    changes["columns"] = frozenset(changes.pop("columns", ()))
    try:
        load_engine(EngineSpec(engine="vllm", **({"kind": "samples"} | changes)))
    except MiaBatchError as error:
        said.append((type(error).__name__, str(error)))
Path(sys.argv[2]).write_text(json.dumps(said))
