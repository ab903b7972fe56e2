"""`glmforge fisher`: how much a model's text depends on each weight."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def fisher(
    config: Annotated[str, typer.Argument(help="YAML file of the run that will start from these weights.")],
    data: Annotated[
        Path, typer.Argument(help="Token shard (path without .bin) of text that the model should not forget.")
    ],
    out: Annotated[Path, typer.Argument(help="The directory to write.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Configuration overrides: key.sub=value ...")] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Number of rows of the first phase's seq_len, spread over the shard.")
    ] = 512,
) -> None:
    """Measure the diagonal Fisher information of the weights in init_from, for regularization.ewc.

    Takes a forward and a backward pass per row. Under torchrun the ranks share each row's work as parallel says;
    data ranks do not make it faster.

    Examples:

        glmforge fisher midtrain.yaml data/general runs/fisher

        torchrun --nproc-per-node 8 -m glmforge fisher midtrain.yaml data/general runs/fisher parallel.tp=8

        glmforge train midtrain.yaml regularization.ewc.fisher=runs/fisher
    """
    from glmforge.config import load_config

    loaded = load_config(config, overrides or [])  # errors in it are reported before torch is imported

    from glmforge.observe.work_progress import work_progress
    from glmforge.recipes.fisher import write_fisher
    from glmforge.runtime.launch import LaunchEnvironment

    console = Console(
        stderr=True, quiet=not LaunchEnvironment.read().is_main, soft_wrap=True, markup=False, highlight=False
    )
    with work_progress("Fisher information", max(1, rows // 20), console) as show:
        num_tokens = write_fisher(
            loaded, data, out, num_rows=rows, advance=lambda done, total: show(done, f"row {done:,} of {total:,}")
        )
    console.print(f"{out}: Fisher information of {loaded.init_from} on {num_tokens:,} tokens of {data}")
    console.print(f"Next: glmforge train {config} regularization.ewc.fisher={out}")
