from .run import Federated as Federated
from .technique import CLIENTS as CLIENTS
from .technique import SHARE as SHARE
