"""The answer for a batch of inputs, its table, and which rows to label next."""

from bayescope.predictive.predictive import (
    Array,
    Predictive,
    by_trials,
    label_probabilities,
    most_informative,
    refuse_dense,
)

__all__ = ["Array", "Predictive", "by_trials", "label_probabilities", "most_informative", "refuse_dense"]
