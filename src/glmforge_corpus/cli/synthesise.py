"""`glmforge data problems|generate`: problems with verified solutions, and replies of a served model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from glmforge.cli.data.options import split_names
from glmforge.errors import ConfigError, DataError
from glmforge.observe.units import counted
from glmforge.observe.work_progress import Show, work_progress
from glmforge_corpus.cli.pipeline_command import RedoOption, option_groups
from glmforge_corpus.cli.terminal import step_progress

if TYPE_CHECKING:
    from glmforge_corpus.synthesise.endpoint.ask import OnProgress, Server
    from glmforge_corpus.synthesise.endpoint.generate import Sampling

FAMILIES = "arithmetic,number_theory,word_problems,algebra,logic,programs,tables,tools"


def problems(
    count: Annotated[int, typer.Option(min=1, help="Number of problems, over all families and levels.")],
    out: Annotated[Path, typer.Option(help="Output directory; an interrupted run continues there.")],
    source: Annotated[
        str, typer.Option(help="glmforge, or reasoning-gym: its families, without solutions, for RL.")
    ] = "glmforge",
    families: Annotated[
        str | None, typer.Option(help=f"Families, separated by commas; of glmforge by default {FAMILIES}.")
    ] = None,
    levels: Annotated[str, typer.Option(help="Difficulties: 3, 1-5, or 1,2,5.")] = "1-5",
    languages: Annotated[str, typer.Option(help="en, zh or both.")] = "en,zh",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the problems.")] = 0,
    against: Annotated[
        list[Path] | None, typer.Option(help="Evaluation set whose items must not occur. Repeatable.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0: one per core.")] = 0,
    redo: RedoOption = False,
) -> None:
    """Make problems with step-by-step solutions, each verified by an independent checker.

    Examples:

        glmforge data problems --count 100000 --out data/problems

        glmforge data problems --families logic,tools --levels 3-5 --count 20000 --out data/hard \\
            --against gsm8k-test.jsonl --against math-test.jsonl

        glmforge data problems --source reasoning-gym --families countdown,basic_arithmetic --count 5000 --out data/gym
    """
    if source != "glmforge":
        _reasoning_gym(source, families, count, out, seed=seed, redo=redo, against=against)
        return
    from glmforge_corpus.synthesise.make import make_problems
    from glmforge_corpus.synthesise.stage import Problems

    options = _model(
        Problems,
        count=count,
        families=split_names(families or FAMILIES),
        levels=_levels(levels),
        languages=split_names(languages),
        against=[{"name": path.stem, "path": path} for path in against or ()],
    )
    console = Console()
    with step_progress() as show:
        report = make_problems(options, out, seed=seed, workers=workers, redo=redo, progress=show)
    console.print(
        f"{out}: {report['written']:,} problems of {len(report['templates'])} templates and levels; of "
        f"{report['made']:,} made, {report['not_verified']:,} not verified, {report['duplicates']:,} duplicates, "
        f"{report['contaminated']:,} contaminated",
        soft_wrap=True,
    )
    if report["written"] < count:
        console.print(
            f"{count - report['written']:,} fewer than requested: these families and levels have too few different "
            "problems; add families or levels",
            soft_wrap=True,
        )


def _reasoning_gym(
    source: str, families: str | None, count: int, out: Path, *, seed: int, redo: bool, against: list[Path] | None
) -> None:
    from glmforge_corpus.synthesise.reasoning_gym import SOURCE, make_reasoning_gym

    if source != SOURCE:
        raise ConfigError(f"--source {source}: choose glmforge or {SOURCE}")
    if not families:
        raise ConfigError(f"--source {SOURCE} needs --families, such as countdown,basic_arithmetic")
    if against:
        raise ConfigError(f"--source {SOURCE} does not compare with evaluation sets; remove --against")
    report = make_reasoning_gym(split_names(families), count, out, seed=seed, redo=redo)
    Console().print(f"{out}: {report['written']:,} problems", soft_wrap=True)


def _levels(text: str) -> list[int]:
    levels: list[int] = []
    for part in split_names(text):
        first, _, last = part.partition("-")
        span = range(int(first), int(last or first) + 1) if first.isdecimal() and (last or first).isdecimal() else ()
        if not span:
            raise ConfigError(f"--levels {text}: write 3, 1-5, or 1,2,5")
        levels += span
    return levels


def _model(kind: Any, **fields: Any) -> Any:
    """A model of options; the first mistake is an error in one line."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = (first.get("ctx") or {}).get("field") or ".".join(map(str, first["loc"]))
        raise ConfigError(f"--{str(where).replace('_', '-')}: {first['msg']}") from None


def _server(
    endpoint: Annotated[str, typer.Option(help="Server's URL, up to /chat/completions: http://localhost:8000/v1.")],
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent requests.")] = 32,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for a complete reply.")] = 600.0,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts per request in this run.")] = 6,
    prompt_price: Annotated[float, typer.Option(min=0.0, help="Price of a million prompt tokens.")] = 0.0,
    completion_price: Annotated[float, typer.Option(min=0.0, help="Price of a million completion tokens.")] = 0.0,
    max_cost: Annotated[
        float | None, typer.Option(min=0.0, help="Upper bound on the cost of all runs into this directory.")
    ] = None,
    api_key_env: Annotated[str, typer.Option(help="Environment variable that holds the API key.")] = "OPENAI_API_KEY",
) -> "Server":
    from glmforge_corpus.synthesise.endpoint.ask import Server

    server: Server = _model(
        Server,
        endpoint=endpoint,
        api_key_env=api_key_env,
        concurrency=concurrency,
        timeout=timeout,
        attempts=attempts,
        prices={"prompt": prompt_price, "completion": completion_price},
        max_cost=max_cost,
    )
    return server


def _sampling(
    model: Annotated[str, typer.Option(help="The model's name on the server.")],
    questions_per_document: Annotated[int, typer.Option(min=1, help="Questions to generate per document.")] = 3,
    samples: Annotated[int, typer.Option(min=1, help="Solutions per question.")] = 4,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 0.8,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus sampling probability.")] = 0.95,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per reply, reasoning included.")] = 8192,
    question_prompt: Annotated[
        Path | None, typer.Option(help="Jinja file with {{ document }} and {{ count }}.")
    ] = None,
    solution_prompt: Annotated[Path | None, typer.Option(help="Jinja file with {{ question }}.")] = None,
    no_seed: Annotated[bool, typer.Option("--no-seed", help="Send no seed, for servers that refuse one.")] = False,
) -> "Sampling":
    from glmforge_corpus.synthesise.endpoint.generate import Sampling

    sampling: Sampling = _model(
        Sampling,
        model=model,
        samples=samples,
        questions=questions_per_document,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        send_seed=not no_seed,
        question_prompt=question_prompt,
        solution_prompt=solution_prompt,
    )
    return sampling


@option_groups(server=_server, sampling=_sampling)
def generate(
    server: Any,
    sampling: Any,
    out: Annotated[Path, typer.Option(help="Output directory; an interrupted run continues there.")],
    documents: Annotated[list[Path] | None, typer.Option(help="Documents to make questions from.")] = None,
    questions: Annotated[
        Path | None,
        typer.Option(help="Questions instead of documents (.jsonl: question, and answer or verifier if known)."),
    ] = None,
    text_field: Annotated[str, typer.Option(help="Field of the documents that holds the text.")] = "text",
    only_questions: Annotated[
        bool, typer.Option("--only-questions", help="Make questions, but do not solve them.")
    ] = False,
    trust_answers: Annotated[
        bool,
        typer.Option("--trust-answers", help="Judge by the answers generated with the questions, instead of by vote."),
    ] = False,
    require_thinking: Annotated[
        bool, typer.Option("--require-thinking", help="Reject replies without reasoning.")
    ] = False,
    agreement: Annotated[
        float, typer.Option(help="Without a known answer: fraction of the votes that an answer must exceed.")
    ] = 0.5,
) -> None:
    """Ask a served model for questions and solutions, and keep what passes the checks.

    Examples:

        glmforge data generate --endpoint http://localhost:8000/v1 --model glm --questions problems.jsonl --out data/r1

        glmforge data generate --endpoint https://api.example.com/v1 --model glm-4.6 --documents books.jsonl.zst \\
            --out data/books --prompt-price 0.6 --completion-price 2.2 --max-cost 50
    """
    from glmforge_corpus.synthesise.endpoint.generate import generate as run
    from glmforge_corpus.synthesise.endpoint.inputs import read_inputs
    from glmforge_corpus.synthesise.endpoint.judge import Judgement

    rules = _model(Judgement, require_thinking=require_thinking, agreement=agreement)
    console = Console()
    items, unreadable = read_inputs(documents or [], questions, text_field)
    for problem in unreadable[:5]:
        console.print(f"skipped: {problem}", soft_wrap=True, markup=False)
    with work_progress("asking", 100) as show:
        progress, how = _shown_by(show), (server, sampling, rules)
        report = run(items, out, *how, trust_answers=trust_answers, only_questions=only_questions, progress=progress)
    _print_report(console, out, report, len(unreadable))


def _shown_by(show: Show) -> "OnProgress":
    def tell(tally: Any, spent: float) -> None:
        done = tally.reused + tally.asked
        show(done, f"{done:,} of {tally.total:,} replies" + (f", {spent:,.4f} spent" if spent else ""))

    return tell


def _print_report(console: Console, out: Path, report: dict[str, Any], num_unreadable: int) -> None:
    if "accepted" in report:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in report["rejected"].items() if count)
        console.print(
            f"{out}: {report['accepted']:,} solutions accepted for {report['questions_with_a_solution']:,} of "
            f"{counted(report['questions'], 'question')}; rejected: {reasons or 'none'}",
            soft_wrap=True,
        )
    else:
        console.print(f"{out}: {counted(report['questions'], 'question')}", soft_wrap=True)
    if num_unreadable:
        console.print(f"{num_unreadable:,} unreadable inputs were skipped", soft_wrap=True)
    cost = report["cost"]
    if cost["spent"]:
        console.print(f"cost: {cost['spent']:,.4f}" + (f" of at most {cost['cap']:,.4f}" if cost["cap"] else ""))
    for name, tally in report["requests"].items():
        missing = tally["total"] - tally["reused"] - tally["asked"]
        if missing:
            why = "the cost cap is reached" if tally["capped"] else "; ".join(tally["failed"]) or "stopped"
            line = f"{name}: {missing:,} requests are unfinished ({why}): run again to send them"
            if tally["failed"]:
                raise DataError(f"{out}: {line}")
            console.print(line, soft_wrap=True)
