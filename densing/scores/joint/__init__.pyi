from .cells import Cells as Cells
from .cells import joint_cells as joint_cells
from .scale import GENERAL as GENERAL
from .scale import JointScale as JointScale
from .scale import catalog_scale as catalog_scale
from .scale import fit_joint as fit_joint
from .scale import joint_baskets as joint_baskets
