"""Run folders in an object store: an ordinary folder here, and a mirror of it there."""

from __future__ import annotations

from mia_batch.storage.copies import copy_of, fetched, mirrored, settled
from mia_batch.storage.urls import check_url, is_url, place_of

__all__ = ["check_url", "copy_of", "fetched", "is_url", "mirrored", "place_of", "settled"]
