"""Ladder-Residual: a module reads the residual without its predecessor's output, whose all-reduce overlaps it.

Claims: tokens per second of Llama models in decoding. The authors' plot script gives, per link and batch, the standard
model, ladder, parallel attention, and a bound without communication. Compute is fitted to the bound and the all-reduce
to the standard model; ladder is then predicted by the plan and compared with a null model without one; parallel
attention is arithmetic. The headlines are predicted from data sheets. How the compute of a layer divides between
attention and MLP is not published: ``equal`` halves it, ``own`` takes what the shapes of the matrices say.

Source: Zhang et al., ICML 2025, arXiv 2501.06589.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
