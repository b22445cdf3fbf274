"""What can be told about the labels without the model: the blind baseline."""

from mia_batch.verdict.blind.baseline import BLIND_CLASSIFIERS, BlindBaseline, blind_baseline
from mia_batch.verdict.blind.fifths import fifth_aucs

__all__ = [
    "BLIND_CLASSIFIERS",
    "BlindBaseline",
    "blind_baseline",
    "fifth_aucs",
]
