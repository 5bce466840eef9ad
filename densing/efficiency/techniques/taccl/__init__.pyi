from .contiguity import TOGETHER as TOGETHER
from .profiles import profile_topology as profile_topology
from .schedule import Schedule as Schedule
from .sketch import Sketch as Sketch
from .synthesis import Synthesis as Synthesis
from .synthesis import synthesise as synthesise
from .technique import TACCL as TACCL
