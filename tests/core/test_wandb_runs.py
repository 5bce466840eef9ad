"""Runs of Weights & Biases: logs written here as W&B 0.31 writes them, read and fitted without it."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from densing.core.errors import InputError, TableError, UnknownNameError
from densing.core.table_io import read_sheet
from densing.scores.fit import fit_runs, read_runs
from densing.scores.laws import get_law

BLOCK = 32768
CHINCHILLA = get_law("chinchilla")


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def items(values: dict[str, Any]) -> bytes:
    """A list of keys and values; what is nested in the key stands in parts, as in a history."""
    out = b""
    for key, value in values.items():
        keys = b"".join(field(2, part.encode()) for part in key.split(" ")) if " " in key else field(1, key.encode())
        out += field(1, keys + field(16, json.dumps(value).encode()))
    return out


def log_of(name: str, config: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bytes:
    """A log: the header, then entries in blocks, of which one may go over several."""
    entries = [field(17, field(1, b"id") + field(4, items(config)) + field(8, name.encode()) + field(13, b"host"))]
    entries += [field(1, 3) + field(2, items(row) + field(2, field(1, 1))) + field(16, field(3, 1)) for row in rows]
    out = b":W&B\xe1\xbe\x00"
    for entry in entries:
        first = True
        while first or entry:
            if (left := BLOCK - len(out) % BLOCK) < 7:
                out, left = out + bytes(left), BLOCK
            body, entry = entry[: left - 7], entry[left - 7 :]
            kind = (1 if first else 4) if not entry else (2 if first else 3)
            out, first = out + struct.pack("<IHB", zlib.crc32(body), len(body), kind) + body, False
    return out


def put(folder: Path, name: str, config: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Path:
    path = folder / "wandb" / f"offline-run-20261125_173237-{name}" / f"run-{name}.wandb"
    path.parent.mkdir(parents=True)
    path.write_bytes(log_of(name, config, rows))
    return path


def test_a_run_is_what_was_configured_and_logged(tmp_path: Path) -> None:
    config = {"params": 1e6, "model": {"layers": 4}, "tags": ["a"], "_wandb": {"x": 1}}
    rows = [{"_step": 0, "loss": 3.0, "_runtime": 0.1}, {"_step": 10, "eval loss": 2.5, "note": "n" * 3 * BLOCK}]
    put(tmp_path, "a", config, [*rows, {"_step": 20, "loss": "NaN", "picture": {"_type": "image-file"}}])
    sheet = read_sheet(tmp_path)
    assert sheet.history and sheet.cells.drop(columns="note").to_dict("list") == {
        "run": ["a"] * 3,
        "step": ["0", "10", "20"],
        "params": ["1000000.0"] * 3,
        "model.layers": ["4"] * 3,
        "loss": ["3.0", "", "NaN"],
        "eval.loss": ["", "2.5", ""],
    }
    # An entry of three blocks is whole.
    assert sheet.cells["note"].str.len().tolist() == [0, 3 * BLOCK, 0]
    assert [note.details for note in sheet.notes] == [{"keys": ["tags", "picture"]}]


def test_folder_and_file_and_link_are_one_run(tmp_path: Path) -> None:
    path = put(tmp_path, "a", {}, [{"loss": 1.0}])
    (tmp_path / "wandb" / "latest-run").symlink_to(path.parent, target_is_directory=True)
    for place in (tmp_path, tmp_path / "wandb", path.parent, path):
        assert len(read_sheet(place).cells) == 1, place


def planted(params: float, tokens: float) -> float:
    return 1.7 + 400.0 * params**-0.34 + 410.0 * tokens**-0.28


def test_a_fit_of_runs_is_the_fit_of_the_table_that_they_say(tmp_path: Path) -> None:
    table = []
    for params in (1e7, 3e7, 1e8, 3e8):
        rows: list[dict[str, Any]] = []
        for step in range(6):
            tokens = 1e9 * 2**step
            # The training loss is logged more often, and tokens apart from the loss that counts.
            rows += [{"_step": 3 * step, "tokens": tokens, "loss": 9.0}, {"_step": 3 * step + 1, "loss": 8.0}]
            rows += [{"_step": 3 * step + 2, "eval/loss": planted(params, tokens)}]
            table.append({"params": params, "tokens": tokens, "loss": planted(params, tokens)})
        put(tmp_path, f"{params:g}", {"model": {"n_params": params}}, rows)
    named = {"loss": "eval/loss", "params": "model.n_params"}
    runs, notes = read_runs(tmp_path, CHINCHILLA, named=named)
    columns = ["params", "tokens", "loss"]
    order = ["params", "tokens"]
    ours = runs[columns].sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(ours, pd.DataFrame(table).sort_values(order, ignore_index=True), check_names=False)
    assert next(note for note in notes if note.code == "history-read").details["steps"] == 24
    fit = fit_runs(runs, CHINCHILLA, bootstrap=0)
    assert fit.params["alpha"] == pytest.approx(0.34, rel=1e-3) and fit.params["E"] == pytest.approx(1.7, rel=1e-3)


def test_what_a_law_needs_is_asked_for_by_name(tmp_path: Path) -> None:
    put(tmp_path, "a", {"width": 64}, [{"tokens": 1e6, "loss": 2.0, "eval/loss": 2.1}])
    with pytest.raises(
        TableError, match=r"'loss' and 'eval/loss' both mean loss; .*--column NAME=HEADER says which counts"
    ):
        read_runs(tmp_path, CHINCHILLA, named={"params": "width"})
    with pytest.raises(TableError, match=r"params neither logged nor configured; found: run, .*--column params="):
        read_runs(tmp_path, CHINCHILLA, named={"loss": "loss"})
    with pytest.raises(UnknownNameError, match=r"'eval/los'.*eval/loss"):
        read_runs(tmp_path, CHINCHILLA, named={"loss": "eval/los"})
    with pytest.raises(UnknownNameError, match=r"column of the law: 'perplexity'"):
        read_runs(tmp_path, CHINCHILLA, named={"perplexity": "loss"})


def test_a_column_of_any_table_is_named() -> None:
    rows = [{"N": 1e7, "tokens": 1e9, "train": 2.0, "loss": 9.0}]
    runs, _ = read_runs(rows, CHINCHILLA, named={"params": "N", "loss": "train"})
    assert runs[["params", "loss"]].to_numpy().tolist() == [[1e7, 2.0]]
    with pytest.raises(TableError, match="row 2, column train: -1 is below"):
        read_runs([{**rows[0], "train": -1}], CHINCHILLA, named={"params": "N", "loss": "train"})


def test_damage_is_told(tmp_path: Path) -> None:
    path = put(tmp_path, "a", {}, [{"loss": 1.0}, {"loss": 0.5}])
    put(tmp_path, "b", {}, [])
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    sheet = read_sheet(tmp_path)
    assert sheet.cells["loss"].tolist() == ["1.0"]
    assert {note.code: len(note.details["files"]) for note in sheet.notes} == {"runs-broken-off": 1, "runs-empty": 1}
    for content, words in ((b"text", "begins with :W&B"), (whole[:60], "nothing was logged")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=words):
            read_sheet(path)
    path.write_bytes(whole.replace(b"0.5", b"0.x"))
    with pytest.raises(InputError, match="damaged, or of another version"):
        read_sheet(path)
