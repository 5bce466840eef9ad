"""Model and hardware FLOPs utilisation: formulas by name, peaks by device, and a refusal above 100 %."""

from densing.efficiency.timeline.mfu.formulas import Flops, formula_inputs, megatron_flops, model_flops, mosaicml_flops, palm_flops
from densing.efficiency.timeline.mfu.peaks import Lookup, Peak, find_peak, given_peak, known_peaks
from densing.efficiency.timeline.mfu.utilisation import Utilisation, hfu, mfu

__all__ = [
    "Flops",
    "Lookup",
    "Peak",
    "Utilisation",
    "find_peak",
    "formula_inputs",
    "given_peak",
    "hfu",
    "known_peaks",
    "megatron_flops",
    "mfu",
    "model_flops",
    "mosaicml_flops",
    "palm_flops",
]
