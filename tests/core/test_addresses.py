"""What is given where a file is expected: addresses are fetched on request alone, names of models get advice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from densing.core.addresses import what_instead
from densing.core.errors import InputError
from densing.core.fetch import fetch_file, sheet_address
from densing.core.table_io import read_sheet
from densing.efficiency.traces import find_traces
from densing.scores.evals import read_results

TABLE = b"model,params,benchmark,score\nmine,3e9,mmlu,0.62\n"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """The address of a server on this machine, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            page = self.path.startswith("/page")
            self.send_response(200 if page or self.path.startswith("/mine") else 404)
            self.send_header("Content-Type", "text/html" if page else "text/csv")
            self.end_headers()
            self.wfile.write(b"<!doctype html>" if page else TABLE)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    monkeypatch.setenv("DENSING_CACHE", str(tmp_path / "cache"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_address[1]}", asked
        found.shutdown()


def test_a_file_is_fetched_into_the_cache(server: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = server
    path = fetch_file(f"{address}/mine%20table.csv?token=secret")
    assert path.name == "mine_table.csv" and path.is_relative_to(tmp_path / "cache")
    assert path.read_bytes() == TABLE and asked == ["/mine%20table.csv?token=secret"]
    with pytest.raises(InputError, match=r"/page: a web page, not a file; give the address of the file itself"):
        fetch_file(f"{address}/page")
    with pytest.raises(InputError, match=r"/gone\.csv: cannot fetch \(.*Not Found\); download the file") as caught:
        fetch_file(f"{address}/gone.csv?token=secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("read", [read_sheet, lambda path: read_results(path), lambda path: find_traces([path])])
def test_nothing_is_fetched_unasked(server: tuple[str, list[str]], read: object) -> None:
    address, asked = server
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:\d+/mine\.csv: an address on the network") as caught:
        read(Path(f"{address}/mine.csv?token=secret"))  # type: ignore[operator]
    assert asked == [] and "secret" not in str(caught.value) and "download" in str(caught.value)


def test_a_sheet_of_google_is_asked_for_as_csv() -> None:
    page = "https://docs.google.com/spreadsheets/d/1a-B_c/edit"
    export = "https://docs.google.com/spreadsheets/d/1a-B_c/export?format=csv&gid="
    assert sheet_address(f"{page}#gid=12") == sheet_address(f"{page}?gid=12#gid=12") == f"{export}12"
    assert sheet_address(page) == f"{export}0"
    for other in (f"{export}3", "https://example.org/a.csv"):
        assert sheet_address(other) == other


@pytest.mark.parametrize("given", ["org/tiny-1b", "https://huggingface.co/org/tiny-1b", "https://hf.co/org/tiny-1b/"])
def test_the_name_of_a_model_is_told_what_to_do(given: str) -> None:
    said = what_instead(given)
    assert "pretrained=org/tiny-1b" in said and "densing catalog show tiny-1b" in said
    with pytest.raises(InputError, match=r"if org/tiny-1b is a model on Hugging Face, measure it \(densing eval"):
        read_sheet(given)


@pytest.mark.parametrize("given", ["mine.csv", "data/mine.csv", "data/runs.json.gz", "a/b/c", "tests/none", "x" * 5000])
def test_other_paths_are_paths(given: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    assert what_instead(given) == "check the path"


def test_data_sets_are_addresses_like_others() -> None:
    assert "--fetch" in what_instead("https://huggingface.co/datasets/org/scores")


@pytest.mark.parametrize("name", ["x" * 5000, "a" * 300 + "/b", "y" * 5000 + ".xlsx#S", "z" * 400 + ".wandb", "a\0b"])
def test_names_that_no_system_takes_are_refused_in_words(name: str) -> None:
    for read in (read_sheet, read_results):
        with pytest.raises(InputError):
            read(name)
