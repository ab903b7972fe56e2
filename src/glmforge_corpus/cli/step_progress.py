"""How far the steps of a pipeline are, on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from glmforge_corpus.pipeline.run import StepProgress


@contextmanager
def step_progress(console: Console | None = None) -> "Iterator[Callable[[StepProgress], None]]":
    """What shows how far the steps of a pipeline are: a bar for each, or a line at its end and for each tenth before.

    Steps of less than ten tasks have the line at the end alone.

    Raises:
        KeyboardInterrupt: of the body, with what the user can do then.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = console or Console(stderr=True)
    shown: dict[str, Any] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=console)

    def show(step: "StepProgress") -> None:
        name = step.stage if step.step == "documents" else f"{step.stage}: {step.step}"
        if not console.is_terminal:
            tenth = 10 * step.done // max(step.total, 1)
            if tenth > shown.get(name, 0) and (step.total >= 10 or step.done == step.total):
                shown[name] = tenth
                line = f"{name}: {step.done:,} of {step.total:,} tasks"
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        bars.start()  # not before: a run that is refused draws nothing
        if name not in shown:
            shown[name] = bars.add_task(name)
        bars.update(shown[name], completed=step.done, total=step.total)

    try:
        yield show
    except KeyboardInterrupt:
        raise KeyboardInterrupt("run the same command again and it continues from here") from None
    finally:
        if bars.live.is_started:
            bars.stop()
