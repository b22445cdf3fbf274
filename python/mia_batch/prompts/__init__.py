"""What a model is asked about a target: one file a view."""
