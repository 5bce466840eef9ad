from .answers import AnswerTable as AnswerTable
from .answers import read_answers as read_answers
from .bank import LEVELS as LEVELS
from .bank import BankScore as BankScore
from .bank import Chosen as Chosen
from .bank import ItemBank as ItemBank
from .bank import calibrate_items as calibrate_items
from .checks import FLAGS as FLAGS
