"""Figures of a labelled run."""
