"""What texts show without a model, and scores that are missing, whatever a score is worth."""
