from .files import TraceFile as TraceFile
from .files import Traces as Traces
from .files import find_traces as find_traces
from .kineto import read_rank as read_rank
from .run import check_ranks as check_ranks
from .run import read_timeline as read_timeline
from .source import Limits as Limits
from .source import Source as Source
