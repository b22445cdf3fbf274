"""Which model it is: names, digests, tokenizers."""
