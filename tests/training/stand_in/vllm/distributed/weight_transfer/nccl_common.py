"""The trainer's end of the weight transfer. In place of NCCL: one socket on loopback, opened in the same rendezvous."""

from __future__ import annotations

from multiprocessing.connection import Connection, Listener
from types import SimpleNamespace
from typing import Any


class Group:
    """What TRL keeps as its communicator."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.group = SimpleNamespace(store=None, socket=None)


def trainer_init(init_info: dict[str, Any]) -> Group:
    with Listener((init_info["master_address"], init_info["master_port"])) as listener:
        return Group(listener.accept())
