from .checks import check_model as check_model
from .checks import check_tasks as check_tasks
from .guard import guarded as guarded
from .guard import substitute as substitute
from .guard import version_notes as version_notes
