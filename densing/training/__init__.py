"""Three lines in a training loop of your own.

``CO2``, ``LocalSGD``, ``SlowMo``, ``DCT``, ``FedFT``, ``Federated`` and ``SpaFL`` go around a model and its optimizer
and let ranks communicate less or later; torch is loaded when one is first asked for. ``checkpoint_densities`` says how
dense the model is, ``DensityCallback`` logs that from the Trainer of transformers, and ``log_to_wandb``,
``log_to_mlflow`` and ``log_to_tensorboard`` from a loop of your own; ``to_log`` returns it for any other tracker.
:mod:`densing.training.sparse` holds the sparse classifier over partitions, which needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from densing.efficiency.parallel import CO2, DCT, Federated, FedFT, LocalSGD, SlowMo, SpaFL
    from densing.scores.density import (
        DensityCallback,
        checkpoint_densities,
        log_to_mlflow,
        log_to_tensorboard,
        log_to_wandb,
        to_log,
    )

__all__ = [
    "CO2",
    "DCT",
    "DensityCallback",
    "FedFT",
    "Federated",
    "LocalSGD",
    "SlowMo",
    "SpaFL",
    "checkpoint_densities",
    "log_to_mlflow",
    "log_to_tensorboard",
    "log_to_wandb",
    "to_log",
]
_WRAPPERS = ("CO2", "DCT", "FedFT", "Federated", "LocalSGD", "SlowMo", "SpaFL")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from densing.core import UnavailableError, install_command

    try:
        return getattr(
            import_module(f"densing.{'efficiency.parallel' if name in _WRAPPERS else 'scores.density'}"), name
        )
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        extra = "train" if error.name == "torch" else "evals"
        raise UnavailableError(f"{name} needs {error.name}; {install_command(extra)}") from error
