"""What every extension has to do, held against those that ship and the templates of examples/extend."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from densing.core import FitError, InputError
from densing.efficiency.simulation import load_cluster, load_workload
from densing.efficiency.systems import get_technique, measure, registry, techniques
from densing.efficiency.timeline.overlap import partition, select
from densing.efficiency.traces import run as traces
from densing.efficiency.traces.source import Limits, Source
from densing.scores.evals.readers import files
from densing.scores.fit import fit_law
from densing.scores.laws import get_law, law_names
from densing.scores.laws.base import BaseLaw
from densing.scores.trend import estimate_trend, estimators
from densing.scores.trend.data import TrendData
from tests.support.folders import ROOT

FOLDER = ROOT / "examples" / "extend"


def template(name: str) -> ModuleType:
    """Load a template from its file, as a newcomer's would be."""
    spec = importlib.util.spec_from_file_location(f"extend_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECORDS = ("envelope", "running-max")
"""Readings of records, which rise without a trend: no estimators of a pace."""
LAWS = [template("law").LogPower(), *(get_law(name) for name in law_names() if name != "two-step")]


def inputs_of(law: Any) -> dict[str, Any]:
    scale = {
        "loss": np.linspace(2.0, 3.0, 9),
        "params": np.geomspace(1e8, 1e11, 9),
        "tokens": np.geomspace(1e11, 1e9, 9),
    }
    return {name: scale[name] for name in law.inputs}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_law_has_the_derivatives_and_the_inverse_of_its_curve(law: Any) -> None:
    theta, x = np.array(law.typical), inputs_of(law)
    assert law.equation and law.source and len(theta) == len(law.space)
    rows = law.jacobian(theta, x)
    for place, value in enumerate(theta):
        step = 1e-6 * max(abs(value), 1e-3)
        sides = [law.predict(theta + sign * step * np.eye(len(theta))[place], x) for sign in (1, -1)]
        np.testing.assert_allclose(rows[:, place], (sides[0] - sides[1]) / (2 * step), rtol=1e-4, atol=1e-7)
    fixed = {name: float(x[name][4]) for name in law.inputs[1:]}
    own = law.inputs[0]
    y = law.predict(theta, {own: x[own], **{name: np.full(9, value) for name, value in fixed.items()}})
    found, status = law.invert(theta, y, **fixed)
    assert set(status) == {"ok"}
    np.testing.assert_allclose(found, x[own], rtol=1e-6)


def test_a_law_by_halving_agrees_with_closed_forms_and_knows_where_it_ends() -> None:
    for name in ("power-offset", "logistic", "chinchilla"):
        law = get_law(name)
        theta = np.array([law.typical, law.typical])
        y = law.predict(theta, {name: np.array([3e9]) if name == "params" else [1e12] for name in law.inputs})
        halved, status = BaseLaw.invert(law, theta, y[..., 0])
        np.testing.assert_allclose(halved, law.invert(theta, y[..., 0])[0], rtol=1e-9)
        assert set(status) == {"ok"}
    logistic = get_law("logistic", floor=0.25)
    for law, y, expected in (
        (template("law").LogPower(), [1.5, 1e9], ["above_ceiling", "ok"]),
        (logistic, [0.25, 0.6, 1.0], ["below_floor", "ok", "above_ceiling"]),
    ):
        size, status = BaseLaw.invert(law, law.typical, y)
        assert list(status) == expected
        assert [size[place] for place, text in enumerate(expected) if text != "ok"] == [
            {"below_floor": 0.0, "above_ceiling": np.inf}[text] for text in expected if text != "ok"
        ]


def test_the_template_of_a_law_is_fitted_without_being_registered() -> None:
    law = template("law").LogPower()
    size = np.geomspace(1e7, 1e11, 24)
    fit = fit_law(law, {"params": size}, law.predict([1.7, 50.0, 1.3], {"params": size}), bootstrap=0)
    np.testing.assert_allclose(fit.theta, [1.7, 50.0, 1.3], rtol=1e-3)


def planted(slope: float, seed: int) -> TrendData:
    rng = np.random.default_rng(seed)
    days = rng.uniform(0, 1000, 90)
    family = np.repeat([f"f{i}" for i in range(30)], 3)
    values = slope * days + np.repeat(rng.normal(0, 0.2, 30), 3) + rng.normal(0, 0.2, 90)
    dates = pd.Timestamp("2023-02-24") + pd.to_timedelta(days.round(), unit="D")
    return TrendData.from_arrays([f"m{i}" for i in range(90)], family, dates, values)


@pytest.mark.parametrize("name", ["siegel", *(name for name in estimators.ESTIMATORS if name not in RECORDS)])
def test_an_estimator_finds_a_planted_slope_and_refuses_what_it_cannot_tell(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = template("estimator").ESTIMATOR
    monkeypatch.setitem(estimators.ESTIMATORS, own.name, own)  # type: ignore[arg-type]
    estimator = estimators.ESTIMATORS[name]
    assert estimator.name == name and estimator.label
    for slope in (0.003, 0.0):
        found = estimator.fit(planted(slope, 4), 0.999, bootstrap=100, seed=1)
        assert found.lo <= slope <= found.hi and found.hi - found.lo < 0.003
    try:
        few = estimator.fit(planted(0.003, 4).take(np.arange(2)), 0.95, bootstrap=20, seed=1)
    except FitError as error:
        assert "needed" in str(error)
    else:
        assert not few.estimable and few.reason


def test_the_template_of_an_estimator_is_a_row_of_the_trend(monkeypatch: pytest.MonkeyPatch) -> None:
    own = template("estimator").ESTIMATOR
    monkeypatch.setitem(estimators.ESTIMATORS, own.name, own)  # type: ignore[arg-type]
    rows = estimate_trend(planted(0.003, 4), bootstrap=50, permutations=50).estimates
    assert own.name in set(rows["method"])


TECHNIQUES = [template("technique").TECHNIQUE, *techniques()[0]]


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: technique.name)
def test_a_technique_says_what_it_is_and_takes_its_own_knobs(technique: Any) -> None:
    assert registry._lack(technique) is None
    assert technique.summary and isinstance(technique.knobs, tuple)
    assert registry.settle(technique.name, technique.knobs, {}) == {knob.name: knob.default for knob in technique.knobs}


def test_the_template_of_a_technique_plans_the_bytes_it_says() -> None:
    workload, cluster = load_workload("llama-8b", dp=16, tp=1), load_cluster("a100x8-tcp", n=16)
    own, plain = template("technique").TECHNIQUE, get_technique("ddp")
    whole, half = (measure(one.plan(workload, cluster), cluster) for one in (plain, own))
    assert half.bytes == pytest.approx(whole.bytes / 2, rel=1e-6)
    assert half.step_s < whole.step_s


SPANS = b'{"spans": [["COMPUTE", "gemm", 10, 60], ["COMM", "all_reduce", 40, 80]]}'


@pytest.mark.parametrize("name", ["rank3.spans.json", "rank3.spans.json.gz"])
def test_the_template_of_a_trace_format_is_read_packed_or_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = template("trace_format")
    monkeypatch.setattr(traces, "FORMATS", (*traces.FORMATS, own))
    (tmp_path / name).write_bytes(gzip.compress(SPANS) if name.endswith("gz") else SPANS)
    [rank] = traces.read_timeline(tmp_path).ranks
    assert (rank.rank, partition(select(rank, "all")).exposed_comm_ns) == (3, 20)


def test_a_trace_is_a_file_object(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(SPANS))
    with Source(path, None, "trace", Limits()) as source:
        assert source.readable() and not source.writable()
        assert source.read(8) == SPANS[:8] and source.read() == SPANS[8:] and source.read() == b""
    assert source.closed
    with Source(path, None, "trace", Limits()) as source:
        assert json.load(source)["spans"][0][0] == "COMPUTE"


@pytest.mark.parametrize("kind", traces.FORMATS, ids=lambda kind: kind.__name__.rpartition(".")[2])
def test_a_trace_format_recognises_its_own_and_no_other(kind: Any) -> None:
    assert kind.SUFFIXES and not kind.recognise(b"\x00binary") and not kind.recognise(SPANS)
    assert not template("trace_format").recognise(b'{"traceEvents": []}')


def test_the_template_of_a_reader_is_read_and_shares_that_cannot_be_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = template("results_reader")
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"harness": "toy", "model": "m", "tasks": {"mmlu": 0.5, "arc": 1.5}}))
    with pytest.raises(InputError):
        files.read_results(path)
    monkeypatch.setattr(files, "READERS", (*files.READERS, own))
    found = files.read_results(path)
    assert found.measurements[["model", "task", "value"]].to_numpy().tolist() == [["m", "mmlu", 0.5]]
    assert [note.code for note in found.notes] == ["share-outside"]
    for reader in files.READERS:
        assert not reader.accepts({"nothing": 1}) and not reader.accepts(pd.DataFrame({"a": ["1"]}))
