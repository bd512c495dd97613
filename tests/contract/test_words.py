"""How the docs are written, as far as a program can tell: lines one can read, links that lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
MAX_COLUMNS = 120
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.M | re.S)
SHIPS = re.compile(
    r"\b(?:shipped|packaged) (?:policy|adapters?|model|SmolLM2)\b|\bpolicy that ships\b|\badapter (?:of|in) the package\b"
)
FIGURE = re.compile(r"(?<![\w.])\.\d{2,3}\b|\d%")
ADAPTER = re.compile(r"\b(?:parallel|sequential)-\d\b")


def prose(text: str) -> list[str]:
    """Without code and tables; a line that is nothing but a link or a picture cannot be broken, either."""
    lines = CODE.sub("", text).splitlines()
    return [line for line in lines if not line.startswith(("|", "    ")) and not re.fullmatch(r"!?\[.*\]\(.*\)", line)]


def anchors(path: Path) -> set[str]:
    """The headings as GitHub links to them."""
    heads = re.findall(r"^#+ (.+)$", CODE.sub("", path.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_fit_a_screen(page):
    long = [line for line in prose(page.read_text()) if len(line) > MAX_COLUMNS]
    assert not long, f"{len(long)} lines over {MAX_COLUMNS} columns"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page):
    """Those with a folder before them; a bare name may be another project's."""
    for name in re.findall(r"(?<![$\w])[\w.-]+/[\w/.-]+\.(?:py|toml)\b", page.read_text()):
        assert (ROOT / name).exists() or (ROOT / "src" / "parallelsearch" / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_of_what_ships_name_the_adapter(page):
    """What ships changes and a figure does not: a paragraph or table that has both names the adapter that was measured."""
    for part in CODE.sub("", page.read_text()).split("\n\n"):
        if SHIPS.search(part) and FIGURE.search(part):
            assert ADAPTER.search(part), part


def test_the_results_lead_with_a_table():
    """Five minutes: at 250 words a minute, and a glance at each table. What a script writes under a table belongs to it."""
    text = (ROOT / "docs" / "results.md").read_text()
    head, _, _ = text.partition("\n## ")
    assert "\n|---|" in head
    written = re.sub(r"<!-- rows: .*?<!-- end of rows -->", "", text, flags=re.S)
    assert len(" ".join(prose(written)).split()) < 1_500
