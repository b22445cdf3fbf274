"""Loading models without a word: what their libraries would say is no news here."""

from __future__ import annotations

from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["quiet"]

_LOADING = RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Let transformers tell neither of its progress nor of weights that are not wanted.

    One thread at a time: while transformers loads a model, the whole process ties no weights, and
    of two loads that overlap the later end would leave it so.
    """
    from transformers.utils import logging

    with _LOADING:
        level, shows = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if shows:
                logging.enable_progress_bar()
