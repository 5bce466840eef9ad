"""The plan of a pipeline, with the compression between its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from densing.efficiency.parallel import CODECS, Coding, codings, workload_of
from densing.efficiency.simulation import sizes, stages
from densing.efficiency.systems.planner import BUCKET, Edge, Planned, run_knobs, tokens
from densing.efficiency.systems.registry import Kind, Knob, choice, number, settle, whole

if TYPE_CHECKING:
    from densing.efficiency.parallel import RunEnv, RunRecord, RunSpec
    from densing.efficiency.simulation import Cluster, Device, Workload
    from densing.efficiency.systems.plan import Plan

EVEN = "even"
LEAST_SHARE = 1e-6


def several(kind: Kind, word: str = "") -> Kind:
    """Return the kind of some values with commas between them, kept as a text; or of a word instead.

    Examples
    --------
    >>> several(whole(1), "even")("2, 3"), several(number(0.0))("0.01")
    ('2,3', '0.01')
    """

    def parse(text: str) -> str:
        if word and text.strip() == word:
            return word
        return ",".join(str(kind.parse(part.strip())) for part in text.split(","))

    return Kind(parse, lambda value: parse(value if isinstance(value, str) else str(kind.check(value))))


def coded(coding: Coding, rows: int, workload: Workload, device: Device) -> Edge:
    """Return what a codec makes of an edge over which so many rows of activations pass at a time."""
    dense = rows * workload.model.hidden * workload.dtype_bytes
    there, back = [
        Edge(count / dense, device.seconds(0.0, encode * dense), device.seconds(0.0, decode * dense))
        for count, (encode, decode) in zip(
            coding.bytes(rows, workload.model.hidden, workload.dtype_bytes), coding.passes(), strict=True
        )
    ]
    return there._replace(ahead=sizes.LENGTH_BYTES if coding.drifts else 0, back=back)


MICRO_BATCHES = Knob(
    "micro_batches", 4, "micro-batches of a real run, equal parts of the batch (plans use the workload's)", whole(1)
)


class Pipeline(Planned):
    """Micro-batches through stages; blocking sums within a stage, DDP between replicas."""

    axis = "pp"
    """Parallel axis of a run's ranks."""
    stand_in = ""
    plan_only = ("bucket_mb",)
    """Knobs that only plans use."""
    name = "pipeline"
    role = "baseline"
    plain = True
    paper = "Narayanan et al., SC 2021, arXiv 2104.04473"
    summary = (
        "layers in stages that work on different micro-batches, alternating one forward and one backward pass (1F1B)"
    )
    needs = ("pp",)
    knobs = (
        BUCKET,
        MICRO_BATCHES,
        Knob("codec", "dense", f"codec of what is sent between stages: {', '.join(CODECS)}", choice(CODECS)),
        Knob(
            "share",
            "0.05",
            "share of the entries sent by topk and threshold; one for all edges, or a comma-separated list",
            several(number(LEAST_SHARE, 1.0)),
        ),
        Knob("refresh", 1, "packets between renewals of the threshold", whole(1)),
        Knob(
            "cuts", EVEN, "comma-separated first layers of the stages after the first, or even", several(whole(1), EVEN)
        ),
    )
    claims_in = "densing.efficiency.systems.measured_speeds"

    def plan(self, workload: Workload, cluster: Cluster, **knobs: Any) -> Plan:
        """Return the tasks of some steps; cuts that are given replace the workload's."""
        settings = settle(self.name, self.knobs, knobs)
        if cuts := _cuts(settings):
            workload = replace(workload, split=replace(workload.split, cuts=cuts))
        return super().plan(workload, cluster, **settings)

    def edges(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> Sequence[Edge]:
        """Return what the codec makes of each edge."""
        if knobs["codec"] == "dense":
            return ()
        rows = round(tokens(workload))
        return [
            coded(coding, rows, workload, cluster.device)
            for coding in codings(len(stages(workload)) - 1, knobs["codec"], _shares(knobs), knobs["refresh"])
        ]

    def check_run(self, spec: RunSpec) -> None:
        """Refuse a run whose stages, micro-batches or shares do not fit its model, batch or ranks.

        Raises
        ------
        InputError
        """
        options = self.options(spec)
        micro_batches, cuts = options["micro_batches"], options["cuts"]
        workload = workload_of(
            spec.model, spec.batch, spec.sequence, pp=spec.nproc, cuts=cuts, micro_batches=micro_batches
        )
        stages(workload)
        codings(spec.nproc - 1, options["codec"], options["shares"], options.get("refresh", 1))

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Train ``env.spec.steps`` steps of this rank's stage, and return its record."""
        from densing.efficiency.parallel import train_pipeline

        return train_pipeline(env, **self.options(replace(env.spec, knobs=knobs)))

    def options(self, spec: RunSpec) -> dict[str, Any]:
        """Return what a run is given: arguments of :func:`densing.efficiency.parallel.train_pipeline`."""
        settings = run_knobs(self.name, self.knobs, self.plan_only, spec.knobs)
        return {
            "micro_batches": settings["micro_batches"],
            "cuts": _cuts(settings),
            "codec": settings["codec"],
            "shares": _shares(settings),
            "refresh": settings["refresh"],
        }


PIPELINE = Pipeline()


def _cuts(settings: Mapping[str, Any]) -> tuple[int, ...]:
    return () if settings["cuts"] == EVEN else tuple(int(cut) for cut in settings["cuts"].split(","))


def _shares(settings: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(float(share) for share in settings["share"].split(","))
