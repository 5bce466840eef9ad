from .ordering import TOGETHER as TOGETHER
from .schedule import Schedule as Schedule
from .sketch import Sketch as Sketch
from .synthesis import Synthesis as Synthesis
from .synthesis import synthesise as synthesise
from .technique import TACCL as TACCL
from .topology import profile_topology as profile_topology
