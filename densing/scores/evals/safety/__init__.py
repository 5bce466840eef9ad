"""Safety checks: data never runs as code unless the user allows it, and credentials are never written."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
