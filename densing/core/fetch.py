"""Files fetched from the network, which happens on request only."""

from __future__ import annotations

import hashlib
import logging
import re
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from densing.core.addresses import shown_address
from densing.core.errors import InputError
from densing.core.files import MAX_BYTES, cache_folder, replacing

LOG = logging.getLogger(__name__)
SECONDS = 60.0
_GOOGLE = re.compile(r"docs\.google\.com/spreadsheets/d/(?P<id>[\w-]+)")


def fetch_file(address: str) -> Path:
    """Fetch a file into the cache and return where it lies; a sheet of Google Sheets as CSV.

    Parameters
    ----------
    address : str
        http or https.

    Raises
    ------
    InputError
        When it cannot be fetched, is too large or is a web page.
    """
    shown = shown_address(address)
    request = urllib.request.Request(sheet_address(address), headers={"User-Agent": "densing"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            data = answer.read(MAX_BYTES + 1)
            kind = answer.headers.get_content_type()
    except (OSError, ValueError, HTTPException, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise InputError(f"{shown}: cannot fetch ({reason}); download the file and give its path") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{shown}: larger than {MAX_BYTES // 2**20} MiB; download it, and split the file")
    if kind == "text/html" or data.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        raise InputError(f"{shown}: a web page, not a file; give the address of the file itself, or download it")
    name = re.sub(r"[^\w.-]", "_", unquote(urlsplit(address).path).rpartition("/")[2]) or "table"
    if _GOOGLE.search(address):
        name = "sheet.csv"
    path = cache_folder() / "fetched" / hashlib.sha256(address.encode()).hexdigest()[:12] / name
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    LOG.info("fetched %s, %d bytes", shown, len(data))
    return path


def sheet_address(address: str) -> str:
    """Return the address under which Google Sheets gives a sheet as CSV; every other address as it is.

    Examples
    --------
    >>> sheet_address("https://docs.google.com/spreadsheets/d/1aB/edit#gid=7").partition("/d/")[2]
    '1aB/export?format=csv&gid=7'
    """
    match = _GOOGLE.search(address)
    if match is None or "/export" in address or "/pub" in address:
        return address
    parts = urlsplit(address)
    sheet = (parse_qs(parts.fragment).get("gid") or parse_qs(parts.query).get("gid") or ["0"])[0]
    return f"https://docs.google.com/spreadsheets/d/{match['id']}/export?format=csv&gid={sheet}"
