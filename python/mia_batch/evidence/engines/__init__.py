"""Engines: what starts a model in a process of its own and answers requests."""
