from .arms import read_arms as read_arms
from .arms import virtual_ranks as virtual_ranks
from .cost import DensityCost as DensityCost
from .cost import join as join
