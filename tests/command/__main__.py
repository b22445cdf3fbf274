"""The real command in a process of its own, with few permutations and few null audits.

Run by its path, from any folder: ``python tests/command/__main__.py ARGUMENTS``.
"""

from mia_batch.cli import main
from mia_batch.diagnostics import blind
from mia_batch.inference import yardstick


def repeat_little() -> None:
    """What takes most of the time of a small audit says as much of few repetitions."""
    blind._N_PERMUTATIONS = 19  # of which none exceeds: p = 0.05
    yardstick._AUDITS = 20


if __name__ == "__main__":
    repeat_little()
    main()
