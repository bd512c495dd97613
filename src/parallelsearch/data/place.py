"""Where data files lie: the folder that `$PARALLELSEARCH_DATA` names, and the forms a file in it may have."""

from __future__ import annotations

import os
from pathlib import Path

DATA_VARIABLE = "PARALLELSEARCH_DATA"
SUFFIXES = (".jsonl.zst", ".jsonl", ".jsonl.gz", ".parquet")


def data_folder() -> Path | None:
    value = os.environ.get(DATA_VARIABLE)
    return Path(value) if value else None


def data_file(stem: str) -> Path | None:
    """The file FOLDER/STEM in whatever form it is there, or None."""
    folder = data_folder()
    paths = [folder / f"{stem}{suffix}" for suffix in SUFFIXES] if folder is not None else []
    return next((path for path in paths if path.is_file()), None)
