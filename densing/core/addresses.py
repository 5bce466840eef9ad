"""Arguments given in place of a file: URLs and model names."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

# A path that was made of an address has lost one of its two strokes.
_ADDRESS = re.compile(r"(?P<scheme>https?):/{1,2}(?P<rest>[^/\s].*)", re.IGNORECASE | re.DOTALL)
_HUB = re.compile(r"(?P<model>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)")
_HUB_PAGE = re.compile(r"(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<model>(?!datasets/|spaces/)[\w.-]+/[\w.-]+)/?")
_FILE = re.compile(
    r"\.(csv|tsv|txt|json|jsonl|ndjson|parquet|xlsx|xlsm|xls|ods|gz|zip|eval|toml|yaml|yml)$", re.IGNORECASE
)


def as_address(path: Path | str) -> str | None:
    """Return the address that a text, or a path made of one, stands for; None where it is none.

    Examples
    --------
    >>> as_address(Path("https://example.org/mine.csv")), as_address("mine.csv")
    ('https://example.org/mine.csv', None)
    """
    match = _ADDRESS.fullmatch(str(path))
    return f"{match['scheme'].lower()}://{match['rest']}" if match else None


def shown_address(address: str) -> str:
    """Return an address without what may be a secret in it.

    Examples
    --------
    >>> shown_address("https://me:word@example.org/mine.csv?token=1#gid=2")
    'https://example.org/mine.csv'
    """
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def is_there(path: Path | str) -> bool:
    """Return whether a path exists; a name that no system takes does not.

    Examples
    --------
    >>> is_there("."), is_there("x" * 5000)
    (True, False)
    """
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def what_instead(path: Path | str) -> str:
    """Return what to do about a file that is not there, for the end of a message.

    Examples
    --------
    >>> what_instead("mine.csv")
    'check the path'
    >>> what_instead("https://example.org/mine.csv").partition(" (")[0]
    'an address on the network, which is fetched only with --fetch'
    """
    address = as_address(path)
    page = _HUB_PAGE.fullmatch(address.partition("://")[2]) if address else None
    if address and page is None:
        return (
            "an address on the network, which is fetched only with --fetch (density, run, fit, catalog validate); or "
            "download the file and give its path"
        )
    named = page or _HUB.fullmatch(str(path))
    if named is None or (page is None and (_FILE.search(str(path)) or is_there(Path(path).parent))):
        return "check the path"
    name = named["model"]
    return (
        f"check the path; if {name} is a model on Hugging Face, measure it (densing eval --model hf --model_args "
        f"pretrained={name} --tasks olmo_ladder --out results/mine; densing density --results results/mine --reference "
        f"olmo-ladder), or look for published scores (densing catalog show {name.rpartition('/')[2]})"
    )
