from .flat import Flat as Flat
from .train import WARMUP_STEPS as WARMUP_STEPS
from .train import Replica as Replica
from .train import inverse_sqrt_factor as inverse_sqrt_factor
from .virtual import Backward as Backward
