"""Training tests share two cores with the rest: one thread each, no part of transformers looks for a network, and what the
tests themselves hold is not looked through for garbage."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run unfreezes at its end what it froze, and with it the million objects that the tests froze at their start: the next
    run would look through them all, for most of a second. In a process of its own a run has nobody else's objects."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
