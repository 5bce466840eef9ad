from .document import xla_category as xla_category
from .reader import Activity as Activity
from .reader import assemble as assemble
from .reader import read_rank as read_rank
from .text import SUFFIXES as SUFFIXES
from .text import recognise as recognise
