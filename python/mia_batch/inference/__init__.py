"""P-values and estimates where membership is unknown."""
