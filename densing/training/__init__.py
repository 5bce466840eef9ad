"""Three lines in a training loop of your own: wrappers that let ranks communicate less or later.

``CO2``, ``LocalSGD``, ``SlowMo``, ``DCT``, ``FedFT``, ``Federated`` and ``SpaFL`` go around a model and its optimizer;
torch is loaded when one is first asked for. :mod:`densing.training.sparse` holds the sparse classifier over partitions,
which needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from densing.efficiency.parallel import CO2, DCT, Federated, FedFT, LocalSGD, SlowMo, SpaFL

__all__ = ["CO2", "DCT", "FedFT", "Federated", "LocalSGD", "SlowMo", "SpaFL"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from densing.core import UnavailableError, install_command
    from densing.efficiency import parallel

    try:
        return getattr(parallel, name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UnavailableError(f"{name} needs PyTorch; {install_command('train')}") from error
