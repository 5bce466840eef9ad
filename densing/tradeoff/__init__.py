"""Trade-offs between scores and efficiency: how much capability per parameter a training run bought, at what cost.

Examples
--------
>>> from densing.tradeoff import join
>>> row = {"model": "mine", "benchmark": "mmlu", "density": 1.5, "density_lo": 1.2, "density_hi": 1.9, "n_eff": 3e9}
>>> join([row], device_hours=3000)
mine has density 1.5 (1.2 to 1.9) on mmlu after 3,000 device hours: 0.50 per parameter per 1,000 device hours.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
