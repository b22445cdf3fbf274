"""Runs of one corpus side by side."""
