from .plan import Costs as Costs
from .plan import completion as completion
from .plan import serve as serve
from .technique import BACKUP_WORKERS as BACKUP_WORKERS
from .technique import GC_MMC as GC_MMC
from .technique import GRADIENT_CODING as GRADIENT_CODING
from .technique import LCC as LCC
from .technique import UC_MMC as UC_MMC
