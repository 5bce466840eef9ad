"""Links between ranks: how they are written, shaped for real, emulated."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from densing.core.errors import InputError, UnavailableError
from densing.efficiency.parallel.distributed import comm, network
from densing.efficiency.parallel.distributed.comm import Carrier
from densing.efficiency.parallel.distributed.network import Rate, parse_rate, parse_rates
from densing.efficiency.simulation.cluster import Cluster, Device, Link
from densing.efficiency.simulation.costs import collective_seconds

WHY_NOT = network.available()
shaped = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@given(st.integers(20, 900), st.sampled_from(sorted(UNITS)), st.booleans(), st.booleans())
def test_a_rate_is_bits_per_second_in_decimal_units(number: int, unit: str, emulated: bool, loud: bool) -> None:
    text = f"{'emulated:' if emulated else ''}{number}{unit}"
    rate = parse_rate(f" {text.upper()} " if loud else text)
    assert rate.bytes_per_s == pytest.approx(number * UNITS[unit] / 8)
    assert (rate.kind, rate.text) == ("emulated" if emulated else "shaped", text)


@pytest.mark.parametrize(
    "text",
    ["fast", "200", "mbit", "-200mbit", "nanmbit", "infmbit", "0mbit", "1e300gbit", "200mbps", "200mbit:5ms", "1 mbit",
     "emulated:", "emulated:none", "emulated:1mbit:5", "emulated:1mbit:99s", "shaped:1mbit", "200mbit;reboot", "२mbit"],
)  # fmt: skip
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="link"):
        parse_rate(text)


@given(st.text(max_size=40))
def test_no_text_breaks_the_reader_of_rates(text: str) -> None:
    with suppress(InputError):
        assert isinstance(parse_rate(text), Rate)


PAIR = (0, 1)

SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], 5000))
print("up", flush=True)
peer, _ = listener.accept()
for size in map(int, sys.argv[2:]):
    while size: size -= len(peer.recv(min(size, 1 << 16)))
    peer.sendall(b"k")
"""
CLIENT = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 5000))
for size in map(int, sys.argv[2:]):
    began = time.perf_counter()
    peer.sendall(bytes(size))
    peer.recv(1)
    print(size / (time.perf_counter() - began))
"""


@shaped
@pytest.mark.parametrize(
    ("links", "sender", "receiver"),
    [
        ("80mbit,80mbit", 0, 1),
        ("80mbit,80mbit", 1, 0),
        ("80mbit,1gbit", 1, 0),
        ("80mbit,1gbit", 0, 1),
        ("80mbit,80mbit,80mbit", 2, 0),
        ("80mbit,1gbit,1gbit", 2, 0),
        ("80mbit,1gbit,1gbit", 0, 1),
    ],
)
def test_a_shaped_link_lets_its_rate_through_and_no_more(links: str, sender: int, receiver: int) -> None:
    rate = parse_rate("80mbit")
    with network.Net(parse_rates(links, links.count(",") + 1)) as net:
        place, sizes = net.address(receiver), ["400000", "2000000"]
        server = [*net.inside(receiver), sys.executable, "-c", SERVER, place, *sizes]
        with subprocess.Popen(server, stdout=subprocess.PIPE) as listening:
            assert listening.stdout is not None
            listening.stdout.readline()
            client = [*net.inside(sender), sys.executable, "-c", CLIENT, place, *sizes]
            said = subprocess.run(client, capture_output=True, text=True, check=True, timeout=60).stdout
        about = subprocess.run([*net.inside(sender), "ip", "-d", "link", "show", network.INTERFACE],
                               capture_output=True, text=True, check=True).stdout  # fmt: skip
    # No packet is larger than the smallest bucket: the queue would cut it, and slow links cost more of the processor.
    assert int(about.split("gso_max_size ")[1].split()[0]) < network.burst_bytes(parse_rate("10kbit"))
    seen = float(said.split()[1])
    # The bucket's content passes at once; a loaded machine only makes it slower.
    assert 0.05 * rate.bytes_per_s < seen < 1.1 * rate.bytes_per_s


@shaped
def test_nothing_is_left_of_a_shaped_link() -> None:
    with network.Net(parse_rates("80mbit", 3)) as net:
        pids = [int(net.inside(rank)[2]) for rank in range(3)]
        inside = {Path(f"/proc/{pid}/ns/net").readlink() for pid in pids}
        assert len(inside) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not namespaces_in_use(inside)
    assert not [name for name in Path("/sys/class/net").iterdir() if name.name.startswith((network.INTERFACE, "port"))]


def namespaces_in_use(wanted: set[Path]) -> set[Path]:
    found = set()
    for place in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):
            found.add(place.readlink())
    return found & wanted


def test_a_link_for_no_or_too_many_ranks_is_refused() -> None:
    for ranks in (0, 1, 65):
        with pytest.raises(InputError, match="2 to 64"):
            network.Net(parse_rates("80mbit", ranks))


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    reason = network.available()
    assert reason is not None
    with pytest.raises(UnavailableError), network.Net(parse_rates("80mbit", 2)):
        pass


class Work:
    """An operation that takes a given time, or fails."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.seconds, self.error = seconds, error

    def wait(self) -> None:
        time.sleep(self.seconds)
        if self.error:
            raise self.error


class Done:
    """An operation that is over."""

    def wait(self) -> None:
        return


@contextmanager
def carrier(text: str) -> Iterator[Carrier]:
    made = Carrier(parse_rates(text, text.count(",") + 1 if "," in text else 2))
    yield made
    made.close()


def test_an_emulated_link_takes_what_a_ring_takes_and_its_wire_one_operation_at_a_time() -> None:
    began = time.perf_counter()
    with carrier("emulated:8mbit:10ms") as link:
        tickets = [link.carry("all_reduce", Work(), 20_000, PAIR) for _ in range(3)]
        assert not tickets[0].done()
        for ticket in tickets:
            ticket.wait()
    ends = [ticket.ended or 0.0 for ticket in tickets]
    # Two messages of 10 ms and 20 kB at 1 MB/s; two operations at once wait for answers, the third comes after one.
    assert (tickets[0].latency_s, tickets[0].wire_s) == pytest.approx((0.02, 0.02))
    first, second, third = sorted(end - began for end in ends)
    assert first >= 0.04 and second >= 0.06 and third >= 0.08


def test_two_operations_on_an_emulated_link_wait_for_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=20)
    monkeypatch.setattr(comm.time, "sleep", lambda seconds: together.wait() if seconds == 0.02 else None)
    with carrier("emulated:8mbit:10ms") as link:
        for ticket in [link.carry("all_reduce", Done(), 1000, PAIR) for _ in range(2)]:
            ticket.wait()
    # One alone would have broken it, having waited 20 s for the other.
    assert not together.broken


@given(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast"]), st.integers(1, 9),
       st.integers(1, 10**8))  # fmt: skip
def test_an_emulated_link_costs_what_the_simulator_says(op: str, n: int, count: int) -> None:
    link = Link(0.001, 8e-8)
    cluster = Cluster("c", n=n, per_node=n, device=Device("d", 1.0, 1.0), intra=link, inter=link, host=link)
    said = collective_seconds(op, count, cluster, range(n), "ring")
    made = Carrier.__new__(Carrier)
    made.rates = parse_rates("emulated:100mbit:1ms", n)
    assert sum(made.seconds(op, count, range(n))) == pytest.approx(said, rel=1e-9, abs=1e-12)


def test_on_an_emulated_link_the_slower_of_two_ranks_decides() -> None:
    with carrier("emulated:1gbit,1gbit:1ms,8mbit") as link:
        assert link.seconds("send", 1e6, [0, 1]) == pytest.approx((1e-3, 8e-3))
        assert link.seconds("recv", 1e6, [2, 0]) == pytest.approx((0.0, 1.0))
        # Sums of all go round at the slowest rank's rate, 4/3 of the bytes among three.
        assert link.seconds("all_reduce", 1e6, [0, 1, 2]) == pytest.approx((4e-3, 4 / 3))


@pytest.mark.parametrize(
    ("text", "n", "reason"),
    [
        ("1gbit,50mbit", 3, "2 links for 3 ranks"),
        ("1gbit,none", 2, "some ranks have no link"),
        ("1gbit,fast", 2, "'fast'"),
    ],
)
def test_links_that_do_not_fit_the_ranks_are_refused(text: str, n: int, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_rates(text, n)


def test_both_directions_of_an_emulated_link_are_used_at_once() -> None:
    with carrier("emulated:8mbit") as link:
        began = time.perf_counter()
        both = [link.carry("send", Work(), 2_000_000, PAIR), link.carry("recv", Work(), 2_000_000, PAIR)]
        starts = [(ticket.wait(), (ticket.ended or 0.0) - ticket.wire_s)[1] for ticket in both]
    # One after the other would be two seconds apart.
    assert max(starts) - min(starts) < 1.0
    assert all(start >= began - 0.01 for start in starts)


def test_what_fails_on_an_emulated_link_is_raised_where_it_is_waited_for() -> None:
    with carrier("emulated:1gbit") as link:
        lost = link.carry("all_reduce", Work(error=RuntimeError("peer gone")), 8, PAIR)
        future = link.carry("all_reduce", Work(error=RuntimeError("peer gone")), 8, PAIR).future("bucket")
        fine = link.carry("all_reduce", Work(), 8, PAIR)
        with pytest.raises(RuntimeError, match="peer gone"):
            lost.wait()
        with pytest.raises(RuntimeError, match="peer gone"):
            future.wait()
        fine.wait()
        assert fine.future("bucket").wait() == "bucket"
