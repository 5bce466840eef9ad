from .measured import measured_variants as measured_variants
from .variant import Variant as Variant
from .variant import variant_grid as variant_grid
