"""Loading models without a word: what their libraries would say is no news here."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """Let transformers tell neither of its progress nor of weights that are not wanted."""
    from transformers.utils import logging

    level, shows = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shows:
            logging.enable_progress_bar()
