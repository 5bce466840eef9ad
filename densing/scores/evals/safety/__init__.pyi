from .checks import check_file as check_file
from .checks import check_model as check_model
from .checks import check_tasks as check_tasks
from .guard import guarded as guarded
from .guard import sandboxed_templates as sandboxed_templates
from .guard import substitute as substitute
