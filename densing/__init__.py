"""densing: capability per parameter, how fast it grows, and what it costs.

Everything public is named here and imported on first use, so that ``import densing`` costs nothing.

Examples
--------
>>> import densing
>>> ruler = densing.load_reference("qwen1.5", "mmlu")
>>> densing.catalog_densities(densing.load_catalog(), ruler).table["status"].isin(
...     ["ok", "extrapolated", "below_floor", "above_ceiling"]).all()
np.True_
"""

import lazy_loader as lazy

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
__all__ += ["__version__"]
