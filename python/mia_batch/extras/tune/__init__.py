"""Models that are made: a causal language model, fine-tuned on texts."""
