"""Importing the libraries behind the engines."""

from __future__ import annotations

import gc
import logging
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import AutoConfig, AutoTokenizer

__all__ = ["auto_classes", "kept_for_good", "run_no_model_here", "without"]

_runs_models = True


def run_no_model_here() -> None:
    """Say that this process is mia-batch's alone, and will run no model itself.

    `auto_classes` then comes without torch.
    """
    global _runs_models  # noqa: PLW0603 - true of a process, and for as long as it lives
    _runs_models = False


def auto_classes() -> tuple[type[AutoConfig], type[AutoTokenizer]]:
    """Import what reads configurations and tokenizers.

    Neither needs torch, and without it transformers is there in 2 s instead of 9. But then it
    never finds torch in this process again, so this is done only where no model will run.

    Returns
    -------
    tuple of type
        transformers' ``AutoConfig`` and ``AutoTokenizer``.
    """
    is_loaded = "torch" in sys.modules or "transformers" in sys.modules
    with nullcontext() if _runs_models or is_loaded else _without_torch():
        from transformers import AutoConfig, AutoTokenizer
    return AutoConfig, AutoTokenizer


@contextmanager
def _without_torch() -> Iterator[None]:
    """Import libraries as if torch were not installed; that they say so is of no use."""
    least = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with kept_for_good(), without("torch"):
            yield
    finally:
        logging.disable(least)


@contextmanager
def without(library: str) -> Iterator[None]:
    """Let what is imported think that a library is not installed, if it is not loaded yet."""
    if library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment] # None = there is no such module
    try:
        yield
    finally:
        del sys.modules[library]


@contextmanager
def kept_for_good() -> Iterator[None]:
    """Import large libraries into a process of an engine's own.

    What they define is never garbage: Python's collector, which would look through it again and
    again, then and later, leaves it out. That is an eighth of the time of a start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
