"""Evidence: prompts go in, rows of the samples table and of the logprobs table come out."""
