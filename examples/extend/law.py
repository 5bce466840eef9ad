"""A scaling law to copy: to ``densing/scores/laws/``, with a line in ``registry.py``, or for ``fit_law`` as it is."""

import numpy as np

from densing.scores.laws.base import BaseLaw, Parameter, column, entries


class LogPower(BaseLaw):
    """L = E + A (ln N)^-b. Source: an example, no paper's."""

    name, inputs, output = "log-power", ("params",), "loss"
    equation, source = "L = E + A (ln N)^-b", "an example, no paper's"
    typical = (1.5, 60.0, 1.2)
    space = (
        Parameter("E", low=0.0, linear=True),
        Parameter("A", low=0.0, linear=True),
        Parameter("b", low=1e-3, high=10.0),
    )

    def linearise(self, theta, x):
        """Return the prediction (..., n) and its derivatives (..., p, n)."""
        e, a, b = entries(self._check(theta))
        log_n = np.log(column(self, x, "params"))
        power = log_n**-b
        rows = np.broadcast_arrays(np.ones_like(power), power, -a * power * np.log(log_n))
        return e + a * power, np.stack(rows, axis=-2)
