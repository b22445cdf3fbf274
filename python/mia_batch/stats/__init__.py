"""Statistics of two samples of scores, which know no table: ROC, intervals, rates."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.intp]  # of clusters or folds, from 0 without gaps
Flags = NDArray[np.bool_]
