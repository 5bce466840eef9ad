"""Wrappers and callbacks for your own training loop; most take three lines.

``CO2``, ``LocalSGD``, ``SlowMo``, ``DiLoCo``, ``DCT``, ``FedFT``, ``Federated`` and ``SpaFL`` wrap a model and its
optimizer so that ranks communicate less or later; torch is loaded on first use. ``checkpoint_densities`` says how
dense the model is, ``DensityCallback`` logs that from the Trainer of transformers, and ``log_to_wandb``,
``log_to_mlflow`` and ``log_to_tensorboard`` from your own loop; ``to_log`` returns it for any other tracker.
``ProxCSL`` is a sparse classifier with scikit-learn's interface, over items that may be stored in several places
(``Store``); it needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from densing.efficiency.systems import CO2, DCT, DiLoCo, Federated, FedFT, LocalSGD, ProxCSL, SlowMo, SpaFL, Store
    from densing.scores.density import (
        DensityCallback,
        checkpoint_densities,
        log_to_mlflow,
        log_to_tensorboard,
        log_to_wandb,
        to_log,
    )

_SYSTEMS = ("CO2", "DCT", "DiLoCo", "FedFT", "Federated", "LocalSGD", "ProxCSL", "SlowMo", "SpaFL", "Store")
_EXTRAS = {"torch": "train", "transformers": "evals", "sklearn": "explain"}

__all__ = [
    "CO2",
    "DCT",
    "DensityCallback",
    "DiLoCo",
    "FedFT",
    "Federated",
    "LocalSGD",
    "ProxCSL",
    "SlowMo",
    "SpaFL",
    "Store",
    "checkpoint_densities",
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

    try:
        return getattr(import_module(f"densing.{'efficiency.systems' if name in _SYSTEMS else 'scores.density'}"), name)
    except ModuleNotFoundError as error:
        needed = (error.name or "").split(".")[0]
        if needed not in _EXTRAS:
            raise
        package = "scikit-learn" if needed == "sklearn" else needed
        raise UnavailableError(f"{name} needs {package}; {install_command(_EXTRAS[needed])}") from error
