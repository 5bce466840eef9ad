from .density import build_checkpoints as build_checkpoints
from .density import build_density as build_density
from .density import build_trend as build_trend
from .density import density_figure as density_figure
from .density import trend_figure as trend_figure
from .deploy import build_deployment as build_deployment
from .distil import build_distil as build_distil
from .explain import build_explained as build_explained
from .frontier import build_frontier as build_frontier
from .gain import build_gain as build_gain
from .profile import build_profile_report as build_profile_report
from .replication import build_replication as build_replication
from .study import build_report as build_report
from .techniques import build_techniques as build_techniques
from .today import build_today as build_today
<<<<<<< HEAD
from .worth import build_worth as build_worth
=======
from .training_plan import build_training_plan as build_training_plan
>>>>>>> scaling
