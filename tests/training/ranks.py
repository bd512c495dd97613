"""The processes of one training run, one or several as `accelerate launch` would start them, each killable by itself.

They are forked from a server that has the imports done: ten seconds for each start would make the tests too long.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from free_ports import free_port

IMPORTS = ["torch", "datasets", "peft", "trl", "parallelsearch.training.grpo", "parallelsearch.cli.app"]


def run_as(rank: int, world: int, port: int, output: str, work: Callable[..., None], arguments: Sequence[str]) -> None:
    """In the new process: one rank's part of the work, what it says in `output`. One process alone is told of no others."""
    with open(output, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if world > 1:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ |= {name: str(number) for name, number in numbers.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch

    torch.set_num_threads(1)
    work(*arguments)


def train(*arguments: str) -> None:
    from parallelsearch.cli.app import main

    sys.argv = ["parallelsearch", "train", *arguments]
    main()


def train_and_die(recipe: str, checkpoint: str) -> None:
    """It is killed when that checkpoint is written and not yet marked as whole."""
    from parallelsearch.training import checkpoints

    mark_complete = checkpoints.mark_complete

    def mark_or_die(folder: Path, step: int) -> None:
        if folder.name == checkpoint:
            os.kill(os.getpid(), signal.SIGKILL)
        mark_complete(folder, step)

    checkpoints.mark_complete = mark_or_die
    train(recipe)


class Ranks:
    """The processes of one start."""

    def __init__(self, recipe: Path, *options: str, world: int = 2, work: Callable[..., None] = train) -> None:
        """`work`, a function of a module, gets the path and the options in every process."""
        port = free_port()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTS)
        self.outputs = [recipe.with_suffix(f".rank{rank}") for rank in range(world)]
        arguments = (str(recipe), *options)
        self.processes: list[ForkServerProcess] = [
            context.Process(target=run_as, args=(rank, world, port, str(self.outputs[rank]), work, arguments))
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
