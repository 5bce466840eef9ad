"""``densing what-if``: what is refused."""

from __future__ import annotations

from pathlib import Path

from tests.support.profile_command import densing


def test_what_if_names_the_file_that_is_missing(tmp_path: Path) -> None:
    assert "no such file" in densing("what-if", tmp_path / "absent.parquet", code=1).stderr
    assert "not a regular file" in densing("what-if", tmp_path, code=1).stderr
