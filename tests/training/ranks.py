"""Several processes of one training run, as `accelerate launch` would start them, each killable by itself.

They are forked from a server that has the imports done: ten seconds for each start would make the tests too long.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from free_ports import free_port

IMPORTS = ["torch", "datasets", "peft", "trl", "parallelsearch.training.grpo", "parallelsearch.cli.app"]


def train_as(rank: int, world: int, port: int, arguments: Sequence[str], output: str) -> None:
    """In the new process: one rank's part of the run, what it says in `output`."""
    with open(output, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch

    from parallelsearch.cli.app import main

    torch.set_num_threads(1)
    sys.argv = ["parallelsearch", "train", *arguments]
    main()


class Ranks:
    """The processes of one start."""

    def __init__(self, recipe: Path, *options: str, world: int = 2) -> None:
        port = free_port()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTS)
        self.outputs = [recipe.with_suffix(f".rank{rank}") for rank in range(world)]
        self.processes: list[ForkServerProcess] = [
            context.Process(target=train_as, args=(rank, world, port, [str(recipe), *options], str(self.outputs[rank])))
            for rank in range(world)
        ]
        for process in self.processes:
            process.start()

    def are_alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def kill(self) -> None:
        """SIGKILL, all of them."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def wait(self, timeout_s: float) -> list[int | None]:
        """Exit statuses; None for one that hung, which is killed."""
        for process in self.processes:
            process.join(timeout_s)
        statuses = [process.exitcode for process in self.processes]
        self.kill()
        return statuses

    def said(self) -> str:
        return "\n".join(path.read_text(encoding="utf-8") for path in self.outputs)
