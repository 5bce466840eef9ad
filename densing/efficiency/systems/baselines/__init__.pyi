from .technique import PARALLEL_ATTENTION as PARALLEL_ATTENTION
from .technique import SEQUENTIAL as SEQUENTIAL
from .technique import TENSOR_PARALLEL as TENSOR_PARALLEL
