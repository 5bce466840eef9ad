from .halves import Halves as Halves
from .halves import layer_seconds as layer_seconds
from .sac import DiscreteSac as DiscreteSac
from .serve import parse_ways as parse_ways
from .serve import serve_requests as serve_requests
from .wire import pack as pack
from .wire import unpack as unpack
