from .guard import guarded as guarded
from .guard import sandboxed_templates as sandboxed_templates
from .guard import substitute as substitute
from .models import check_model as check_model
from .tasks import check_file as check_file
from .tasks import check_tasks as check_tasks
