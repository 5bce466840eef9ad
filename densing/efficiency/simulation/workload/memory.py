"""What one step needs in a device's memory, by purpose."""

from __future__ import annotations

from collections.abc import Sequence

from densing.core import InputError
from densing.efficiency.simulation.workload.modules import Module, Workload, stages

ZERO_STAGES = (0, 1, 2, 3)


def adam_bytes(dtype_bytes: int) -> int:
    """Return the bytes of Adam's state per parameter: two moments, and a float32 copy of weights that are less.

    Examples
    --------
    >>> adam_bytes(2), adam_bytes(4)
    (12, 8)
    """
    return 12 if dtype_bytes < 4 else 2 * dtype_bytes


def memory(
    workload: Workload, zero: int = 0, optimizer_bytes: int | None = None, gradient_bytes: int | None = None
) -> dict[str, float]:
    """Return bytes per rank by purpose, of the pipeline stage that needs most.

    Parameters
    ----------
    workload : Workload
        Its ``recompute``, ``fused_attention``, ``dropout`` and ``split.sequence`` say which activations are kept.
    zero : {0, 1, 2, 3}
        What replicas divide among them: optimizer state, gradients too, parameters too.
    optimizer_bytes : int, optional
        Of the optimizer's state per parameter; :func:`adam_bytes` when left out.
    gradient_bytes : int, optional
        Of a gradient per parameter, 4 where they are summed in float32; the workload's ``dtype_bytes`` when left out.

    Returns
    -------
    dict
        ``parameters``, ``gradients``, ``optimizer``, ``activations``, ``kv_cache``. Activations of a pipeline: stage i
        of p holds those of min(p - i, micro-batches) micro-batches (1F1B), and besides what is recomputed of one layer
        while its backward pass runs. Not counted: buffers of collectives, the allocator's fragments, the driver's own.

    Raises
    ------
    InputError
        As :func:`densing.efficiency.simulation.workload.modules.modules`, and for another ``zero``.

    Notes
    -----
    Source: Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3 (K = 12); Narayanan et al., PipeDream-2BW (1F1B);
    Korthikanti et al., arXiv 2205.05198, table 2 (activations; the formulas are in
    :mod:`densing.efficiency.simulation.workload.modules`); recalled. Held to 1,165 measured memories by
    ``benchmarks/memory_model.py``.

    Examples
    --------
    >>> from densing.efficiency.simulation.workload.presets import load_workload
    >>> found = memory(load_workload("gpt3", dp=64, tp=8, pp=8, batch=8, micro_batches=8), zero=1)
    >>> [round(found[purpose] / 1e9, 2) for purpose in ("parameters", "gradients", "optimizer")]
    [5.59, 5.59, 0.52]

    Llama 3 405B as its paper trained it in 80 GB without recomputation (arXiv 2407.21783, section 3.3, table 4; ZeRO-2
    in our words), without and with the sequence split too:

    >>> layout = {"mode": "train", "batch": 16, "micro_batches": 16, "sequence": 8192, "dp": 128, "tp": 8, "pp": 16}
    >>> for split in (False, True):
    ...     print(round(sum(memory(load_workload("llama3-405b", sequence_parallel=split, **layout), 2).values()) / 1e9))
    196
    75
    """
    if zero not in ZERO_STAGES:
        raise InputError(f"zero: {zero!r} is no stage of ZeRO; give 0, 1, 2 or 3")
    for name, value in (("optimizer_bytes", optimizer_bytes), ("gradient_bytes", gradient_bytes)):
        if value is not None and not 0 <= value <= 1024:
            raise InputError(f"{name}: {value!r} is out of range; give 0 to 1024 bytes per parameter")
    optimizer_bytes = adam_bytes(workload.dtype_bytes) if optimizer_bytes is None else optimizer_bytes
    gradients = workload.dtype_bytes if gradient_bytes is None else gradient_bytes
    by_stage = stages(workload)
    needs = [
        _stage(workload, stage, len(by_stage) - at, zero, (gradients, optimizer_bytes))
        for at, stage in enumerate(by_stage)
    ]
    return max(needs, key=lambda need: sum(need.values()))


def _stage(
    workload: Workload, stage: Sequence[Module], in_flight: int, zero: int, state_bytes: tuple[int, int]
) -> dict[str, float]:
    parameters = float(sum(module.parameters for module in stage))
    weights, dp = parameters * workload.dtype_bytes, workload.split.dp
    if workload.mode != "train":
        return {
            "parameters": weights / (dp if zero == 3 else 1),
            "gradients": 0.0,
            "optimizer": 0.0,
            "activations": float(2 * max(module.activation for module in stage)),
            "kv_cache": _kv_cache(workload, sum(module.name == "attention" for module in stage)),
        }
    gradient_bytes, optimizer_bytes = state_bytes
    retained, again = _activations(workload, stage)
    return {
        "parameters": weights / (dp if zero >= 3 else 1),
        "gradients": parameters * gradient_bytes / (dp if zero >= 2 else 1),
        "optimizer": parameters * optimizer_bytes / (dp if zero >= 1 else 1),
        "activations": float(retained * min(in_flight, workload.micro_batches) + again),
        "kv_cache": 0.0,
    }


def _activations(workload: Workload, stage: Sequence[Module]) -> tuple[int, int]:
    """Bytes that a micro-batch keeps in a stage, and those of one layer that come back as it is recomputed."""
    saved = sum(module.saved for module in stage)
    if workload.recompute == "none":
        return saved, 0
    if workload.recompute == "selective":
        return saved - sum(module.scores for module in stage), max(module.scores for module in stage)
    layers: dict[int, int] = {}
    for module in stage:
        if module.name in ("attention", "mlp"):
            layers[module.layer] = layers.get(module.layer, 0) + module.saved
    if not layers:
        return saved, 0
    layer = max(layers.values())
    # Of each layer its input stays, which the recomputed one need not hold twice.
    entering = next(module.activation for module in stage if module.name == "attention")
    entering = -(-entering // workload.split.tp) if workload.split.sequence else entering
    return saved - sum(layers.values()) + entering * len(layers), layer - entering


def _kv_cache(workload: Workload, layers: int) -> float:
    """Keys and values of every token of the batch; linear attention keeps a square per head."""
    model = workload.model
    columns = max(model.kv_heads // workload.split.tp, 1) * model.head_dim
    rows = model.head_dim if model.linear_attention else 2 * workload.sequence
    return float(layers * workload.batch * rows * columns * workload.dtype_bytes)
