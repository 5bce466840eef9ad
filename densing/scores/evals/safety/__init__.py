"""Nothing that comes as data runs as code unless the user says so, and no credential is written down."""

from densing.scores.evals.safety.guard import guarded, sandboxed_templates
from densing.scores.evals.safety.models import check_model
from densing.scores.evals.safety.tasks import check_file, check_tasks
from densing.core.secrets import is_secret_name, mask, secrets_of, strip_secrets

__all__ = [
    "check_file",
    "check_model",
    "check_tasks",
    "guarded",
    "is_secret_name",
    "mask",
    "sandboxed_templates",
    "secrets_of",
    "strip_secrets",
]
