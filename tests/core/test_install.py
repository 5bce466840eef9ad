"""Which command adds an extra, for each way in which pip can have installed the package."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from densing.core import install_command
from tests.support.folders import ROOT


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'densing[evals]'"),
        ({"url": "URL", "dir_info": {"editable": True}}, "pip install -e 'FOLDER[evals]'"),
        ({"url": "URL", "dir_info": {}}, "pip install 'FOLDER[evals]'"),
        ({"url": "file:///gone/densing", "dir_info": {"editable": True}}, "pip install 'densing[evals]'"),
        ({"url": "URL/dist/densing-0.2.0-py3-none-any.whl", "archive_info": {}}, "pip install 'densing[evals]'"),
        ({"url": "https://example.org/densing.git", "vcs_info": {"vcs": "git"}}, "pip install 'densing[evals]'"),
    ],
)
def test_the_command_is_for_where_the_package_came_from(
    origin: dict[str, Any] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my clone"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    # As pip records it, before the real installation on the path.
    record = tmp_path / "site" / "densing-0.2.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: densing\nVersion: 0.2.0\n", encoding="utf-8")
    if origin is not None:
        text = json.dumps(origin).replace("URL", folder.as_uri())
        (record / "direct_url.json").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(record.parent))
    assert install_command("evals") == command.replace("FOLDER", str(folder))
    monkeypatch.chdir(folder)
    assert install_command("evals") == command.replace("FOLDER", ".")


def test_every_extra_that_a_message_names_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "densing").rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"install_command\(['\"](\w+)['\"]\)", text)}
    assert len(named) > 3
    assert named <= set(project["optional-dependencies"])
    # And none is written out, for an index alone.
    assert not [text for text in sources if re.search(r"pip install ['\"]?densing\[", text)]
