"""Statistics of two samples of scores: ROC, intervals, influence, resamples; knows no table."""
