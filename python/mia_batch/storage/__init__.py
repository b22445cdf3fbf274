"""Run folders in an object store: an ordinary folder here, and a mirror of it there."""

from __future__ import annotations

from mia_batch.storage.copies import check_url, copy_of, is_url, place_of

__all__ = ["check_url", "copy_of", "is_url", "place_of"]
