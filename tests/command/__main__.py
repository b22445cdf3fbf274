"""The real command in a process of its own, with few permutations of the blind baseline.

Run by its path, from any folder: ``python tests/command/__main__.py ARGUMENTS``.
"""

from __future__ import annotations

from mia_batch.cli import main
from mia_batch.diagnostics.blind import baseline

FEW_PERMUTATIONS = 39

if __name__ == "__main__":
    baseline._N_PERMUTATIONS = FEW_PERMUTATIONS
    main()
