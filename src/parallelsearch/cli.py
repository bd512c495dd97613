"""The command line: names to objects, nothing else. Heavy modules are imported by the command that needs them.

Exit status: 0 done, 1 failed, 2 used wrongly. A user's mistake prints one message and no traceback.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from parallelsearch.commands import data, evaluating, serving, training
from parallelsearch.commands.options import (
    AllowedHostOption,
    HostOption,
    JsonOption,
    KOption,
    PolicyOption,
    PortOption,
    SearchOption,
    SeedOption,
    console,
    progress,
)
from parallelsearch.errors import ParallelSearchError, UsageError

if TYPE_CHECKING:
    from parallelsearch.policy.base import Policy
    from parallelsearch.trajectory import Trajectory

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Search agents that split a question and look up all its parts at once.",
)
app.add_typer(serving.app, name="serve")
app.add_typer(data.app, name="data")
app.command("eval")(evaluating.evaluate_command)
app.command("compare")(evaluating.compare_command)
app.command("coldstart")(training.coldstart)
app.command("train")(training.train)
app.command("sweep")(training.sweep)
app.command("export")(training.export)


def main() -> NoReturn:
    """Entry point of the `parallelsearch` command."""
    try:
        app()
    except ParallelSearchError as error:
        typer.echo(f"parallelsearch: {error}", err=True)
        sys.exit(error.exit_status)
    except BrokenPipeError:  # `parallelsearch ... | head`
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        typer.echo("parallelsearch: stopped", err=True)
        sys.exit(130)
    sys.exit(0)


def _version(value: bool) -> None:
    if value:
        from parallelsearch import __version__

        typer.echo(f"parallelsearch {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


# ---- ask -------------------------------------------------------------------------------------------------------------


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    policy: PolicyOption = "demo",
    search: SearchOption = "demo",
    k: KOption = 3,
    sequential: Annotated[bool, typer.Option("--sequential", help="Prompt for one search at a time.")] = False,
    layout: Annotated[str, typer.Option(help="How results are shown to the model: headed or paper.")] = "headed",
    max_turns: Annotated[int, typer.Option(help="Turns that may search; one more must answer.")] = 4,
    timeout_s: Annotated[float, typer.Option(help="Seconds until the best answer so far is given.")] = 600.0,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: SeedOption = 0,
    record: Annotated[Path | None, typer.Option(help="Record the searches to this file, for replay:FILE.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Keep search results in this SQLite file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a question and watch it split, searched and answered.

    Example: parallelsearch ask "Who is older, Claude Monet or Camille Pissarro?"
    """
    from parallelsearch.addresses import open_search
    from parallelsearch.agent import Agent
    from parallelsearch.policy.base import Sampling
    from parallelsearch.rollout import Limits
    from parallelsearch.terminal import LiveNarrator, trajectory_view

    if not question.strip():
        raise UsageError('the question is empty; type one, for example: parallelsearch ask "Who wrote Emma?"')
    limits = Limits(max_turns=max_turns, timeout_s=timeout_s)
    found = open_search(
        search, k=k, record=None if record is None else str(record), cache=None if cache is None else str(cache)
    )
    agent = Agent(
        _asked_policy(policy, sequential), found, limits=limits, sampling=Sampling(temperature=temperature, seed=seed)
    )
    screen, live = console(), console(stderr=True)
    with agent:
        trajectory = agent.ask(
            question,
            on_event=LiveNarrator(live) if live.is_terminal and not as_json else None,
            mode="sequential" if sequential else "parallel",
            layout=layout,
        )
    if as_json:
        typer.echo(trajectory.to_json())
    else:
        screen.print(trajectory_view(trajectory, screen.width))
    if trajectory.stop == "error":
        raise ParallelSearchError(trajectory.error or "the policy failed")


def _asked_policy(address: str, sequential: bool) -> Policy:
    from parallelsearch.addresses import open_policy

    if address == "demo" and sequential:  # the demo's turns are written down, one set for each way of asking
        from parallelsearch import demo

        return demo.DemoPolicy(sequential=True)
    return open_policy(address)


# ---- index -----------------------------------------------------------------------------------------------------------


@app.command()
def index(
    corpus: Annotated[
        Path | None, typer.Argument(help="JSON Lines, Parquet, CSV (.gz and .zst too), or a folder of texts.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="The folder to write; for milvus, a file or address.")
    ] = None,
    kind: Annotated[str, typer.Option(help="bm25, dense, hybrid or milvus.")] = "bm25",
    encoder: Annotated[str, typer.Option(help="For dense: an encoder's folder or name.")] = "minilm",
    dtype: Annotated[str, typer.Option(help="For dense: float32, float16 or int8.")] = "float16",
    faiss: Annotated[str | None, typer.Option(help="For dense: also build a faiss index; flat, ivf or hnsw.")] = None,
    device: Annotated[
        str | None, typer.Option(help="For dense: cpu, cuda, cuda:1. Default: a GPU if there is one.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="For dense: passages encoded at once.")] = 64,
    chunk_words: Annotated[int | None, typer.Option(help="Cut long texts into passages of this many words.")] = None,
    chunk_overlap: Annotated[int, typer.Option(help="Words two neighbouring passages share.")] = 20,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad lines out instead of stopping.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")] = False,
    plan: Annotated[
        int | None, typer.Option(metavar="N", help="Build nothing: say what N passages would take.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build a search index from a corpus, or say beforehand what it would take (--plan).

    Example: parallelsearch index corpus.jsonl --out my-index

    Example: parallelsearch index --plan 21000000 --kind dense
    """
    from parallelsearch.indexing import build_index, plan_index

    if plan is not None:
        planned, problems = plan_index(plan, kind, dtype, encoder=encoder, faiss=faiss, device=device)
        typer.echo(json.dumps({**planned.to_dict(), "problems": problems}) if as_json else "\n".join(planned.lines()))
        for problem in [] if as_json else problems:
            typer.echo(f"on this machine: {problem}")
        return
    if corpus is None or out is None:
        raise UsageError("say what to index and where to: parallelsearch index CORPUS --out DIR")
    with progress("passages", show=not as_json) as update:
        report = build_index(
            corpus,
            out,
            kind=kind,
            encoder=encoder,
            dtype=dtype,
            faiss=faiss,
            device=device,
            batch_size=batch_size,
            chunk_words=chunk_words,
            chunk_overlap=chunk_overlap,
            skip_bad=skip_bad,
            overwrite=overwrite,
            on_progress=lambda done, total: update(done, total, ""),
        )
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=False))
        return
    size = f", {report['bytes'] / 1e6:.1f} MB in {out}" if report["bytes"] else f" to {out}"
    typer.echo(
        f"{report['num_passages']} passages ({report['mean_words']:.0f} words each) in {report['seconds']:.1f} s{size}"
    )
    if report["num_skipped"]:
        typer.echo(f"{report['num_skipped']} records were skipped, the first of them:", err=True)
        for problem in report["problems"]:
            typer.echo(f"  {problem}", err=True)
    typer.echo(f"search it with: --search {kind}:{out}")


# ---- score -----------------------------------------------------------------------------------------------------------


@app.command()
def score(
    file: Annotated[Path, typer.Argument(help="A trajectories.jsonl file.")],
    preset: Annotated[
        str, typer.Option("--reward", metavar="PRESET", help="paper, reference, gated or label-free.")
    ] = "paper",
    lambda_d: Annotated[float, typer.Option(help="Weight of decomposition (paper, reference).")] = 0.15,
    alpha: Annotated[float, typer.Option(help="Its factor on parallel questions.")] = 3.0,
    lambda_s: Annotated[float, typer.Option(help="Weight of search count.")] = 0.35,
    lambda_f: Annotated[float, typer.Option(help="Weight of format.")] = 0.1,
    as_json: JsonOption = False,
) -> None:
    """Score trajectories with a reward preset, each component apart.

    Example: parallelsearch score trajectories.jsonl --reward gated --json
    """
    from parallelsearch.rewards import Weights, reward
    from parallelsearch.trajectory import read_trajectories

    weights = Weights(lambda_d, alpha, lambda_s, lambda_f)
    rows: list[dict[str, Any]] = []
    for number, trajectory in enumerate(read_trajectories(file), start=1):
        row = {"id": trajectory.id or str(number), **reward(trajectory, preset, weights).to_dict()}
        if as_json:
            typer.echo(json.dumps(row, ensure_ascii=False))
        rows.append(row)
    if not rows:
        raise ParallelSearchError(f"'{file}' holds no trajectories")
    if not as_json:
        from parallelsearch.terminal import score_table

        console().print(score_table(rows, preset))


# ---- view ------------------------------------------------------------------------------------------------------------


@app.command()
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
    """Look at trajectories in the terminal, or with --html or --serve in a browser.

    Example: parallelsearch view trajectories.jsonl --limit 2

    Example: parallelsearch view trajectories.jsonl --html view.html
    """
    if html is not None:
        from parallelsearch.viewer.html import export_html

        report = export_html(list(runs), html, reward=preset)
        typer.echo(f"{report.num_listed} trajectories, {report.num_bytes / 1e6:.1f} MB in {html}")
        for note in [*report.notes, *([report.left_out] if report.left_out else [])]:
            typer.echo(f"note: {note}", err=True)
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
    from parallelsearch.answers import exact_match
    from parallelsearch.terminal import trajectory_view
    from parallelsearch.trajectory import read_trajectories

    def wanted(trajectory: Trajectory) -> bool:
        if id is not None and trajectory.id != id:
            return False
        return not (wrong and exact_match(trajectory.answer, trajectory.golden_answers))

    screen = console()
    num_shown = num_read = 0
    for trajectory in read_trajectories(file / "trajectories.jsonl" if file.is_dir() else file):
        num_read += 1
        if not wanted(trajectory):
            continue
        if as_json:
            typer.echo(trajectory.to_json())
        else:
            screen.print(trajectory_view(trajectory, screen.width))
            screen.print()
        num_shown += 1
        if num_shown >= limit:
            break
    if num_shown == 0:
        raise ParallelSearchError(f"none of the {num_read} trajectories in '{file}' fits")


# ---- doctor ----------------------------------------------------------------------------------------------------------


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Say what is installed, what will work, and what to type for the rest.

    Example: parallelsearch doctor
    """
    from dataclasses import asdict

    from parallelsearch.doctor import examine

    checks = examine()
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks]))
    else:
        from rich.table import Table
        from rich.text import Text

        table = Table("")
        for name in ("what", "found", "to get it"):
            table.add_column(name, overflow="fold")  # what to type must be there to the last letter
        for check in checks:
            mark = (
                Text("yes", style="green") if check.works else Text("no", style="red" if check.is_needed else "yellow")
            )
            table.add_row(mark, check.what, Text(check.found), Text("" if check.works else check.fix))
        console().print(table)
    if any(check.is_needed and not check.works for check in checks):
        raise ParallelSearchError("something the base install needs does not work")
