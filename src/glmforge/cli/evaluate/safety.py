"""`glmforge evaluate safety MODEL`: how often a model refuses what is harmful, and what is not; before and after."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge.cli.data.options import ForceOption
from glmforge.cli.evaluate.model import ModelOptions, api_key, opened, refuse_ranks
from glmforge.cli.signature import takes
from glmforge.errors import GlmforgeError
from glmforge.extras import needed_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glmforge.evaluate.safety import Requests


@dataclass(frozen=True, kw_only=True)
class SafetyOptions(ModelOptions):
    """Which model, which requests, and who judges."""

    data: Annotated[Path, typer.Option(help="Directory with harmful_behaviors.csv and harmless.csv or .jsonl.")]
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory for the result; run again to resume.")]
    before: Annotated[str, typer.Option(help="The model before it was trained: asked the same, and compared.")] = ""
    limit: Annotated[int | None, typer.Option(min=1, help="Only this many requests of each kind.")] = None
    judge: Annotated[str, typer.Option(help="URL of a server whose model says of each answer if it refuses.")] = ""
    judge_model: Annotated[str, typer.Option(help="The judge's model, as its server calls it.")] = ""
    judge_key_env: Annotated[str, typer.Option(help="Environment variable with the judge's API key.")] = ""
    thinking: Annotated[bool, typer.Option(help="Let the model reason before it answers.")] = True
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 512
    force: ForceOption = False


@takes(SafetyOptions)
def safety(options: SafetyOptions) -> None:
    """Count refusals of harmful and of harmless requests, by rules and by a judge; before and after training.

    A file is CSV or JSON Lines with goal or prompt, and category and language if it has them. The rules know how
    assistants refuse in English, Chinese, German, French, Spanish, Japanese and Russian.

    Examples:

        glmforge evaluate safety exports/glm --data data/safety --out results/safety

        glmforge evaluate safety runs/rl --before runs/sft --data data/safety --out runs/rl/safety

        glmforge evaluate safety exports/glm --data data/safety --out r --judge http://judge:8000/v1 --judge-model glm
    """
    with needed_for("evaluate"):
        import lm_eval  # noqa: F401
    from glmforge.cli.evaluate.results import compare, print_with
    from glmforge.evaluate.safety import read_requests
    from glmforge.report.evaluation_page import write_page
    from glmforge.report.safety import BEFORE, safety_table

    if bool(options.judge) != bool(options.judge_model):
        raise GlmforgeError("--judge and --judge-model: give both, or neither")
    refuse_ranks("evaluate safety")
    both = read_requests(options.data, options.limit)
    before = options.out / BEFORE if options.before else None
    _measure(options, both, options.out)
    if before is not None:
        _measure(replace(options, model=options.before), both, before)
    if (found := safety_table(options.out)) is not None:
        print_with(found)
    typer.echo(f"{write_page(options.out, baseline=before)}")
    if before is not None:
        compare(before, options.out)


def _measure(options: SafetyOptions, both: "Sequence[Requests]", out: Path) -> None:
    """Ask one model, and write its result."""
    from glmforge.evaluate.benchmarks.endpoint_model import EndpointModel, Server
    from glmforge.evaluate.benchmarks.local_data import digest_of
    from glmforge.evaluate.benchmarks.model import Generation
    from glmforge.evaluate.benchmarks.replies import ReplyStore
    from glmforge.evaluate.run import finish, prepare
    from glmforge.evaluate.safety import measure
    from glmforge.verify.refusal import refusal_phrases

    judge_key = api_key(options.judge_key_env, "--judge-key-env")
    settings = {
        "max_new_tokens": options.max_new_tokens,
        "thinking": options.thinking,
        "judge": options.judge_model,
        "phrases": digest_of([refusal_phrases()]),
        "requests": {asked.name: asked.data for asked in both},
    }
    generation = Generation(max_new_tokens=options.max_new_tokens, temperature=0.0, thinking=options.thinking)
    with opened(options, is_chat=True) as model:
        prepare(out, model.identity, settings, overwrite=options.force)
        with ReplyStore(out) as replies, ReplyStore(out / "judge") as verdicts:
            judge = None
            if options.judge:
                where = Server(options.judge, options.judge_model, judge_key, options.timeout, options.connections)
                judge = EndpointModel(where, verdicts, Generation(temperature=0.0, thinking=False))
            answering = model.answering(replies, generation)
            measured = [measure(requests, answering, judge) for requests in both]
    items = [item for _, some in measured for item in some]
    finish(out, model.source, model.identity, settings, [score for score, _ in measured], items)
