"""Owns the command line: parse, call one function, map to an exit code. Data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from orchestrator import __version__
from orchestrator.collector import collector_paused, settle
from orchestrator.errors import Exit, WallfinderError
from orchestrator.streams import give_out, provide_streams

if TYPE_CHECKING:
    from collections.abc import Callable

_RUNS = Path("runs")


def whole_numbers(text: str) -> tuple[int, ...]:
    """`1,2,4` as a tuple. Raises click.BadParameter where it is no such list."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers such as 1,2,4") from None


class ExitByError(click.Group):
    """The one place where our own failures become a message and an exit code."""

    def invoke(self, ctx: click.Context) -> object:
        """Runs the command; a WallfinderError is told on stderr, without a traceback."""
        try:
            return super().invoke(ctx)
        except WallfinderError as error:
            click.echo(f"wallfinder: {error}", err=True)
            sys.exit(int(error.exit_code))
        except (KeyboardInterrupt, click.Abort):
            sys.exit(int(Exit.INTERRUPTED))

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the whole command line, with streams to write to even where the caller closed them."""
        provide_streams()
        return super().main(*args, **kwargs)


def _out(write: Callable[[], None]) -> None:
    """Gives a command's data out; exit code 1 where it is lost."""
    if not give_out(write):
        click.echo("wallfinder: the output could not be written", err=True)
        sys.exit(int(Exit.CELLS_FAILED))


@click.group(cls=ExitByError, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="wallfinder")
def main() -> None:
    """Finds the batch size that breaks local LLM decoding, without breaking the night."""


def _output_dir(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "-o",
        "--output-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=_RUNS,
        show_default=True,
        help="Where run directories are.",
    )(command)


def _sweep_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--fail-on",
            multiple=True,
            type=click.Choice(["wall", "invalid", "timed_out"]),
            help="Exit 1 also where a cell hit the wall, timed out, or was measured but is not valid.",
        ),
        click.option("--plain", is_flag=True, help="Plain lines in place of the live screen."),
        click.option(
            "--other-host",
            is_flag=True,
            help="Go on although the machine, mlx or mlx-lm is another than when the run began.",
        ),
    ):
        command = option(command)
    return command


@main.command()
@click.argument("plan_file", metavar="[PLAN]", required=False, type=click.Path(path_type=Path))
@_output_dir
@click.option("--name", help="The run's name; default: the plan's.")
@click.option("--extend", is_flag=True, help="Let a plan that only adds cells go on in its run directory.")
@click.option("-m", "--model", help="Without PLAN: a hub id or a model folder.")
@click.option("-b", "--batches", type=whole_numbers, metavar="N,N,...", help="Without PLAN: batch sizes.")
@click.option(
    "-c", "--contexts", type=whole_numbers, metavar="N,N,...", help="Without PLAN: context lengths in tokens."
)
@click.option("-g", "--gen-tokens", type=int, help="Without PLAN: tokens to generate per stream.")
@click.option("-n", "--reps", type=int, help="Without PLAN: repetitions.")
@_sweep_options
def run(
    plan_file: Path | None,
    output_dir: Path,
    name: str | None,
    extend: bool,
    model: str | None,
    batches: tuple[int, ...] | None,
    contexts: tuple[int, ...] | None,
    gen_tokens: int | None,
    reps: int | None,
    fail_on: tuple[str, ...],
    plain: bool,
    other_host: bool,
) -> NoReturn:
    """Runs PLAN cell by cell into a run directory; the same plan and name again goes on where it was cut off."""
    from orchestrator.commands import plan_from_command_line, run_plan  # heavy, and of no use to --help

    plan = plan_from_command_line(plan_file, name, model, batches, contexts, gen_tokens, reps)
    failing = frozenset(fail_on)
    sys.exit(run_plan(plan, output_dir, extend=extend, fail_on=failing, plain=plain, other_host=other_host))


@main.command()
@click.argument("run_name", metavar="RUN")
@_output_dir
@click.option(
    "--retry",
    multiple=True,
    type=click.Choice(["crashed", "failed", "timed_out", "hit_the_wall", "host_died", "skipped", "invalid"]),
    help="Run cells again that ended so.",
)
@_sweep_options
def resume(
    run_name: str,
    output_dir: Path,
    retry: tuple[str, ...],
    fail_on: tuple[str, ...],
    plain: bool,
    other_host: bool,
) -> NoReturn:
    """Does exactly what is left of RUN, a run directory."""
    from orchestrator.commands import resume_run  # heavy, and of no use to --help

    again, failing = frozenset(retry), frozenset(fail_on)
    sys.exit(resume_run(run_name, output_dir, retry=again, fail_on=failing, plain=plain, other_host=other_host))


@main.command()
@click.argument("plan_file", metavar="PLAN", required=False, type=click.Path(path_type=Path))
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the plan file, for editors.")
@click.option("--json", "as_json", is_flag=True, help="The dry run as JSON.")
def plan(plan_file: Path | None, schema: bool, as_json: bool) -> None:
    """Shows what PLAN would run, and runs nothing: no network, no model."""
    if schema:
        from orchestrator.plan.schema import plan_json_schema  # heavy, and of no use to --help

        _out(lambda: print(json.dumps(plan_json_schema(), indent=2)))
        return
    if plan_file is None:
        raise click.UsageError("give a PLAN, or --schema")
    with collector_paused():
        from orchestrator.dry_run import dry_run  # heavy, and of no use to --help

        text = dry_run(plan_file, as_json=as_json)
        _out(lambda: print(text))
        settle()


@main.command()
@click.argument("run_name", metavar="RUN")
@_output_dir
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(run_name: str, output_dir: Path, as_json: bool) -> None:
    """Prints the table of RUN, at any time, also while it runs."""
    with collector_paused():
        from orchestrator.overview import show_status  # heavy, and of no use to --help

        _out(lambda: show_status(run_name, output_dir, as_json=as_json))
        settle()


@main.command()
@click.argument("run_name", metavar="RUN")
@_output_dir
@click.option(
    "--watchdog",
    "watchdog_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A plan, or YAML with its `watchdog:` block alone; default: the limits that were recorded.",
)
@click.option("--cell", "cell_glob", metavar="GLOB", help="Only cells whose id matches.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def replay(run_name: str, output_dir: Path, watchdog_file: Path | None, cell_glob: str | None, as_json: bool) -> None:
    """Shows what other watchdog thresholds would have done on the recorded samples of RUN."""
    from orchestrator.replay_show import show_replay  # heavy, and of no use to --help

    _out(lambda: show_replay(run_name, output_dir, watchdog_file, cell_glob, as_json=as_json))


@main.command()
@click.argument("run_name", metavar="RUN")
@_output_dir
@click.option(
    "--format",
    "form",
    type=click.Choice(["llama-bench"]),
    default="llama-bench",
    show_default=True,
    help="llama-bench: the columns of llama.cpp's llama-batched-bench.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON line per cell, as its --output-format jsonl.")
@click.option("--with-invalid", is_flag=True, help="Also cells that were measured but are not valid.")
def export(run_name: str, output_dir: Path, form: str, as_json: bool, with_invalid: bool) -> None:  # noqa: ARG001 - one so far
    """Prints RUN's completed cells in the form that another program reads."""
    from orchestrator.export import show_export  # heavy, and of no use to --help

    _out(lambda: show_export(run_name, output_dir, as_json=as_json, with_invalid=with_invalid))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(as_json: bool) -> None:
    """Looks for what would spoil a sweep on this machine: readings, the kernel's backstops, the watchdog."""
    from orchestrator.doctor.show import show_checks  # heavy, and of no use to --help

    healthy = True

    def write() -> None:
        nonlocal healthy
        healthy = show_checks(as_json=as_json)

    _out(write)
    sys.exit(int(Exit.COMPLETE if healthy else Exit.CELLS_FAILED))


if __name__ == "__main__":
    main()
