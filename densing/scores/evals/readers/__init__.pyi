from .files import read_results as read_results
from .run import read_run as read_run
