"""Sentences from tables; nothing is computed here."""
