"""Processes that share the blocks of one run, and who may use its folder."""
