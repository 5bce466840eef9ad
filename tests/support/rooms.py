"""The rooms of the package as a table and a picture: ``python -m tests.support.rooms`` writes both into
docs/architecture.md, and a test holds them against the code."""

from __future__ import annotations

import ast
from collections import defaultdict
from html import escape

from tests.support.folders import ROOT
from tests.support.house import PACKAGE, WINGS, House, code_lines

PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
BEGIN, END = "<!-- rooms: begin -->", "<!-- rooms: end -->"
WIDTH, HEIGHT, GAP, STEP = 132, 34, 14, 74
FILLS = {"scores": "#dbeafe", "efficiency": "#dcfce7", "": "#f3f4f6"}


def rooms(house: House) -> dict[str, str]:
    """Return the sentence of each room: the first line of its face."""
    named = {}
    for package in sorted(house.packages - WINGS):
        if package.rpartition(".")[0] in WINGS:
            named[package.removeprefix(f"{PACKAGE}.")] = (ast.get_docstring(house.trees[package]) or "").split("\n")[0]
    return named


def room_of(module: str, named: dict[str, str]) -> str:
    """Return the room of a module, empty for those in none."""
    parts = module.split(".")[1:]
    return next((name for n in (2, 1) if (name := ".".join(parts[:n])) in named), "")


def imports(house: House, named: dict[str, str]) -> dict[str, set[str]]:
    """Return the rooms that each room imports."""
    uses: dict[str, set[str]] = defaultdict(set)
    for module, found in house.imports.items():
        room = room_of(module, named)
        uses[room] |= {room_of(home, named) for _, home, _ in found} - {room, ""}
    return {room: uses[room] for room in named}


def layers(uses: dict[str, set[str]]) -> dict[str, int]:
    """Return how high each room stands: one above the highest it imports."""
    level: dict[str, int] = {}

    def height(room: str) -> int:
        if room not in level:
            level[room] = 1 + max((height(other) for other in uses[room]), default=-1)
        return level[room]

    for room in uses:
        height(room)
    return level


def beneath(room: str, uses: dict[str, set[str]]) -> set[str]:
    """Return all rooms below a room, imported or reached through others."""
    return uses[room].union(*(beneath(other, uses) for other in uses[room]))


def picture(house: House) -> str:
    """Return the rooms as boxes in layers; arrows where no longer way leads to the same room."""
    uses = imports(house, rooms(house))
    level = layers(uses)
    rows: dict[int, list[str]] = defaultdict(list)
    order = ["scores", "", "efficiency"]
    for room in sorted(uses, key=lambda room: (order.index(_wing(room)), room)):
        rows[level[room]].append(room)
    width = max(len(row) for row in rows.values()) * (WIDTH + GAP) + GAP
    top = max(rows)
    at = {}
    for number, row in rows.items():
        start = (width - len(row) * (WIDTH + GAP) + GAP) / 2
        for place, room in enumerate(row):
            at[room] = start + place * (WIDTH + GAP), GAP + (top - number) * STEP
    lines, boxes = [], []
    for room, (x, y) in at.items():
        below: set[str] = set().union(*(beneath(other, uses) for other in uses[room]))
        for other in sorted(uses[room] - below):
            x2, y2 = at[other]
            lines.append(
                f'<path d="M{x + WIDTH / 2:.0f} {y + HEIGHT} C{x + WIDTH / 2:.0f} {y + HEIGHT + 24} '
                f'{x2 + WIDTH / 2:.0f} {y2 - 24} {x2 + WIDTH / 2:.0f} {y2}"/>'
            )
        boxes.append(
            f'<rect x="{x:.0f}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="{FILLS[_wing(room)]}"/>'
            f'<text x="{x + WIDTH / 2:.0f}" y="{y + HEIGHT / 2 + 4:.0f}">{escape(room)}</text>'
        )
    height = GAP * 2 + top * STEP + HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12" text-anchor="middle"><title>Rooms of densing: each imports those below it</title>\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        '<g fill="none" stroke="#9ca3af">\n' + "\n".join(lines) + "\n</g>\n"
        '<g stroke="none">\n' + "\n".join(boxes) + "\n</g>\n</svg>\n"
    )  # fmt: skip


def _wing(room: str) -> str:
    return room.partition(".")[0] if "." in room else ""


def table(house: House) -> str:
    """Return the rooms as Markdown, from the top: what each is for, and what it imports."""
    named = rooms(house)
    uses = imports(house, named)
    level = layers(uses)
    rows = ["| room | what it is for | imports |", "|---|---|---|"]
    for room in sorted(named, key=lambda room: (-level[room], room)):
        below = ", ".join(sorted(uses[room] - {"core"})) or "–"
        rows.append(f"| `{room.replace('.', '/')}` | {named[room]} | {below.replace('.', '/')} |")
    return "\n".join(rows)


def sizes(house: House) -> str:
    """Return files, lines and lines of code of each room, as Markdown."""
    named = rooms(house)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for module, path in house.paths.items():
        text = path.read_text(encoding="utf-8")
        for key in (room_of(module, named) or PACKAGE, "all"):
            counts[key] = [a + b for a, b in zip(counts[key], (1, text.count("\n"), code_lines(text)), strict=True)]
    rows = ["| room | files | lines | code |", "|---|---|---|---|"]
    rows += [f"| {room} | {files} | {lines} | {code} |" for room, (files, lines, code) in sorted(counts.items())]
    return "\n".join(rows)


def page(text: str, house: House) -> str:
    """Return the page with today's table between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(house)}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Write table and picture."""
    house = House()
    PICTURE.write_text(picture(house), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), house), encoding="utf-8")


if __name__ == "__main__":
    main()
