"""Model FLOPs utilisation in words: the figure, its formula and what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from densing.report.sections import sentence

if TYPE_CHECKING:
    from densing.efficiency.profile import RunUtilisation


def utilisation_words(found: RunUtilisation) -> list[str]:
    """Return what to say of a run's utilisation, a sentence each; why there is none where the peak is unknown."""
    if found.model is None:
        return [sentence(f"model FLOPs utilisation is unknown: {note.message}") for note in found.notes]
    flops, peak = found.model.flops, found.model.peak
    figure = f"Model FLOPs utilisation is {found.model.percent:.2f} %"
    if found.hardware is not None:
        figure += f", hardware FLOPs utilisation {found.hardware.percent:.2f} %"
    recalled = ", recalled" if peak.recalled else ""
    return [
        f"{figure}.",
        f"Formula {flops.formula} ({flops.equation}; {flops.source}), {found.model.devices} devices of "
        f"{peak.flops / 1e12:g} TFLOP/s dense ({peak.device}, {peak.dtype}; {peak.source}{recalled}).",
        *(sentence(note.message) for note in found.notes),
    ]
