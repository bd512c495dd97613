"""The page of the viewer: one template and a few plain scripts, put together for serving or into one file.

Served, the scripts are files of the same origin. In one file they are inline, and the content policy names the hash of
each, so that no other script can run whatever the data holds; the data itself is base64 in a block that is never executed.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files

STYLE = "viewer.css"
SCRIPTS = ("source.js", "rows.js", "list.js", "detail.js", "viewer.js")
"""In the order in which they need each other. They are classic scripts: modules do not load from a file on disk."""
_ASSETS_MARK, _DATA_MARK = "<!-- assets -->", "<!-- data -->"


@lru_cache
def read_asset(name: str) -> str:
    return (files("parallelsearch.viewer") / "assets" / name).read_text(encoding="utf-8")


def served_page() -> str:
    """The page that asks its server for data. Its content policy comes as a header."""
    tags = [f'<link rel="stylesheet" href="{STYLE}">', *(f'<script defer src="{name}"></script>' for name in SCRIPTS)]
    return read_asset("viewer.html").replace(_ASSETS_MARK, "\n".join(tags)).replace(_DATA_MARK, "")


def exported_page(data: str) -> str:
    """The page with everything in it. `data` is JSON of base64 strings, so it cannot end the block it stands in."""
    style = read_asset(STYLE)
    script = "\n".join(read_asset(name) for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="referrer" content="no-referrer">',
        f"<style>{style}</style>",
    ]
    body = f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script>'
    return read_asset("viewer.html").replace(_ASSETS_MARK, "\n".join(head)).replace(_DATA_MARK, body)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
