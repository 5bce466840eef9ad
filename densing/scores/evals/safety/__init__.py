"""Nothing that comes as data runs as code unless the user says so, and no credential is written down."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
