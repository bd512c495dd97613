"""What a run was: frozen when it starts, compared when it is continued or set beside another.

`setup` is what decides the numbers: questions, dialect, prompt, policy, search, limits, decoding. `environment` is what may
explain a difference in speed: versions, machine, concurrency. Two set-ups are compared key by key, so that a message can
name what differs. Nothing here is secret: policies and searches describe themselves without keys.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parallelsearch.errors import DataError, UsageError
from parallelsearch.files import read_json, write_json

MANIFEST_VERSION = 1
MANIFEST_FILE = "manifest.json"
_PACKAGES = ("parallelsearch", "numpy", "bm25s", "aiohttp", "torch", "transformers", "peft", "faiss-cpu")


@dataclass(slots=True)
class Manifest:
    """The frozen description of one run."""

    setup: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    created: str = ""
    resumed: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each time the run was continued: when, and what of the environment differed."""
    version: int = MANIFEST_VERSION

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def write(self, folder: Path) -> None:
        write_json(folder / MANIFEST_FILE, self.to_dict())


@dataclass(frozen=True, slots=True)
class Difference:
    """One key that two set-ups do not share."""

    key: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.key}: {_short(self.first)} against {_short(self.second)}"


class _Missing:
    def __repr__(self) -> str:
        return "(nothing)"


MISSING = _Missing()


def differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> list[Difference]:
    """Every leaf that differs, with its dotted key, in order of the key."""
    found: list[Difference] = []
    for key in sorted({*first, *second}):
        a, b = first.get(key, MISSING), second.get(key, MISSING)
        name = f"{prefix}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{name}.")
        elif a != b:
            found.append(Difference(name, a, b))
    return found


def describe_machine() -> dict[str, Any]:
    """What may explain a difference in speed. No names of hosts or users."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu(),
        "gpus": _gpus(),
        "versions": versions(),
    }


def _gpus() -> list[str]:
    """The GPUs that torch sees, where something has imported it; it is not imported for this."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def versions(packages: Iterable[str] = _PACKAGES) -> dict[str, str]:
    """Of the packages that are installed; none of them is imported for it."""
    found: dict[str, str] = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def plain(value: Any) -> Any:
    """The value as JSON will give it back, so that a fresh manifest equals one that was read."""
    return json.loads(json.dumps(value, default=str))


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    path = Path(folder) / MANIFEST_FILE
    try:
        record = read_json(path)
    except FileNotFoundError:
        raise UsageError(
            f"'{folder}' is not a run folder: it has no {MANIFEST_FILE}. Make one with: parallelsearch eval --out {folder}"
        ) from None
    if not isinstance(record, dict) or not isinstance(record.get("setup"), dict):
        raise DataError(str(path), None, "is not the manifest of a run")
    if record.get("version") != MANIFEST_VERSION:
        raise DataError(
            str(path), None, f"has version {record.get('version')!r}; this release reads {MANIFEST_VERSION}"
        )
    known = {name: record[name] for name in Manifest.__dataclass_fields__ if name in record}
    return Manifest(**known)


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
