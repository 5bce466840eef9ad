"""Whole runs: no credential in the store, no part of a poisoned plan evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import InputError
from tests.support.evals_poison import GOOD, write

pytest.importorskip("lm_eval", reason="needs the extra evals: pip install 'densing[evals]'")

CONFIRM, TRUST = "--confirm_run_unsafe_code", "--trust_remote_code"


@pytest.fixture
def secret_plan(tmp_path: Path) -> Any:
    """A plan whose model gets credentials by three ways, one of them in an address."""
    from densing.scores.evals.plan import Loading, ModelSpec, Plan, TaskSpec
    from tests.support.evals_toys import write_tasks

    args = {"token": "hf_aLovelySecret42", "api_key": "plainLookingWord", "base_url": "https://me:pwInTheUrl@host/v1"}
    place = write_tasks(tmp_path / "toys", 4)
    return Plan(
        (ModelSpec.of("dummy", args, "dummy"),),
        (TaskSpec("toy_choice"),),
        loading=Loading(device="cpu"),
        include_path=(str(place),),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["", "local"])
def test_no_credential_is_in_the_run_folder(name: str, secret_plan: Any, tmp_path: Path, capfd: Any) -> None:
    from densing.jobs import get_executor
    from densing.scores.evals.runner import run_plan

    executor = get_executor(name, retries=0) if name else None
    summary = run_plan(secret_plan, tmp_path / "store", executor=executor)
    assert not summary.failed
    files = [file for file in (tmp_path / "store").rglob("*") if file.is_file()]
    assert len(files) > 3
    shown = repr(summary).encode() + "".join(capfd.readouterr()).encode()
    for secret in (b"hf_aLovelySecret42", b"plainLookingWord", b"pwInTheUrl"):
        assert not [file for file in files if secret in file.read_bytes()]
        assert secret not in shown


@pytest.mark.filterwarnings("ignore")
def test_poisoned_plan_is_refused_whole(secret_plan: Any, folder: Path, marker: Path, tmp_path: Path) -> None:
    import dataclasses

    from densing.scores.evals.plan import TaskSpec
    from densing.scores.evals.runner import run_plan

    write(folder, GOOD + "process_docs: !function evil.f")
    plan = dataclasses.replace(secret_plan, tasks=(TaskSpec("poisoned"),), include_path=(str(folder),))
    with pytest.raises(InputError, match=CONFIRM):
        run_plan(plan, tmp_path / "store")
    assert not marker.exists() and not (tmp_path / "store" / "units").exists()
