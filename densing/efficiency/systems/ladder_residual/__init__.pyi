from .technique import data_sheet as data_sheet
from .technique import kappa_of as kappa_of
from .technique import published as published
from .technique import same_link as same_link
