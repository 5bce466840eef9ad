"""Draw README's picture: ``python docs/images/density.py`` writes density.svg beside this file (needs ``.[png]``)."""

from __future__ import annotations

from pathlib import Path

import densing

everyone = densing.catalog_densities(densing.load_catalog(), densing.load_reference("joint", "mean"))
trend = densing.estimate_trend(densing.TrendData.from_density(everyone.headline).window(since="2023-02-24"))
figure = densing.plot_density(everyone.headline, trend)
figure.write_image(Path(__file__).with_suffix(".svg"), width=1000, height=560)
