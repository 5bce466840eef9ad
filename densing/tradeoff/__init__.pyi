from .cost import DensityCost as DensityCost
from .cost import join as join
