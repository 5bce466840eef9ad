"""Joules from counters: the process's share of what the packages used, and nothing where nothing can be read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from densing.core import Meter, OtherWork


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text("1000000")
    (tmp_path / "stat").write_text("cpu  100 0 0 500 0\ncpu0 1 2 3\n")
    monkeypatch.setattr(Meter, "powercap", tmp_path)
    monkeypatch.setattr(Meter, "stat", tmp_path / "stat")
    monkeypatch.setattr(time, "process_time", iter([10.0, 11.0, 12.0]).__next__)
    return tmp_path


def test_a_process_pays_for_its_share_of_the_busy_time(counters: Path) -> None:
    assert Meter.readable()
    meter = Meter()
    # Two packages use 8 and 4 J, all processors are busy for 4 s, of which this process for 1; zones within count not.
    (counters / "intel-rapl:0" / "energy_uj").write_text("9000000")
    (counters / "intel-rapl:1" / "energy_uj").write_text("5000000")
    (counters / "intel-rapl:0:0" / "energy_uj").write_text("99000000")
    (counters / "stat").write_text("cpu  300 50 150 900 0\n")
    assert meter.joules() == pytest.approx(12 / 4)
    # One counter has begun anew.
    (counters / "intel-rapl:0" / "energy_uj").write_text("1000")
    (counters / "intel-rapl:1" / "energy_uj").write_text("7000000")
    (counters / "stat").write_text("cpu  400 50 150 900 0\n")
    assert meter.joules() == pytest.approx(2.0)


def test_where_nothing_can_be_read_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Meter, "powercap", tmp_path)
    assert not Meter.readable()
    assert Meter().joules() == 0
    (tmp_path / "intel-rapl:0").mkdir()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("forbidden")
    assert not Meter.readable()


def test_others_are_what_is_busy_without_this_process_and_its_children(
    counters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([(1.0, 1.0, 5.0, 1.0, 0.0), (2.0, 1.0, 5.5, 1.5, 9.0)])
    monkeypatch.setattr(os, "times", times.__next__)
    monkeypatch.setattr(time, "monotonic", iter([100.0, 104.0]).__next__)
    work = OtherWork()
    # Busy for 8 s in 4 s, of which 2 s are ours.
    (counters / "stat").write_text("cpu  500 200 200 900 0\n")
    assert work.cores() == pytest.approx((8 - 2) / 4)


def test_where_the_kernel_does_not_say_others_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Meter, "stat", tmp_path / "stat")
    assert OtherWork().cores() is None
