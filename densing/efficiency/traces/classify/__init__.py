"""Classification of spans: rules are data in one table (``rules.csv``), users add theirs."""

from densing.efficiency.traces.classify.classifier import Classifier, Match

__all__ = ["Classifier", "Match"]
