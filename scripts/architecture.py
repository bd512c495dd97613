"""Draws the architecture from the imports: docs/images/architecture.svg, with the nouns of the core and the families.

    python scripts/architecture.py            # draw it again
    python scripts/architecture.py --check    # exit 1 if the picture is not that of the imports

`LEVELS` is the map that tests/contract/test_structure.py holds the code to; the arrows are what the modules really import.
An arrow is left out where a longer way leads to the same part, so that the picture can be read. Standard library only.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "parallelsearch"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
MODULES = {
    path: ".".join(("parallelsearch", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(SRC.rglob("*.py"))
}

# Nouns of the core, each a module, and families, each a folder, with a word on what it is. A level imports from the levels
# above it in this list; what stands on one line does not import from its neighbours. Inside a folder, cycles are still
# forbidden. A module of a family has a level of its own where it puts together what readers of the family made of it.
LEVELS: list[dict[str, str]] = [
    {"errors": "every exception", "lazy": "public names", "untrusted": "text from outside", "own_code": "its hash"},
    {"files": "read, replace", "places": "caches, locks", "options": "in an address", "named": "module:name"},
    {"http": "one client", "config": "TOML to settings", "answers": "exact match, F1", "grammar": "tags of a turn"},
    {"retrieval": "search backends", "limits": "where it ends"},
    {"markup": "a record as HTML"},
    {"trajectory": "the one record", "claims": "held to passages"},
    {"observation": "hits to text", "coverage": "parts asked for", "gold": "evidence at hand"},
    {"dialect": "how a model talks", "reading": "another model answers"},
    {"search": "many queries at once", "policy": "what writes a turn", "dialects": "the known ones"},
    {"rollout": "the loop", "joined": "several searches"},
    {"rollouts": "many at once", "retrieving": "split, passages"},
    {"events": "read along", "telemetry": "spans", "rewards": "record to numbers", "data": "questions, demo"},
    {"addresses": "names to objects", "grounding": "what it rests on"},
    {"conversing": "follow-ups, talks"},
    {"agent": "Python's front door"},
    {"evaluation": "run, measure, compare", "integrations": "other frameworks"},
    {"server": "HTTP, MCP, page"},
    {"training": "SFT, GRPO, PPO, verl"},
    {"coldstart": "first trajectories", "viewer": "runs in a browser"},
    {"evaluation.whole": "run, page and report"},
    {"teach": "a corpus to a policy"},
    {"cli": "the commands"},
    {"__main__": ""},
]


def part_of(module: str) -> str:
    """The noun or family of a module."""
    path = module.split(".")[1:]
    for name in (".".join(path[:2]), path[0]):
        if any(name in names for names in LEVELS):
            return name
    raise LookupError(f"say in LEVELS of scripts/architecture.py where '{path[0]}' belongs")


def level_of(module: str) -> int:
    part = part_of(module)
    return next(number for number, names in enumerate(LEVELS) if part in names)


def _is_for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def exports_of(path: Path) -> dict[str, str]:
    """The names that a package gives lazily, and the module that each comes from: what it tells type checkers."""
    return {
        alias.name: node.module
        for block in ast.parse(path.read_text(encoding="utf-8")).body
        if _is_for_checkers(block)
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


EXPORTS = {module: exports_of(path) for path, module in MODULES.items() if path.name == "__init__.py"}


def home_of(module: str, name: str) -> str:
    """The module in which a name is written that `module` may only pass on."""
    while name in EXPORTS.get(module, {}):
        module = EXPORTS[module][name]
    return module


@cache
def imports_of(path: Path) -> set[str]:
    """The package's own modules that a file imports, anywhere in it, but for type checking alone."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {id(node) for block in ast.walk(tree) if _is_for_checkers(block) for node in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {home_of(node.module, alias.name) for alias in node.names}
            found.add(node.module)
    known = set(MODULES.values())
    return {name for name in found if name in known and name != "parallelsearch"}


# ---- the picture -----------------------------------------------------------------------------------------------------

HIDDEN = {"__main__", "lazy"}
"""Drawn, they would say nothing: one calls `cli`, the other is imported by every family."""
WIDTH, BOX_WIDTH, BOX_HEIGHT, ROW_HEIGHT, GAP, MARGIN = 780, 156, 38, 68, 16, 12
SWEEPS = 24
Edges = dict[str, set[str]]


def edges() -> Edges:
    """Which part imports which, as the modules do."""
    found: Edges = {name: set() for names in LEVELS for name in names}
    for path, module in MODULES.items():
        if module != "parallelsearch":
            found[part_of(module)] |= {part_of(other) for other in imports_of(path)} - {part_of(module)}
    return {name: others - HIDDEN for name, others in found.items() if name not in HIDDEN}


def _reached(found: Edges, name: str) -> set[str]:
    return found[name].union(*(_reached(found, other) for other in found[name]))


def reduced(found: Edges) -> Edges:
    """Without the arrows whose end is reached over another arrow, too."""
    reached = {name: _reached(found, name) for name in found}
    return {
        name: {one for one in others if not any(one in reached[other] for other in others)}
        for name, others in found.items()
    }


class _Layout:
    """Boxes in rows, the last level on top. An arrow over several rows gets a place in each, so that no box hides it."""

    def __init__(self, arrows: Edges) -> None:
        shown = [[name for name in names if name in arrows] for names in reversed(LEVELS)]
        self.rows: list[list[str]] = [names for names in shown if names]
        self.row_of = {name: number for number, names in enumerate(self.rows) for name in names}
        self.ways = {(one, other): self._way(one, other) for one in arrows for other in sorted(arrows[one])}
        self.neighbours: dict[str, list[str]] = {name: [] for names in self.rows for name in names}
        for way in self.ways.values():
            for one, other in itertools.pairwise(way):
                self.neighbours[one].append(other)
                self.neighbours[other].append(one)
        self.x = dict.fromkeys(self.neighbours, 0.0)
        for names in self.rows:
            self._spread(names)
        for sweep in range(SWEEPS):
            for names in self.rows if sweep % 2 == 0 else reversed(self.rows):
                self._settle(names, sweep)
        ends = [self.x[name] for name in self.x if ">" not in name]
        shift = (WIDTH - min(ends) - max(ends)) / 2
        self.x = {name: x + shift for name, x in self.x.items()}

    def _way(self, one: str, other: str) -> list[str]:
        """The two boxes and the points between them, one a row."""
        way = [one]
        for row in range(self.row_of[one] + 1, self.row_of[other]):
            point = f"{one}>{other}>{row}"
            self.rows[row].append(point)
            self.row_of[point] = row
            way.append(point)
        return [*way, other]

    def _spread(self, names: list[str]) -> None:
        total = sum(self._width(name) + GAP for name in names) - GAP
        left = (WIDTH - total) / 2
        for name in names:
            self.x[name] = left + self._width(name) / 2
            left += self._width(name) + GAP

    def _settle(self, names: list[str], sweep: int) -> None:
        """Everything goes to the middle of its neighbours, as far as the others in its row leave room."""
        wish = {
            name: sum(self.x[other] for other in self.neighbours[name]) / len(self.neighbours[name])
            if self.neighbours[name]
            else self.x[name]
            for name in names
        }
        if sweep < SWEEPS * 2 // 3:  # first the order, then only the places
            names.sort(key=lambda name: (wish[name], name))
        for name in names:
            self.x[name] = wish[name]
        for _ in range(20):
            for one, other in itertools.pairwise(names):
                overlap = (self._width(one) + self._width(other)) / 2 + GAP - (self.x[other] - self.x[one])
                if overlap > 0:
                    self.x[one] -= overlap / 2
                    self.x[other] += overlap / 2
            for name in names:
                half = self._width(name) / 2
                self.x[name] = min(max(self.x[name], MARGIN + half), WIDTH - MARGIN - half)

    @staticmethod
    def _width(name: str) -> int:
        return 10 if ">" in name else BOX_WIDTH

    def place(self, name: str) -> tuple[float, float]:
        return round(self.x[name], 1), MARGIN + self.row_of[name] * ROW_HEIGHT + BOX_HEIGHT / 2


def _arrow(layout: _Layout, way: list[str]) -> str:
    """Straight down beside the boxes of a row, bent only between two rows."""
    x, y = layout.place(way[0])
    y += BOX_HEIGHT / 2
    d = [f"M{x:g},{y:g}"]
    for name in way[1:]:
        next_x, middle = layout.place(name)
        next_y = middle - BOX_HEIGHT / 2 - (3 if name == way[-1] else 0)
        bend = (y + next_y) / 2
        d.append(f"C{x:g},{bend:g} {next_x:g},{bend:g} {next_x:g},{next_y:g}")
        x, y = next_x, middle + BOX_HEIGHT / 2
        if name != way[-1]:
            d.append(f"V{y:g}")
    return f'<path d="{" ".join(d)}" class="arrow" marker-end="url(#head)"/>'


def _box(layout: _Layout, name: str) -> str:
    x, y = layout.place(name)
    left, top = round(x - BOX_WIDTH / 2, 1), y - BOX_HEIGHT / 2
    says = next(names[name] for names in LEVELS if name in names)
    is_family = (SRC / name.replace(".", "/")).is_dir()
    label = name.replace(".", "/") + ("/" if is_family else ".py")
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" '
        f'class="{"family" if is_family else "noun"}"/>'
        f'<text x="{x:g}" y="{top + 16:g}" class="name">{label}</text>'
        f'<text x="{x:g}" y="{top + 31:g}" class="says">{says}</text>'
    )


STYLE = """
.arrow { fill: none; stroke: #7a8594; stroke-width: 1.3 }
.noun { fill: #fff6dd; stroke: #b98900 }
.family { fill: #e3eefb; stroke: #2f6db5 }
text { font-family: system-ui, sans-serif; text-anchor: middle; fill: #1c2733 }
.name { font-size: 13px; font-weight: 600 }
.says { font-size: 11px; fill: #46515e }
"""


def picture() -> str:
    layout = _Layout(reduced(edges()))
    height = 2 * MARGIN + (len(layout.rows) - 1) * ROW_HEIGHT + BOX_HEIGHT
    names = [name for row in layout.rows for name in row if ">" not in name]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'role="img" aria-label="Modules and families of the package, and which imports which">',
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="5" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" fill="#7a8594"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *(_arrow(layout, way) for way in layout.ways.values()),
            *(_box(layout, name) for name in names),
            "</svg>",
            "",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draw the architecture from the imports.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the picture is out of date")
    drawn = picture()
    if parser.parse_args(arguments).check:
        if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == drawn:
            return 0
        print(f"{PICTURE.relative_to(ROOT)} is not that of the imports; type: python scripts/architecture.py")
        return 1
    PICTURE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
