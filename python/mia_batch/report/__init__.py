"""What may be concluded from a run, in sentences; and its page."""

from mia_batch.report.sentences import earlier_sentences, preflight_sentences, sentences

__all__ = ["earlier_sentences", "preflight_sentences", "sentences"]
