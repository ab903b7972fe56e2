"""The two runs of the demo, of as many steps as the user's minutes have room for; the first is killed and resumed."""

import math
import time
from typing import NamedTuple

import torch

from glmforge.checkpoint import latest_checkpoint, read_meta
from glmforge.config import RunConfig, dump_config
from glmforge.errors import GlmforgeError
from glmforge.observe.metrics import Record
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory, record_event, write_text
from glmforge.observe.units import counted, format_count, format_duration
from glmforge.plan.counts.parameters import count_parameters
from glmforge.recipes.demo import pace
from glmforge.recipes.demo.options import DemoOptions
from glmforge.recipes.demo.screen import Screen
from glmforge.recipes.demo.training import Watched, train_and_kill, train_to_the_end
from glmforge.recipes.train import measure_step_seconds
from glmforge.runtime.cores import busy_cores, usable_cores

PRECISIONS = ("fp32", "bf16")
MEASURED_STEPS = 3
SECONDS_PER_MEASUREMENT = 5.0
"""At which a measurement ends with the step it is at, and one step more."""
MAX_STOPS = 2
"""How often a run that is late is stopped and planned anew: each time a start is paid for."""


class Setting(NamedTuple):
    """Arithmetic and threads, in the order of the speed they gave."""

    step_seconds: float
    precision: str
    num_threads: int


class TimedTraining:
    """Plans the steps for the time that is left, and trains them."""

    def __init__(self, options: DemoOptions, screen: Screen) -> None:
        self._options, self._screen = options, screen
        self._precision, self._num_threads = PRECISIONS[0], 1
        self._mtp_cost = 1.0  # of a step that trains MTP, where one without costs 1
        self._start_seconds = 0.0
        self._deadline = self._end = math.inf
        self._fine_tuning_seconds = 0.0
        self._intervals: list[str] = []

    def plan(self) -> RunConfig:
        """Measure steps on this machine and fill the time that is left with steps."""
        before = self._screen.elapsed
        self._screen.heading("Plan the training")
        config = self._options.load_config()
        counts = f"{format_count(count_parameters(config.model).with_mtp.total)} parameters"
        self._screen.say(f"GLM-4.6 in small: {counts}, {config.model.n_routed_experts} experts per layer, MTP, Muon")
        setting = self._fastest_setting()
        self._precision, self._num_threads = setting.precision, setting.num_threads
        weight = config.phases[-1].mtp_loss_weight
        with_mtp = [f"precision.compute={setting.precision}", f"phases.0.mtp_loss_weight={weight}"]
        self._mtp_cost = self._step_seconds(self._options.load_config(with_mtp)) / setting.step_seconds
        mean_seconds = setting.step_seconds * pace.mean_cost(self._mtp_cost)
        total = self._options.minutes * 60
        of_both_runs = pace.training_seconds(total, before, self._screen.elapsed)
        self._end = time.monotonic() + of_both_runs
        self._fine_tuning_seconds = of_both_runs * pace.FINE_TUNING_SHARE
        seconds = of_both_runs - self._fine_tuning_seconds
        self._deadline = time.monotonic() + seconds
        num_steps = pace.steps_within(seconds * pace.SHARE_OF_STEPS, mean_seconds)
        self._intervals = pace.intervals(num_steps)
        config = self._write_config(*pace.steps_of_phases(num_steps))
        speed = format_count(config.num_tokens / config.num_steps / mean_seconds)
        expected = config.num_steps * mean_seconds / pace.SHARE_OF_STEPS
        self._screen.say(f"[b]{config.precision.compute}, {counted(self._num_threads, 'thread')}[/b]: {speed} tokens/s")
        self._screen.say(
            f"{config.num_steps} steps, {format_count(config.num_tokens)} tokens, about {format_duration(expected)}, "
            f"and {pace.FINE_TUNING_SHARE:.0%} of the training time for conversations"
        )
        if config.num_steps < pace.USEFUL_STEPS:
            useful = pace.USEFUL_STEPS * mean_seconds / pace.SHARE_OF_STEPS
            enough = total - of_both_runs + useful / (1 - pace.FINE_TUNING_SHARE)
            self._screen.say(
                f"[yellow]too few to learn much: this machine is slow or busy (load {busy_cores():.1f} on "
                f"{usable_cores():g} cores); --minutes {math.ceil(enough / 60)} allows {pace.USEFUL_STEPS}[/yellow]"
            )
        self._screen.say(f"the configuration is [b]{self._options.config_file}[/b]")
        return config

    def run(self, config: RunConfig) -> tuple[RunConfig, int, int]:
        """Train in a process of its own; kill it part-way; start it again, planned again from the pace it had.

        Returns the configuration that it ended with, and the steps it was killed at and resumed from.
        """
        self._screen.heading("Pre-train, with a kill and a resume")
        run = RunDirectory(config.output_dir)
        kill_at = pace.kill_step(config.num_steps, config.checkpoint.every_steps or 1)
        watched = Watched(config, self._options.config_file, self._num_threads)
        train_and_kill(watched, kill_at, (self._deadline - time.monotonic()) * pace.KILL_AT_SHARE)
        killed_at, self._start_seconds = watched.step, watched.start_seconds
        record_event(run.root, "killed", step=killed_at, detail="SIGKILL by the demo")
        checkpoint = latest_checkpoint(run.checkpoints)
        if checkpoint is None:
            raise GlmforgeError(f"{run.checkpoints}: the killed run left no checkpoint; raise --minutes")
        resumed_from = read_meta(checkpoint).step
        self._screen.say(f"[red]killed with SIGKILL after step {killed_at}[/red]; running it again resumes from")
        self._screen.say(f"[b]{checkpoint}[/b] and repeats the steps after {resumed_from} bit for bit")
        config = self._plan_anew(watched, resumed_from)
        for may_stop in (not self._options.steps_are_given,) * MAX_STOPS + (False,):
            watched = Watched(config, self._options.config_file, self._num_threads)
            if train_to_the_end(watched, self._deadline, may_stop=may_stop):
                break
            self._screen.say(f"[yellow]slower than planned: stopped after step {watched.step}[/yellow]")
            config = self._plan_anew(watched, watched.step)
        self._print_result(read_jsonl(run.metrics))
        return config, killed_at, resumed_from

    def fine_tune(self) -> RunConfig:
        """Continue the first run's model on conversations; returns its configuration.

        It has the time that is left, and half of what was planned for it where the first run was late.
        """
        self._screen.heading("Fine-tune on conversations")
        precision = f"precision.compute={self._precision}"
        step_seconds = self._step_seconds(self._options.load_sft_config([precision]))
        seconds = max(self._end - time.monotonic(), self._fine_tuning_seconds / 2)
        num_steps = pace.steps_within(seconds - pace.STARTS_OF_FINE_TUNING * self._start_seconds, step_seconds)
        overrides = [precision, f"phases.0.steps={num_steps}", *pace.intervals(num_steps, num_evaluations=1)]
        config = self._options.load_sft_config(overrides)
        write_text(self._options.sft_config_file, dump_config(config))
        self._screen.say(f"stage sft, {config.num_steps} steps: only assistant messages are trained on")
        train_to_the_end(Watched(config, self._options.sft_config_file, self._num_threads), self._end, may_stop=False)
        return config

    def _fastest_setting(self) -> Setting:
        """The fastest arithmetic with all threads, then also with one: on busy cores that may be faster."""
        all_threads = torch.get_num_threads()
        found = [self._measure(precision, all_threads) for precision in PRECISIONS]
        best = min(found)
        if all_threads > 1:
            best = min(best, self._measure(best.precision, 1))
        torch.set_num_threads(best.num_threads)
        return best

    def _measure(self, precision: str, num_threads: int) -> Setting:
        torch.set_num_threads(num_threads)
        seconds = self._step_seconds(self._options.load_config([f"precision.compute={precision}"]))
        self._screen.say(f"{precision} with {counted(num_threads, 'thread')}: {seconds:.2f} s a step")
        return Setting(seconds, precision, num_threads)

    def _step_seconds(self, config: RunConfig) -> float:
        """Of the first phase, with the threads that torch has."""
        return measure_step_seconds(config, MEASURED_STEPS, max_seconds=SECONDS_PER_MEASUREMENT)

    def _plan_anew(self, watched: Watched, done: int) -> RunConfig:
        """What is left of the time, at the pace the run had, in steps."""
        config = watched.config
        if watched.step_seconds is None or self._options.steps_are_given:
            return config
        left, first = self._deadline - time.monotonic(), config.phases[0].steps or 0
        if done > first:  # MTP is trained already, and at this pace
            steps = first, max(done + 2, done + int(left / watched.step_seconds)) - first
        else:
            steps = pace.steps_of_phases(pace.next_plan(done, left, watched.step_seconds, self._mtp_cost), done)
        planned = self._write_config(*steps)
        speed = format_count(config.num_tokens / config.num_steps / watched.step_seconds)
        self._screen.say(
            f"at {speed} tokens/s there is time for {planned.num_steps} steps in total (planned: {config.num_steps}), "
            f"{format_duration(max(left, 0.0))} more"
        )
        return planned

    def _write_config(self, without_mtp: int, with_mtp: int) -> RunConfig:
        steps = [f"phases.0.steps={without_mtp}", f"phases.1.steps={with_mtp}"]
        overrides = [f"precision.compute={self._precision}", *steps, *self._intervals]
        config = self._options.load_config(overrides)
        write_text(self._options.config_file, dump_config(config))
        return config

    def _print_result(self, records: list[Record]) -> None:
        self._screen.say(f"loss {records[0]['loss']:.2f} -> [b]{records[-1]['loss']:.2f}[/b] nats per token")
        speed = sorted(record["tokens_per_second"] for record in records)[len(records) // 2]
        violation = records[-1].get("max_violation_mean", math.nan)
        self._screen.say(
            f"{format_count(speed)} tokens/s; finally the busiest expert of a layer has {violation:.0%} more"
        )
        self._screen.say("than an even share of the tokens (mean of the layers)")
