from .checks import check_model as check_model
from .checks import check_tasks as check_tasks
from .guard import guarded as guarded
from .guard import substitute as substitute
