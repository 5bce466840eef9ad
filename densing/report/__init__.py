"""One self-contained HTML file from a study, a profiled run or compared techniques, and the replication page.

Each is imported on first use: a study's report needs what a profile's does not.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
