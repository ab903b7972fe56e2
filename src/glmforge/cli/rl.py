"""`glmforge rl`: what rewards make of a policy's answers, before, during and after a run of stage rl.

torch is imported inside the commands, so that `--help` answers at once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmforge.cli.terminal import as_shown
from glmforge.errors import GlmforgeError

if TYPE_CHECKING:
    from glmforge.config.schema import RunConfig
    from glmforge.recipes.rl_answers import Counts, Group
    from glmforge.rl.samples import Answer

app = typer.Typer(help="Look at rollouts of stage rl: answers, rewards, advantages.", no_args_is_help=True)

_MAX_REPLY, _MAX_PROMPT = 400, 600
_ENDS = {"stop": "", "length": ", cut", "": ", unfinished"}

_Overrides = Annotated[list[str] | None, typer.Argument(help="Configuration overrides: key.sub=value ...")]
_Full = Annotated[bool, typer.Option("--full", help="Print prompts and replies to their ends.")]


@app.command("try")
def try_(
    config: Annotated[str, typer.Argument(help="YAML file of a run of stage rl.")],
    overrides: _Overrides = None,
    num_prompts: Annotated[int, typer.Option(min=1, max=10_000, help="The first ones in the run's order.")] = 10,
    num_samples: Annotated[int, typer.Option(min=1, max=1024, help="Answers to each.")] = 3,
    full: _Full = False,
) -> None:
    """Answer a run's first prompts with its initial weights and show the rewards; trains and writes nothing.

    Of each answer it prints the reward, every term, the length and the reply; in the end how many verifiers failed, how
    many groups have no spread of rewards (nothing is learnt from these), and the speed of sampling.

    Examples:

        glmforge rl try rl.yaml

        glmforge rl try rl.yaml --num-prompts 50 --num-samples 8 rl.rollout.temperature=0.8
    """
    from glmforge.config import load_config

    loaded = load_config(config, overrides or [])

    from glmforge.recipes.rl_answers import try_out
    from glmforge.runtime.launch import LaunchEnvironment

    groups, counts = try_out(loaded, num_prompts, num_samples)
    if not LaunchEnvironment.read().is_main:
        return
    for group in groups:
        prompt = group.prompt
        _print_prompt(prompt.id, prompt.source, prompt.text, full=full)
        for answer, reply in zip(group.answers, group.replies, strict=True):
            _print_reply(_facts_of(answer), reply, full=full)
    _print_summary(groups, counts)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="Directory of a run of stage rl.")],
    step: Annotated[int | None, typer.Option(min=1, help="Default: the newest one.")] = None,
    group: Annotated[int | None, typer.Option(min=0, help="Only the group with this number.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Highest mean rewards first.")] = False,
    worst: Annotated[bool, typer.Option("--worst", help="Lowest mean rewards first.")] = False,
    num_groups: Annotated[int, typer.Option(min=1, max=100_000, help="Groups to print.")] = 4,
    full: _Full = False,
) -> None:
    """Show the answers that a step was trained on, by group, with rewards and advantages.

    Examples:

        glmforge rl show runs/rl

        glmforge rl show runs/rl --step 120 --worst --num-groups 10
    """
    from glmforge.observe.run import RunDirectory
    from glmforge.rl.written import read_samples, steps_written

    if best and worst:
        raise typer.BadParameter("choose --best or --worst", param_hint="--best")
    directory = RunDirectory(run).rollouts
    steps = steps_written(directory)
    if not steps:
        raise GlmforgeError(f"{directory}: has no answers; pass a run of stage rl that has taken a step")
    step = steps[-1] if step is None else step
    groups = _grouped(read_samples(directory, step))
    if group is not None and group not in groups:
        raise GlmforgeError(f"--group: step {step:,} has no group {group}; it has {', '.join(map(str, groups))}")
    order = list(groups)
    if best or worst:
        order.sort(key=lambda number: _mean_reward(groups[number]), reverse=best)
    rewards = _mean_reward(one for some in groups.values() for one in some)
    number = sum(map(len, groups.values()))
    typer.echo(f"step {step:,}: {number:,} answers in {len(groups):,} groups, mean reward {rewards:.3g}")
    for place in order[:num_groups] if group is None else [group]:
        first = groups[place][0]
        _print_prompt(f"group {place}, {first['prompt']}", first["source"], first["question"], full=full)
        for one in groups[place]:
            advantage = "" if one["advantage"] is None else f"  advantage {one['advantage']:+.3g}"
            facts = _reward_words(one["reward"], one["terms"]) + advantage
            _print_reply(f"{facts}  {_length(one['num_tokens'], one['finished'])}", one["reply"], full=full)


@app.command()
def sample(
    source: Annotated[str, typer.Argument(help="A run of stage rl (its newest checkpoint), RUN@STEP, or a YAML file.")],
    out: Annotated[Path, typer.Option(help="Conversations to write, .jsonl.")],
    overrides: _Overrides = None,
    num_samples: Annotated[int, typer.Option(min=1, max=1024, help="Answers to each prompt.")] = 4,
    keep_correct: Annotated[
        bool, typer.Option("--keep-correct", help="Only answers that all verifiers accept.")
    ] = False,
    force: Annotated[bool, typer.Option(help="Overwrite an earlier file.")] = False,
) -> None:
    """Answer the prompts of a run and write the answers as conversations for supervised fine-tuning.

    Answers that were cut, are not in GLM's format or are the same as another one to their prompt are left out; with
    --keep-correct also wrong ones, which is rejection sampling. Other prompts: data.sources.0.path=FILE.

    Examples:

        glmforge rl sample runs/rl --out verified.jsonl --keep-correct --num-samples 8

        glmforge data chat verified.jsonl --tokenizer runs/rl/tokenizer --show 3
    """
    loaded = _config_or_run(source, overrides or [])

    from glmforge.recipes.rl_answers import write_conversations

    with _sampling(loaded) as advance:
        counts = write_conversations(
            loaded, out, num_samples, keep_correct=keep_correct, overwrite=force, advance=advance
        )
    _print_kept(out, counts, "answers")


@app.command()
def select(
    source: Annotated[str, typer.Argument(help="A run of stage rl (its newest checkpoint), RUN@STEP, or a YAML file.")],
    out: Annotated[Path, typer.Option(help="Prompts to write, .jsonl.")],
    right: Annotated[str, typer.Option(help="Right answers of a prompt that is kept: LEAST:MOST, or a number.")],
    overrides: _Overrides = None,
    num_samples: Annotated[int, typer.Option(min=1, max=4096, help="Answers to each prompt.")] = 8,
    force: Annotated[bool, typer.Option(help="Overwrite an earlier file.")] = False,
) -> None:
    """Answer the prompts of a run and write those that are neither too easy nor too hard for it.

    GLM-4.5's two stages: first prompts of moderate difficulty; later those that 8 answers miss and 512 do not.

    Examples:

        glmforge rl select rl.yaml --out moderate.jsonl --right 1:7

        glmforge rl select runs/rl --out missed.jsonl --right 0

        glmforge rl select runs/rl --out hard.jsonl --right 1:512 --num-samples 512 data.sources.0.path=missed.jsonl
    """
    num_right = _range(right, num_samples)
    loaded = _config_or_run(source, overrides or [])

    from glmforge.recipes.rl_answers import write_prompts

    with _sampling(loaded) as advance:
        counts = write_prompts(loaded, out, num_samples, num_right, overwrite=force, advance=advance)
    _print_kept(out, counts, "prompts")


def _range(text: str, most: int) -> range:
    first, colon, last = text.partition(":")
    words = (first, last if colon else first)
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        raise typer.BadParameter(f"{text!r} is not LEAST:MOST, such as 1:7", param_hint="--right")
    least, greatest = map(int, words)
    if not least <= greatest <= most:
        raise typer.BadParameter(f"{text} does not lie between 0 and --num-samples, {most}", param_hint="--right")
    return range(least, greatest + 1)


@contextmanager
def _sampling(loaded: "RunConfig") -> Iterator[Callable[[int, int], None]]:
    """Shows how many of the prompts are done."""
    from rich.console import Console

    from glmforge.observe.work_progress import work_progress
    from glmforge.runtime.launch import LaunchEnvironment

    is_quiet = not LaunchEnvironment.read().is_main
    console = Console(stderr=True, quiet=is_quiet, soft_wrap=True, markup=False, highlight=False)
    with work_progress(f"sampling {loaded.name}", 1, console) as show:
        yield lambda done, total: show(done, f"prompt {done:,} of {total:,}")


def _print_kept(out: Path, counts: "Counts", what: str) -> None:
    from glmforge.runtime.launch import LaunchEnvironment

    if LaunchEnvironment.read().is_main:
        kept, total = counts.verdicts["kept"], counts.verdicts.total()
        rest = ", ".join(f"{number:,} {name}" for name, number in sorted(counts.verdicts.items()) if name != "kept")
        typer.echo(f"{out}: {kept:,} of {total:,} {what}" + (f" (left out: {rest})" if rest else ""))
        typer.echo(f"{counts.tokens_per_second:,.0f} tokens/s", err=True)


def _config_or_run(source: str, overrides: Sequence[str]) -> "RunConfig":
    from glmforge.config import load_config

    run, _, step = source.rpartition("@")
    is_step = step.isdigit() and Path(run).is_dir()
    loaded = load_config(run if is_step else source, overrides)  # errors in it are reported before torch is imported
    if not (is_step or Path(source).is_dir()):
        return loaded
    from glmforge.recipes.rl_answers import with_weights_of

    return with_weights_of(loaded, Path(source))


def _print_summary(groups: Sequence["Group"], counts: "Counts") -> None:
    answers = [one for group in groups for one in group.answers]
    known = [one for one in answers if one.reward is not None]
    typer.echo(f"\n{len(answers):,} answers to {len(groups):,} prompts")
    if known:
        terms = {name: sum(one.terms[name] for one in known) / len(known) for name in known[0].terms}
        typer.echo(f"mean: {_reward_words(sum(one.reward or 0.0 for one in known) / len(known), terms)}")
    lengths = sorted(len(one.tokens_N) for one in answers)
    cut = sum(one.is_cut for one in answers) / len(answers)
    typer.echo(f"length: median {lengths[len(lengths) // 2]:,}, longest {lengths[-1]:,} tokens; {cut:.0%} cut")
    equal = sum(not group.has_spread for group in groups) / len(groups)
    typer.echo(f"groups without a spread of rewards: {equal:.0%}")
    for reason, number in Counter(one.failed for one in answers if one.failed).most_common():
        typer.echo(as_shown(f"failed, not to be trained on: {number:,} ({reason})"))
    typer.echo(f"sampling: {counts.tokens_per_second:,.0f} tokens/s")


def _facts_of(answer: "Answer") -> str:
    failed = f"  failed: {answer.failed}" if answer.failed else ""
    return f"{_reward_words(answer.reward, answer.terms)}  {_length(len(answer.tokens_N), answer.finished)}{failed}"


def _reward_words(reward: float | None, terms: dict[str, float]) -> str:
    listed = ", ".join(f"{name} {value:.3g}" for name, value in terms.items())
    return f"reward {'unknown' if reward is None else f'{reward:.3g}'}" + (f" ({listed})" if listed else "")


def _length(num_tokens: int, finished: str) -> str:
    return f"{num_tokens:,} tokens{_ENDS.get(finished, '')}"


def _print_prompt(name: str, source: str, text: str, *, full: bool) -> None:
    typer.echo(as_shown(f"\n{name} ({source})\n{_indented(text, _MAX_PROMPT, full=full)}"))


def _print_reply(facts: str, reply: str, *, full: bool) -> None:
    typer.echo(as_shown(f"  {facts}\n{_indented(reply, _MAX_REPLY, full=full, by='    ')}"))


def _indented(text: str, most: int, *, full: bool, by: str = "  ") -> str:
    text = text.strip("\n")
    clipped = text if full or len(text) <= most else f"{text[: most // 2]} […] {text[-most // 2 :]}"
    return "\n".join(f"{by}{line}" for line in clipped.splitlines())


def _grouped(records: Iterable[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    groups: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["group"], []).append(record)
    return groups


def _mean_reward(records: Iterable[dict[str, Any]]) -> float:
    known = [record["reward"] for record in records if record["reward"] is not None]
    return sum(known) / len(known) if known else 0.0
