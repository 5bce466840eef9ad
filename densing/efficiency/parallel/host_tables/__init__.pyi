from .ahead import Ahead as Ahead
from .device import no_device as no_device
from .graph import Graph as Graph
from .graph import films_task as films_task
from .run import train_from_table as train_from_table
from .tables import HostTable as HostTable
from .tables import open_table as open_table
