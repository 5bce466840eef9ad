from .build import build_report as build_report
from .efficiency import build_profile_report as build_profile_report
from .efficiency_density import JoinedDensity as JoinedDensity
from .efficiency_density import joined_words as joined_words
from .efficiency_density import read_density as read_density
from .replication import build_replication as build_replication
from .techniques import build_techniques as build_techniques
