import io

from rich.console import Console

from glmforge.observe.progress import TrainingProgress


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _run(*, terminal: bool, steps: int = 10, enabled: bool = True) -> tuple[str, Clock]:
    """The output of a run of 10 steps of 20 s each."""
    output, clock = io.StringIO(), Clock()
    console = Console(file=output, force_terminal=terminal, width=160)
    with TrainingProgress(10, 1000, enabled=enabled, console=console, plain_every=70, clock=clock) as progress:
        for step in range(1, steps + 1):
            numbers = {"loss": 2.0 + step / 100, "tokens_per_second": 12_345.0, "max_violation_max": 0.42}
            progress.update({"step": step, "tokens": 100 * step, "phase": "general", **numbers})
            clock.now += 20
        progress.note("saved [step-10]")
    return output.getvalue(), clock


def test_a_log_file_gets_a_plain_line_now_and_then_and_for_the_last_step() -> None:
    lines = _run(terminal=False)[0].splitlines()
    assert [line.split(" · ")[0] for line in lines[:-1]] == [
        "step 1/10",
        "step 5/10",
        "step 9/10",
        "step 10/10",
    ]
    assert lines[0] == "step 1/10 · general · loss 2.010 · 12.3k tok/s · maxvio 0.42"
    assert lines[1].endswith("maxvio 0.42 · 1m 40s left")  # 5 steps of 20 s
    assert "left" not in lines[3]
    assert lines[4] == "saved [step-10]"


def test_a_terminal_gets_a_bar() -> None:
    output = _run(terminal=True, steps=7)[0]
    for part in (
        "general",
        "7/10",
        "loss 2.070",
        "12.3k tok/s",
        "maxvio 0.42",
        "1m 00s left",
        "saved [step-10]",
    ):
        assert part in output
    assert "\x1b[" in output


def test_other_ranks_are_silent() -> None:
    assert _run(terminal=True, enabled=False)[0] == ""
    assert _run(terminal=False, enabled=False)[0] == ""


def test_a_record_with_nothing_but_its_step_is_shown() -> None:
    output = io.StringIO()
    TrainingProgress(5, 50, console=Console(file=output)).update({"step": 5, "tokens": 50})
    assert output.getvalue() == "step 5/5\n"


def test_a_policy_shows_its_reward() -> None:
    output = io.StringIO()
    TrainingProgress(1, None, console=Console(file=output, width=200)).update({"step": 1, "tokens": 9, "reward": 0.25})
    assert output.getvalue() == "step 1/1 · reward 0.250\n"


def test_a_resumed_run_measures_its_own_pace() -> None:
    output, clock = io.StringIO(), Clock()
    progress = TrainingProgress(
        1000, 8000, start_tokens=7200, console=Console(file=output, width=160), plain_every=0, clock=clock
    )
    for step in (901, 902):
        progress.update({"step": step, "tokens": 8 * step})
        clock.now += 1
    assert output.getvalue().splitlines()[-1] == "step 902/1000 · 1m 38s left"


def test_the_time_left_follows_the_tokens_where_batches_grow() -> None:
    output, clock = io.StringIO(), Clock()
    progress = TrainingProgress(100, 1000, console=Console(file=output, width=160), plain_every=0, clock=clock)
    for step, tokens in ((1, 10), (2, 20)):
        progress.update({"step": step, "tokens": tokens})
        clock.now += 1
    # 10 tokens a second, and 980 to come, in whatever number of steps.
    assert output.getvalue().splitlines()[-1] == "step 2/100 · 1m 38s left"


def test_where_tokens_are_not_known_beforehand_it_goes_by_steps() -> None:
    output, clock = io.StringIO(), Clock()
    console = Console(file=output, width=160)
    progress = TrainingProgress(4, None, start_steps=1, console=console, plain_every=0, clock=clock)
    for step, tokens in ((2, 900), (3, 905), (4, 2000)):
        progress.update({"step": step, "tokens": tokens})
        clock.now += 1
    assert output.getvalue().splitlines() == ["step 2/4", "step 3/4 · 1.0s left", "step 4/4"]


def test_a_run_that_left_out_batches_ends_with_fewer_steps_than_planned() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=160)
    with TrainingProgress(10, 1000, console=console) as progress:
        progress.update({"step": 8, "tokens": 1000})
    assert "8/8" in output.getvalue()
    output = io.StringIO()
    TrainingProgress(10, 1000, console=Console(file=output)).update({"step": 8, "tokens": 1000})
    assert output.getvalue() == "step 8/8\n"
