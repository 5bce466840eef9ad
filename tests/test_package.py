"""The wheel and the sdist as a release makes them: what they hold, and what an installation says of itself."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import densing
from densing.scores.catalog import load_catalog
from densing.scores.joint import joint_cells, scale_name
from tests.support.folders import ROOT

pytestmark = pytest.mark.slow
pytest.importorskip("build", reason="needs the extra dev: pip install build")
HINT = "from densing.core import install_command; print(install_command('evals'))"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, built as `python -m build` does: the sdist from the checkout, the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder


def members(dist: Path) -> tuple[set[str], set[str]]:
    """The paths in wheel and sdist, the sdist's without its top folder."""
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        of_wheel = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        of_sdist = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}
    return of_wheel, of_sdist


def test_what_is_tracked_travels_and_nothing_else(dist: Path) -> None:
    wheel, sdist = members(dist)
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git: what is tracked cannot be told")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    tracked = {name for name in listed if (ROOT / name).is_file()}
    info = f"densing-{densing.__version__}.dist-info"
    assert wheel - {name for name in wheel if name.startswith(info)} == {
        re.sub(r"^(reference_fits|examples)/", r"densing/_\1/", name)
        for name in tracked
        if name.startswith(("densing/", "reference_fits/", "examples/"))
    }
    scale = f"densing/scores/joint/data/{scale_name(joint_cells(load_catalog()))}"
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE", "densing/py.typed", scale} <= wheel
    # The folder of results stays at home.
    assert sdist - {"PKG-INFO"} == {name for name in tracked if not name.startswith("results/")}


def test_the_page_that_an_index_shows_links_to_the_files_of_its_version(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        page = archive.read(f"densing-{densing.__version__}.dist-info/METADATA").decode("utf-8")
    written = re.findall(r"\]\((?!https?:)([^)]+)\)", (ROOT / "README.md").read_text("utf-8"))
    targets = re.findall(r"\]\(([^)]+)\)", page)
    assert written and all(target.startswith("https://") for target in targets)
    homes = ("github.com/densing/densing/blob", "raw.githubusercontent.com/densing/densing")
    of_version = [target for home in homes for target in targets if f"{home}/v{densing.__version__}/" in target]
    assert sorted(target.split(f"/v{densing.__version__}/")[1] for target in of_version) == sorted(written)


def pip_of(python: str) -> list[str]:
    """The start of an installation into another environment, by the pip of this one: to copy it takes seconds."""
    quiet = ["--quiet", "--no-deps", "--no-compile"]
    return [sys.executable, "-m", "pip", "--python", python, "install", *quiet]


def installed(folder: Path, *arguments: str) -> list[str]:
    """Install without dependencies into a clean environment, and return what the hint is there, and elsewhere.

    The dependencies are those of the environment that tests: its packages come after the clean one's own.
    """
    venv.create(folder)
    python = str(folder / "bin" / "python")
    if arguments:
        subprocess.run([*pip_of(python), *arguments], check=True, cwd=ROOT)
    own = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    (Path(own) / "zz_tested_beside.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    hints = []
    for place in (ROOT, folder):
        done = subprocess.run(
            [python, "-P", "-c", HINT],
            cwd=place,
            check=True,
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin"},
        )
        hints.append(done.stdout.strip())
    return hints


def test_a_wheel_hints_at_an_index_and_a_clone_at_itself(dist: Path, tmp_path: Path) -> None:
    [wheel] = dist.glob("*.whl")
    assert installed(tmp_path / "wheel", str(wheel)) == ["pip install 'densing[evals]'"] * 2
    assert installed(tmp_path / "editable", "-e", ".") == [
        "pip install -e '.[evals]'",
        f"pip install -e '{ROOT}[evals]'",
    ]


def test_the_hint_of_a_wheel_needs_no_index_that_has_densing(dist: Path, tmp_path: Path) -> None:
    """Pip takes the installed package for what the hint names, and looks for the extra's packages alone."""
    [wheel] = dist.glob("*.whl")
    venv.create(tmp_path / "env")
    pip = [*pip_of(str(tmp_path / "env" / "bin" / "python")), "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    hinted = subprocess.run([*pip, "densing[slurm]"], capture_output=True, text=True, check=False)
    assert hinted.returncode == 0, hinted.stderr


def test_the_image_s_steps_build_and_install_from_what_it_copies(tmp_path: Path) -> None:
    """The two stages before the last, in folders instead of an image; without what densing needs, which is here."""
    source = tmp_path / "source"
    source.mkdir()
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        if line.startswith("!"):
            (source / line[1:]).symlink_to(ROOT / line[1:])
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    steps = re.findall(r"^RUN (.+)$", dockerfile[: dockerfile.rindex("FROM ")], flags=re.M)
    assert [step.split()[0] for step in steps] == ["pip", "python", "if", "pip"]
    programs = tmp_path / "opt" / "densing" / "bin"
    env = {
        "PATH": f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PIP_NO_COMPILE": "1",
    }
    for step in steps:
        script = re.sub(r"(?<=\s)/(?=opt/|wheels)|(?<=echo )/", f"{tmp_path}/", step)
        alone = {"PIP_NO_DEPS": "1"} if step.startswith("pip install") else {}
        command = ["bash", "-ec", script]
        done = subprocess.run(command, cwd=source, env=env | alone, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{step}\n{done.stderr[-3000:]}"
    beside = next(programs.parent.glob("lib/python*/site-packages")) / "zz_tested_beside.pth"
    beside.write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    done = subprocess.run([programs / "densing", "--version"], cwd=tmp_path, env=env, capture_output=True, check=True)
    assert densing.__version__ in done.stdout.decode()


def test_a_clone_that_was_never_installed_hints_at_itself(tmp_path: Path) -> None:
    """As `python cli.py` runs: no metadata of densing is anywhere on the path."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("lazy_loader", "packaging"):
        [spec] = [path for path in Path(sysconfig.get_path("purelib")).glob(name) if path.is_dir()]
        (packages / name).symlink_to(spec)
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(packages)!r}]; {HINT}"
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"pip install -e '{ROOT}[evals]'"
