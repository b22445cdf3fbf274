"""How private a fine-tuned model is: PrivLM-Bench (Li et al. 2024, arXiv:2311.04044)."""
