"""Statistics of two samples of scores: ROC, intervals, influence, rates; knows no table."""
