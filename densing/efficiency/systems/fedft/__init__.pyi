from .run import Federated as Federated
from .technique import CLIENTS as CLIENTS
