from .classifier import Classifier as Classifier
from .classifier import Match as Match
