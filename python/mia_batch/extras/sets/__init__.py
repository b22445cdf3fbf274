"""Evaluation sets: built from dated or labelled documents, tested at once, repaired by matching."""

from mia_batch.extras.sets.build import BuiltSet, build_set

__all__ = ["BuiltSet", "build_set"]
