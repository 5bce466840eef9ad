"""Named clusters and those of TOML files: figures with sources, errors that name the field."""

from __future__ import annotations

import csv
import math
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError, UnknownNameError
from densing.efficiency.simulation.cluster import (
    EVIDENCE,
    Cluster,
    Device,
    Figure,
    Link,
    cluster_names,
    cluster_of,
    load_cluster,
    to_toml,
)
from densing.efficiency.simulation.costs import collective_seconds

WANTED = {"a100x8-rdma", "a100x8-tcp", "h100x8-nvlink", "h100x8-nop2p", "rtx4090x4-pcie", "geo48", "a800x4-nvlink",
          "t3-sim", "cpu2", "rtx3090-pcie3", "rtx3090-pcie4"}  # fmt: skip
LINK = {"alpha_s": 1e-5, "gbit_per_s": 8}
GOOD = {
    "name": "mine",
    "n": 2,
    "per_node": 1,
    "device": {"name": "toy", "flops": 1e12, "mem_bw": 1e11},
    "intra": LINK,
    "inter": LINK,
    "host": LINK,
}


def test_every_preset_names_the_source_of_every_figure() -> None:
    assert set(cluster_names()) == WANTED
    for name in cluster_names():
        found = load_cluster(name)
        assert found.name == name
        for level in ("intra", "inter", "wide"):
            if getattr(found, level) is not None:
                assert {f"{level}.alpha_s", f"{level}.beta_s_per_byte"} <= set(found.sources), (name, level)
        assert {"device.flops", "device.mem_bw", "host.beta_s_per_byte"} <= set(found.sources)
        for figure in found.sources.values():
            assert figure.evidence in EVIDENCE and figure.source


def test_peaks_are_those_of_the_table_of_utilisation() -> None:
    """densing/efficiency/timeline/peaks.csv: the other place where peaks are written."""
    text = (files("densing.efficiency.timeline") / "peaks.csv").read_text(encoding="utf-8")
    peaks = {(row["device"], row["dtype"]): float(row["tflops"]) for row in csv.DictReader(text.splitlines())}
    for preset, device in (("a100x8-tcp", "A100"), ("h100x8-nvlink", "H100 SXM"), ("rtx4090x4-pcie", "RTX 4090"),
                           ("a800x4-nvlink", "A800")):  # fmt: skip
        assert math.isclose(load_cluster(preset).device.flops, peaks[device, "bf16"] * 1e12)


def test_all_reduces_of_the_ladder_paper() -> None:
    """Inputs, not results: latencies were derived from the plotted 24 and 64 us (batch 1), 113 us (batch 64)."""
    ladder = 2 * 8192
    for name, batch, seconds in (("h100x8-nvlink", 1, 24e-6), ("h100x8-nop2p", 1, 64e-6), ("h100x8-nop2p", 64, 113e-6)):
        found = collective_seconds("all_reduce", batch * ladder, load_cluster(name), range(8))
        assert math.isclose(found, seconds, rel_tol=0.03)


def test_sizes_can_be_changed() -> None:
    assert load_cluster("a100x8-tcp", n=128).n == 128
    with pytest.raises(InputError, match="n: 0 is out of range"):
        load_cluster("a100x8-tcp", n=0)
    with pytest.raises(InputError, match="whole number"):
        load_cluster("a100x8-tcp", n=2.5)  # type: ignore[arg-type]


def test_unknown_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'a100x8-tcp'"):
        load_cluster("a100x8-tpc")
    with pytest.raises(InputError, match="cannot read"):
        load_cluster(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("name = [")
    with pytest.raises(InputError, match=r"broken\.toml: not readable TOML"):
        load_cluster(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        load_cluster(broken)


def test_own_file_may_name_a_preset_device(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    link = "{ alpha_s = 1e-5, gbit_per_s = 100 }"
    file.write_text(
        f'name = "mine"\nn = 4\nper_node = 2\ndevice = "h100"\nintra = {link}\ninter = {link}\nhost = {link}\n'
    )
    found = load_cluster(str(file))
    assert found.device.flops == 989.5e12 and math.isclose(found.inter.beta_s_per_byte, 8e-11)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"n": 0}, "n: 0 is out of range"),
        ({"n": True}, "n"),
        ({"n": 1e9}, "n"),
        ({"per_node": -1}, "per_node"),
        ({"kappa": math.nan}, "kappa"),
        ({"kappa_comm": -0.1}, "kappa_comm"),
        ({"speed": [1.0]}, "speed: 1 values for 2 ranks"),
        ({"speed": [1.0, 0.0]}, "speed"),
        ({"speed": [1.0, "fast"]}, "speed"),
        ({"name": "  "}, "name: empty"),
        ({"nmae": "x"}, "did you mean 'name'"),
        ({"intra": 3}, "intra: 3 is not a table"),
        ({"intra": {"alpha_s": 1.0}}, "bandwidth once"),
        ({"intra": {"alpha_s": 1.0, "gbit_per_s": 1, "beta_s_per_byte": 1.0}}, "bandwidth once"),
        ({"intra": {"alpha_s": -1.0, "gbit_per_s": 1}}, "intra: alpha_s: -1"),
        ({"intra": {"alpha_s": 1.0, "gbit_per_s": 0}}, "gbit_per_s: 0"),
        ({"intra": {"alpha_s": 1.0, "gbit_per_s": math.inf}}, "gbit_per_s: inf"),
        ({"inter": {"alpha_s": math.nan, "beta_s_per_byte": 1e-9}}, "inter: alpha_s: nan"),
        ({"device": "h1000"}, "unknown device 'h1000'"),
        ({"device": {"name": "toy", "flops": 0, "mem_bw": 1e11}}, "device.flops: 0"),
        ({"device": {"name": "toy", "flops": 1e12, "mem_bw": 1e11, "efficiency": 1.5}}, "device.efficiency: 1.5"),
        ({"device": {"name": "toy", "flops": 1e12, "mem_bw": 1e11, "measured": [[1e9, 1e6, -1.0]]}}, "measured: -1"),
        ({"device": {"name": "toy", "flops": 1e12, "mem_bw": 1e11, "measured": [[1e9, 1e6]]}}, "measured"),
        ({"wide": LINK}, "per_site and wide"),
        ({"wide": LINK, "per_node": 2, "per_site": 3}, "not a multiple"),
        ({"pairs": {"0-1": 2.0}}, "pairs: '0-1' is not a pair of its 0 sites"),
        ({"wide": LINK, "per_site": 1, "pairs": {"1-0": 2.0}}, "the lower one first"),
        ({"wide": LINK, "per_site": 1, "pairs": {"0-2": 2.0}}, "is not a pair of its 2 sites"),
        ({"wide": LINK, "per_site": 1, "pairs": {"0-1": 0.0}}, "pairs.0-1: 0.0 is out of range"),
        ({"wide": LINK, "per_site": 1, "pairs": {"0-1": "fast"}}, "pairs"),
        ({"sources": {"n": {"source": "x", "evidence": "rumour"}}}, "rumour"),
        ({"sources": 1}, "sources: 1 is not a table"),
    ],
)
def test_errors_name_file_and_field(change: dict[str, object], told: str) -> None:
    with pytest.raises(InputError) as caught:
        cluster_of({**GOOD, **change}, "mine.toml", {"h100": {}})
    assert told in str(caught.value)


@pytest.mark.parametrize("field", sorted(GOOD))
def test_missing_fields_are_named(field: str) -> None:
    with pytest.raises(InputError, match=rf"mine\.toml: {field}: missing"):
        cluster_of({key: value for key, value in GOOD.items() if key != field}, "mine.toml")


TEXT = st.text(max_size=30)
LINKS = st.builds(Link, st.floats(0, 1e3), st.floats(0, 1e3), TEXT)
DEVICES = st.builds(
    Device,
    TEXT,
    st.floats(1, 1e20),
    st.floats(1, 1e20),
    st.floats(0, 1e15),
    st.floats(1e-6, 1),
    st.floats(1e-6, 1),
    st.lists(st.tuples(*[st.floats(1e-9, 1e15)] * 3), max_size=3).map(tuple),
)


@given(
    name=TEXT.filter(lambda text: bool(text.strip())),
    device=DEVICES,
    links=st.tuples(LINKS, LINKS, LINKS, LINKS),
    wide=st.booleans(),
    speed=st.booleans(),
    sources=st.dictionaries(TEXT, st.builds(Figure, TEXT, st.sampled_from(EVIDENCE)), max_size=3),
)
def test_written_clusters_read_back_equal(
    name: str,
    device: Device,
    links: tuple[Link, Link, Link, Link],
    wide: bool,
    speed: bool,
    sources: dict[str, Figure],
) -> None:
    intra, inter, host, far = links
    made = Cluster(name, 4, 2, device, intra, inter, host, kappa=0.5, sources=sources)
    made = made.change(speed=(1.0, 0.5, 1.0, 2.0)) if speed else made
    made = made.change(wide=far, per_site=2, pairs={"0-1": 2.5}) if wide else made
    assert cluster_of(tomllib.loads(to_toml(made)), "mine.toml") == made


def test_pairs_of_sites_have_their_own_bandwidth() -> None:
    found = load_cluster("geo48")
    assert found.wide is not None
    far = {pair: found.link(*pair) for pair in ((0, 16), (47, 0), (17, 40))}
    assert [round(8e-6 / link.beta_s_per_byte, 6) for link in far.values()] == [8, 80, 800]
    assert {link.alpha_s for link in far.values()} == {found.wide.alpha_s}
    # A group over several sites waits for the slowest pair among them.
    slow, fast = (collective_seconds("all_reduce", 1e6, found, ranks) for ranks in ((0, 16), (16, 32)))
    assert math.isclose((slow - 0.06) / (fast - 0.06), 100, rel_tol=1e-6)
    every = collective_seconds("all_reduce", 1e6, found, (0, 16, 32), "ring")
    assert every == collective_seconds("all_reduce", 1e6, found.change(pairs={}), (0, 16, 32), "ring")


def test_measured_work_takes_what_it_took() -> None:
    device = Device("toy", 1e12, 1e9, measured=((1e9, 1e6, 0.1), (2e9, 4e6, 0.15), (2e9, 1e7, 0.3)))
    for flops, moved, seconds in device.measured:
        assert device.seconds(flops, moved) == seconds
    assert device.seconds(1e9, 1.1e6) == 0.1
    assert math.isclose(device.seconds(4e9, 1e7), 0.6)
    assert device.seconds(0.0, 2e9) == 2.0
