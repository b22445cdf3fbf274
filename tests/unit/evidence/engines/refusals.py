"""Start vLLM with one wrong specification after the other, in one process; print what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mia_batch.errors import MiaBatchError
from mia_batch.evidence.engine import Decoding, EngineSpec
from mia_batch.evidence.engines import load_engine

wrong = json.loads(sys.argv[1])
said = []
for changes in wrong:
    changes["decoding"] = Decoding(**changes.pop("decoding", {}))
    try:
        load_engine(EngineSpec(engine="vllm", **changes))
    except MiaBatchError as error:
        said.append((type(error).__name__, str(error)))
Path(sys.argv[2]).write_text(json.dumps(said))
