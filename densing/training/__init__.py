"""Wrappers and callbacks for your own training loop; most take three lines.

Wrappers of a model and its optimizer let ranks communicate less or later; torch is loaded on first use. Two families:
``Synchronous`` exchanges gradients in every step, and ``Outer`` what local steps have changed, once a round. Both take
a codec (``Half``, ``Int8``, ``TopK``, ``Threshold``, ``Frequencies``, ``LowRank``), and ``Outer`` an outer step
(``Momentum``, ``Nesterov``, ``DelayedNesterov``, ``SlowMomentum``) and a delay. ``DCT`` and ``TopKGradients`` are the
first with the choices of their papers, ``LocalSGD``, ``SlowMo``, ``CO2``, ``DiLoCo``, ``Federated`` and ``FedFT`` the
second. Methods of their own are ``PowerSGD`` and ``SpaFL``. ``ddp_hook`` compresses the gradients of torch's
``DistributedDataParallel``. ``RankState`` is what ``torch.distributed.checkpoint`` saves of all these, and
``RoundCheckpoints`` lets ranks leave and come back between rounds.
``checkpoint_densities`` says how dense the model is from scores, ``evaluate_bank`` from a few items that it answers.
``DensityCallback`` logs either from the Trainer of transformers, and ``log_to_wandb``, ``log_to_mlflow`` and
``log_to_tensorboard`` from your own loop; ``to_log`` returns it for any other tracker.
``ProxCSL`` is a sparse classifier with scikit-learn's interface, over items that may be stored in several places
(``Store``); it needs no torch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_EXTRAS = {"torch": "train", "transformers": "evals", "sklearn": "explain"}

__all__ = sorted(re.findall(r" as (\w+)$", _STUB, re.MULTILINE))


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from densing.core import UnavailableError, install_command
    from densing.efficiency import parallel, systems
    from densing.scores import density

    try:
        return getattr(next(face for face in (parallel, systems, density) if name in face.__all__), name)
    except ModuleNotFoundError as error:
        needed = (error.name or "").split(".")[0]
        if needed not in _EXTRAS:
            raise
        package = "scikit-learn" if needed == "sklearn" else needed
        raise UnavailableError(f"{name} needs {package}; {install_command(_EXTRAS[needed])}") from error
