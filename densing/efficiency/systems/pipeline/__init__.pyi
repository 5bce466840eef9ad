from .technique import MICRO_BATCHES as MICRO_BATCHES
from .technique import PIPELINE as PIPELINE
from .technique import Pipeline as Pipeline
from .technique import coded as coded
