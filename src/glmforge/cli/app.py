"""The `glmforge` command: one file per group of commands; parse, call, print.

Command modules import what is heavy (torch above all) inside their functions, so that `--help` answers at once.
"""

import errno
import io
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import typer
from rich.console import Console, ConsoleRenderable
from rich.logging import RichHandler
from rich.text import Text
from rich.traceback import Traceback
from typer.core import TyperGroup

from glmforge import __version__
from glmforge.cli import (
    adapter,
    chat,
    checkpoint,
    configs,
    control,
    debug,
    demo,
    experts,
    export,
    find_nan,
    fisher,
    generate,
    init,
    model,
    profile,
    quantize,
    report,
    rl,
    serve,
    train,
    watch,
)
from glmforge.cli.data import app as data
from glmforge.cli.evaluate.app import app as evaluate
from glmforge.cli.plan.command import plan
from glmforge.errors import GlmforgeError
from glmforge.extras import MissingPackageError, explain
from glmforge.files import escaped
from glmforge.runtime.cores import limit_spinning

_ops = import_module("glmforge_ops.cli.commands")  # requested by name: no room imports operations

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Click's, of the click that typer was installed with or of the one that newer versions of it contain."""


class OneLineErrors(TyperGroup):
    """The root of all commands: a wrong option, argument or value of any of them is one line and exit status 2."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **more: Any) -> Any:
        """Reads the options of the root itself."""
        self._typed = list(args)
        with self._one_line():
            return super().make_context(info_name, args, *rest, **more)

    def invoke(self, ctx: Any) -> Any:
        """Commands below read their options here, and run."""
        with self._one_line():
            return super().invoke(ctx)

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except _UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command prints its help
                raise
            command = self._command()
            typer.echo(escaped(f"{command}: {_reason(error)}; see '{command} --help'"), err=True)
            raise typer.Exit(2) from None

    def _command(self) -> str:
        """The command that was typed; click does not say to which one an option without its value belongs."""
        path, commands = ["glmforge"], self.commands
        for word in self._typed:
            if word not in commands:
                break
            path, commands = [*path, word], getattr(commands[word], "commands", {})
        if path[1:] == ["evaluate"]:
            path.append("benchmarks")  # what it does without a command's name
        return " ".join(path)


def _reason(error: Any) -> str:
    """What click says of a mistake, in several lines and forms, such as: no such option --foo (did you mean --for?)."""
    if hasattr(error, "possibilities") and hasattr(error, "option_name"):
        nearest = f" (did you mean {error.possibilities[0]}?)" if error.possibilities else ""
        return f"no such option {error.option_name}{nearest}"
    text = " ".join(error.format_message().split())
    text = re.sub(r"\. Did you mean (.*\?)$", r" (did you mean \1)", text.removeprefix("Invalid value: "))
    details: list[Any] = getattr(error.__cause__, "errors", list)()  # pydantic's, which typer checks values with
    if details:
        text = text.replace("Input should", f"{details[0]['input']!r} should").replace("Value error, ", "")
    return f"{text[:1].lower()}{text[1:]}".removesuffix(".")


app = typer.Typer(
    name="glmforge",
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Train GLM-4.5/4.6-class Mixture-of-Experts models, from raw text to a chat model.",
    epilog="New here? 'glmforge demo' trains a small model on this machine in about six minutes.",
)
app.command("demo")(demo.demo)
app.command("init")(init.init)
app.command("train", cls=train.NamesStages)(train.train)
app.command("plan")(plan)
app.command("launch")(_ops.launch)
app.command("chat")(chat.chat)
app.command("generate")(generate.generate)
app.command("serve")(serve.serve)
app.command("export")(export.export)
app.command("quantize")(quantize.quantize)
app.add_typer(profile.app, name="profile")
app.command("fisher")(fisher.fisher)
app.command("report")(report.report)
app.command("watch")(watch.watch)
app.command("runs")(watch.runs)
app.command("compare")(watch.compare)
app.command("timeline")(watch.timeline)
app.command("control")(control.control)
app.command("experts")(experts.experts)
app.command("find-nan")(find_nan.find_nan)
app.add_typer(debug.app, name="debug")
app.command("health")(_ops.health)
app.command("supervise", hidden=True)(_ops.supervise)
app.add_typer(evaluate, name="evaluate")
app.add_typer(data.app, name="data")
app.add_typer(configs.app, name="configs")
for _name in ("cluster", "jobs", "sweep", "chain", "monitor"):
    app.add_typer(_ops.GROUPS[_name], name=_name)
app.add_typer(model.app, name="model")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(adapter.app, name="adapter")
app.add_typer(rl.app, name="rl")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"glmforge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
    local_rank: int = typer.Option(0, "--local_rank", hidden=True),  # of the deepspeed launcher
) -> None:
    pass


def main() -> None:
    """Entry point: what the user can fix is one line on stderr and exit status 1, never a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 still gets an answer
    _show_log_messages()
    limit_spinning()
    try:
        app(prog_name="glmforge")
    except GlmforgeError as error:
        print("glmforge:", escaped(str(error), keep="\n"), file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"glmforge: {where}no space left on device for the output; free some space", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        missing = explain(error, "this command")
        if not isinstance(missing, MissingPackageError):
            raise
        print(f"glmforge: {missing}", file=sys.stderr)
        sys.exit(missing.exit_code)
    except SystemExit as ended:
        cause = getattr(ended.__context__, "__cause__", None)
        if isinstance(cause, KeyboardInterrupt):  # typer says nothing of it
            print(": ".join(["glmforge: interrupted", *map(str, cause.args)]), file=sys.stderr)
        raise
    except KeyboardInterrupt:
        print("glmforge: interrupted", file=sys.stderr)
        sys.exit(130)


class _LineHandler(RichHandler):
    """Rich's handler lays messages out in columns, and cuts paths and commands in pieces at the terminal's width."""

    def render(
        self, *, record: logging.LogRecord, traceback: Traceback | None, message_renderable: ConsoleRenderable
    ) -> ConsoleRenderable:
        assert isinstance(message_renderable, Text)
        return Text.assemble(self.get_level_text(record), " ", message_renderable)


def _show_log_messages() -> None:
    """Our own package's messages go to stderr, one line each; other packages' stay theirs."""
    handler = _LineHandler(console=Console(stderr=True, soft_wrap=True))
    logger = logging.getLogger("glmforge")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
