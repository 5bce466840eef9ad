"""Our own reference models: small models, trained here on a generated world whose facts are all known."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
