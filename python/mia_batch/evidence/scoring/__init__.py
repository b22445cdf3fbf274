"""Log-probabilities of texts."""
