from .requests import requests_per_row as requests_per_row
from .technique import DEVICE_TABLE as DEVICE_TABLE
from .technique import HOST_GATHER as HOST_GATHER
from .technique import PINNED_GATHER as PINNED_GATHER
from .technique import ZERO_COPY as ZERO_COPY
from .technique import TableTechnique as TableTechnique
