from .distil import build_distil as build_distil
from .frontier import build_frontier as build_frontier
from .gain import build_gain as build_gain
from .profile import build_profile_report as build_profile_report
from .replication import build_replication as build_replication
from .study import build_report as build_report
from .techniques import build_techniques as build_techniques
from .today import build_today as build_today
