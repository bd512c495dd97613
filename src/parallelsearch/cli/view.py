"""`view` and `score`: trajectories that are there already, looked at or rewarded again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parallelsearch.cli.options import AllowedHostOption, HostOption, JsonOption, PortOption, console, given, say
from parallelsearch.errors import ParallelSearchError, UsageError

if TYPE_CHECKING:
    from parallelsearch.trajectory import Trajectory


def view(
    runs: Annotated[list[Path], typer.Argument(help="A trajectories.jsonl file or a run's folder; two to compare.")],
    html: Annotated[Path | None, typer.Option(help="Write a page that needs no server.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Show the pages in a browser, from this machine.")] = False,
    preset: Annotated[str | None, typer.Option("--reward", metavar="PRESET", help="Score with this preset.")] = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8090,
    allowed_host: AllowedHostOption = None,
    id: Annotated[str | None, typer.Option(help="In the terminal: only the trajectory with this id.")] = None,
    limit: Annotated[int, typer.Option(help="In the terminal: how many to show.")] = 10,
    wrong: Annotated[bool, typer.Option("--wrong", help="In the terminal: only wrong answers.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at trajectories in the terminal or in a browser.

    The terminal shows the first few; --html and --serve give all of them, in a browser.

    Example: parallelsearch view trajectories.jsonl --limit 2

    Example: parallelsearch view trajectories.jsonl --html view.html
    """
    if html is not None:
        from parallelsearch.viewer.html import export_html

        report = export_html(list(runs), html, reward=preset)
        say(f"{report.num_listed} trajectories, {report.num_bytes / 1e6:.1f} MB in {html}")
        for note in [*report.notes, *([report.left_out] if report.left_out else [])]:
            say(f"note: {note}", err=True)
        return
    if serve:
        from parallelsearch.server.limits import ServerSettings
        from parallelsearch.viewer.app import run_viewer

        settings = ServerSettings(host=host, port=port, allowed_hosts=tuple(allowed_host or ()))
        run_viewer(list(runs), settings, reward=preset)
        return
    if len(runs) > 1:
        raise UsageError("several runs are shown side by side in a browser: add --html FILE or --serve")
    _view_in_terminal(runs[0], id, limit, wrong, as_json)


def _view_in_terminal(file: Path, id: str | None, limit: int, wrong: bool, as_json: bool) -> None:
    from parallelsearch.cli.terminal import trajectory_view
    from parallelsearch.evaluation.folder import TRAJECTORIES_FILE
    from parallelsearch.trajectory import read_trajectories

    def wanted(trajectory: Trajectory) -> bool:
        if id is not None and trajectory.id != id:
            return False
        return not (wrong and trajectory.is_right)

    screen = console()
    num_shown = num_read = 0
    for trajectory in read_trajectories(file / TRAJECTORIES_FILE if file.is_dir() else file):
        num_read += 1
        if not wanted(trajectory):
            continue
        if as_json:
            say(trajectory.to_json())
        else:
            screen.print(trajectory_view(trajectory, screen.width))
            screen.print()
        num_shown += 1
        if num_shown >= limit:
            break
    if num_shown == 0:
        raise ParallelSearchError(f"none of the {num_read} trajectories in '{file}' fits")


def score(
    file: Annotated[Path, typer.Argument(help="A run folder, or a trajectories.jsonl file.")],
    preset: Annotated[
        str | None,
        typer.Option(
            "--reward",
            metavar="PRESET",
            help="paper, reference, gated (default), coverage, label-free, or module:function, one of your own.",
        ),
    ] = None,
    lambda_d: Annotated[float | None, typer.Option(help="Weight of decomposition (paper, reference).")] = None,
    alpha: Annotated[float | None, typer.Option(help="Its factor on parallel questions.")] = None,
    lambda_s: Annotated[float | None, typer.Option(help="Weight of search count.")] = None,
    lambda_f: Annotated[float | None, typer.Option(help="Weight of format.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Score trajectories with a reward, each component apart.

    Example: parallelsearch score trajectories.jsonl --reward gated --json
    """
    from parallelsearch.evaluation.folder import TRAJECTORIES_FILE
    from parallelsearch.rewards import DEFAULT_PRESET, Weights, reward
    from parallelsearch.trajectory import read_trajectories

    preset = preset or DEFAULT_PRESET
    weights = Weights(**given(decomposition=lambda_d, alpha=alpha, search_count=lambda_s, format=lambda_f))
    file = file / TRAJECTORIES_FILE if file.is_dir() else file  # as every other command that reads runs
    rows: list[dict[str, Any]] = []
    for number, trajectory in enumerate(read_trajectories(file), start=1):
        row = {"id": trajectory.id or str(number), **reward(trajectory, preset, weights).to_dict()}
        if as_json:
            say(json.dumps(row, ensure_ascii=False))
        rows.append(row)
    if not rows:
        raise ParallelSearchError(f"'{file}' holds no trajectories")
    if not as_json:
        from parallelsearch.cli.terminal import score_table

        console().print(score_table(rows, preset))
