"""Where the project, its tests and the fixtures shared with other projects lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
DATA = TESTS / "data"
# Not part of the project: real traces, catalogs and oracles; tests that read them skip where they are not.
SHARED = ROOT.parent / "shared"
# Traces that travel with the tests (public ones made small), and the whole public sets.
TRACES = DATA / "traces"
RECORDED = SHARED / "data" / "traces"
