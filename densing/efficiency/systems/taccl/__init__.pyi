from .schedule import Schedule as Schedule
from .synthesis import TOGETHER as TOGETHER
from .synthesis import Synthesis as Synthesis
from .synthesis import synthesise as synthesise
from .technique import TACCL as TACCL
from .topology import Sketch as Sketch
from .topology import profile_topology as profile_topology
