"""A corpus that is not Wikipedia, with questions made by rule: Debian's package lists.

    apt-cache dumpavail > Packages
    python scripts/debian_corpus.py Packages --out DIR [--passages 6000] [--questions 100] [--hyphens] [--seed 0]

Writes `corpus.jsonl` (one passage a package: what it is, its section, maintainer, size and dependencies) and
`questions.jsonl`: half of them parallel (two packages compared), half a chain (a property of the package another one depends
on). With `--hyphens` they may also be about packages whose names have one, which are harder to search for and give three
times as many chains: enough to learn from. The questions are templates over fields, so their answers and gold passages are
certain. Use: index the corpus, then evaluate the same policy over it and over Wikipedia; a policy that learned to split, not
to recite, keeps its split ratio.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    synopsis: str
    section: str
    maintainer: str
    size_kb: int
    depends: tuple[str, ...]

    def passage(self) -> dict[str, str]:
        needs = f" It depends on {', '.join(self.depends[:6])}." if self.depends else " It depends on no other package."
        text = (
            f"{self.name} is a Debian package: {self.synopsis}. It belongs to the section {self.section} and is maintained "
            f"by {self.maintainer}. Installed, it takes {self.size_kb} kB.{needs}"
        )
        return {"id": f"deb_{self.name}", "title": self.name, "text": text}


def read_packages(lines: Iterable[str]) -> Iterator[Package]:
    """The packages of a file in the format of Debian's package lists; one that lacks a field is passed over."""
    fields: dict[str, str] = {}
    for line in [*lines, ""]:
        line = line.rstrip("\n")
        if line and not line.startswith((" ", "\t")):
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        elif not line and fields:
            package = _package(fields)
            if package is not None:
                yield package
            fields = {}


def _package(fields: dict[str, str]) -> Package | None:
    synopsis = fields.get("Description") or fields.get("Description-en")
    maintainer = re.sub(r"\s*<[^>]*>", "", fields.get("Maintainer", "")).strip().strip('"')
    if not (fields.get("Package") and synopsis and maintainer and fields.get("Section")):
        return None
    size = fields.get("Installed-Size", "")
    return Package(
        fields["Package"],
        synopsis.rstrip("."),
        fields["Section"].rpartition("/")[2],
        maintainer,
        int(size) if size.isdigit() else 0,
        tuple(_names(fields.get("Depends", ""))),
    )


def _names(depends: str) -> Iterator[str]:
    """The packages that must be there: alternatives and versions are left out."""
    for part in depends.split(","):
        if "|" not in part and part.strip():
            yield re.split(r"[\s(:]", part.strip(), maxsplit=1)[0]


def make_questions(
    packages: Sequence[Package], num: int, draw: random.Random, has_hyphens: bool = False
) -> tuple[list[dict[str, Any]], set[str]]:
    """`num` questions, half parallel and half chained, and the packages they are about."""
    by_name = {package.name: package for package in packages}
    named = re.compile(r"[a-z][a-z0-9.+-]{3,24}" if has_hyphens else r"[a-z][a-z0-9.+]{3,24}")
    plain = [p for p in packages if p.size_kb > 0 and named.fullmatch(p.name)]
    chained = [
        (package, by_name[name])
        for package in plain
        for name in package.depends[:1]
        if name in by_name
        and not name.startswith("lib")
        and name != package.name
        and by_name[name].section != package.section
    ]
    draw.shuffle(plain)
    draw.shuffle(chained)
    if len(plain) < num or len(chained) < num - num // 2:
        raise SystemExit(f"too few packages for {num} questions: {len(plain)} to compare, {len(chained)} chains")
    records: list[dict[str, Any]] = []
    left = iter(plain)
    while len(records) < num // 2:
        a = next(left)
        if len(records) % 2:  # half of these are yes
            wants_same = len(records) % 4 == 1
            b = next((p for p in plain[::-1] if (p.section == a.section) == wants_same and p.name != a.name), None)
            if b is None:
                continue
            plain.remove(b)
            question = f"Do the Debian packages {a.name} and {b.name} belong to the same section?"
            records.append(_question(question, ["yes" if wants_same else "no"], "parallel", "same_section", a, b))
        else:
            b = next(left)
            if max(a.size_kb, b.size_kb) < 2 * min(a.size_kb, b.size_kb):
                continue
            larger = a if a.size_kb > b.size_kb else b
            question = f"Which Debian package takes more space when installed, {a.name} or {b.name}?"
            records.append(_question(question, [larger.name], "parallel", "larger", a, b))
    used: set[str] = set()
    for package, needed in chained:
        if len(records) == num:
            break
        if needed.name in used:  # one popular package must not be the answer to every chain
            continue
        used.add(needed.name)
        if len(records) % 2:
            question = (
                f"Who maintains the package that the Debian package {package.name} names first among its dependencies?"
            )
            answer = needed.maintainer
        else:
            question = f"To which section belongs the first package that the Debian package {package.name} depends on?"
            answer = needed.section
        records.append(_question(question, [answer], "sequential", "dependency", package, needed))
    if len(records) < num:
        raise SystemExit(f"only {len(records)} of {num} questions could be made; give a larger package list")
    for number, record in enumerate(records, start=1):
        record["id"] = f"debian-{number:03d}"
    return records, {title for record in records for title in record["supporting_titles"]}


def _question(question: str, answers: list[str], kind: str, type: str, *about: Package) -> dict[str, Any]:
    return {
        "id": "",
        "question": question,
        "golden_answers": answers,
        "dataset": "debian",
        "type": type,
        "kind": kind,
        "supporting_titles": [package.name for package in about],
    }


def build(
    packages: Sequence[Package], num_passages: int, num_questions: int, seed: int, out: Path, has_hyphens: bool = False
) -> tuple[int, int]:
    draw = random.Random(seed)
    unique = list({package.name: package for package in packages}.values())
    questions, needed = make_questions(unique, num_questions, draw, has_hyphens)
    others = [package for package in unique if package.name not in needed]
    draw.shuffle(others)
    chosen = needed | {package.name for package in others[: max(0, num_passages - len(needed))]}
    out.mkdir(parents=True, exist_ok=True)
    passages = [package.passage() for package in unique if package.name in chosen]
    for name, records in (("corpus.jsonl", passages), ("questions.jsonl", questions)):
        with (out / name).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    return len(passages), len(questions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path, help="a Packages file, or the output of apt-cache dumpavail")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=6000)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--hyphens", action="store_true", help="also ask about packages whose names have a hyphen")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with options.packages.open(encoding="utf-8", errors="replace") as file:
        packages = list(read_packages(file))
    sizes = build(packages, options.passages, options.questions, options.seed, options.out, options.hyphens)
    sys.stdout.write(f"{len(packages)} packages read; {sizes[0]} passages and {sizes[1]} questions in {options.out}\n")


if __name__ == "__main__":
    main()
