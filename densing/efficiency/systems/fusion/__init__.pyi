from .chain import Cuts as Cuts
from .chain import best_cuts as best_cuts
from .devices import communities as communities
from .devices import orders as orders
from .technique import FUSION as FUSION
from .technique import Placement as Placement
from .technique import placement as placement
