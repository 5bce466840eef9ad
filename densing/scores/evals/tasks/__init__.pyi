from .suites import SUITES as SUITES
from .suites import suite_folder as suite_folder
from .suites import suite_tasks as suite_tasks
