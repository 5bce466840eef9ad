from .ladder import load_mmlu as load_mmlu
from .ladder import load_ready as load_ready
from .ladder import score as score
from .ladder import score_plain as score_plain
from .passages import read_passages as read_passages
