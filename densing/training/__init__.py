"""Wrappers and callbacks for your own training loop; most take three lines.

``CO2``, ``LocalSGD``, ``SlowMo``, ``DiLoCo``, ``DCT``, ``TopKGradients``, ``PowerSGD``, ``FedFT``, ``Federated`` and
``SpaFL`` wrap a model and its optimizer so that ranks communicate less or later; ``ddp_hook`` compresses the gradients
of torch's ``DistributedDataParallel``; torch is loaded on first use.
``RankState`` is what ``torch.distributed.checkpoint`` saves of them, and ``RoundCheckpoints`` lets ranks leave and come
back between rounds. ``checkpoint_densities`` says how dense the model
is, ``DensityCallback`` logs that from the Trainer of transformers, and ``log_to_wandb``,
``log_to_mlflow`` and ``log_to_tensorboard`` from your own loop; ``to_log`` returns it for any other tracker.
``ProxCSL`` is a sparse classifier with scikit-learn's interface, over items that may be stored in several places
(``Store``); it needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from densing.efficiency.parallel import RankState, RoundCheckpoints, ddp_hook
    from densing.efficiency.systems import (
        CO2,
        DCT,
        DiLoCo,
        Federated,
        FedFT,
        LocalSGD,
        PowerSGD,
        ProxCSL,
        SlowMo,
        SpaFL,
        Store,
        TopKGradients,
    )
    from densing.scores.density import (
        DensityCallback,
        checkpoint_densities,
        log_to_mlflow,
        log_to_tensorboard,
        log_to_wandb,
        to_log,
    )

_LOGGED = (
    "DensityCallback",
    "checkpoint_densities",
    "log_to_mlflow",
    "log_to_tensorboard",
    "log_to_wandb",
    "to_log",
)
_PARALLEL = ("RankState", "RoundCheckpoints", "ddp_hook")
_EXTRAS = {"torch": "train", "transformers": "evals", "sklearn": "explain"}

__all__ = [
    "CO2",
    "DCT",
    "DensityCallback",
    "DiLoCo",
    "FedFT",
    "Federated",
    "LocalSGD",
    "PowerSGD",
    "ProxCSL",
    "RankState",
    "RoundCheckpoints",
    "SlowMo",
    "SpaFL",
    "Store",
    "TopKGradients",
    "checkpoint_densities",
    "ddp_hook",
    "log_to_mlflow",
    "log_to_tensorboard",
    "log_to_wandb",
    "to_log",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from densing.core import UnavailableError, install_command

    home = "scores.density" if name in _LOGGED else "efficiency.systems"
    try:
        return getattr(import_module(f"densing.{'efficiency.parallel' if name in _PARALLEL else home}"), name)
    except ModuleNotFoundError as error:
        needed = (error.name or "").split(".")[0]
        if needed not in _EXTRAS:
            raise
        package = "scikit-learn" if needed == "sklearn" else needed
        raise UnavailableError(f"{name} needs {package}; {install_command(_EXTRAS[needed])}") from error
