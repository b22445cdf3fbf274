"""How well the labels can be told apart without the model."""
