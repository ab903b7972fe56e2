"""`glmforge evaluate MODEL ...` and its subcommands.

`glmforge evaluate MODEL --benchmark ...` is the command that is used most and needs no name of its own: arguments that
do not begin with a subcommand's name are `evaluate benchmarks`'s.
"""

from typing import Any

import typer
from typer.core import TyperGroup

from glmforge.cli.evaluate.benchmarks import benchmarks
from glmforge.cli.evaluate.needles import needles
from glmforge.cli.evaluate.results import card, compare, contamination, failures, table
from glmforge.cli.evaluate.safety import safety

_DEFAULT = "benchmarks"


class _DefaultsToBenchmarks(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_DefaultsToBenchmarks,
    no_args_is_help=True,
    help="Score a model: `glmforge evaluate MODEL --benchmark mmlu,gsm8k --data DIR --out RESULT`.",
)
app.command(_DEFAULT)(benchmarks)
app.command("needles")(needles)
for command in (safety, compare, failures, table, card, contamination):
    app.command()(command)
