"""The picture of a schedule as a file: a page that needs nothing else, or the drawing alone."""

from pathlib import Path

from glmforge.config import dump_config
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.extras import needed_for
from glmforge.observe.run import write_text
from glmforge.observe.units import format_count
from glmforge.report.page import Summary, Table, Tile, make_table, page_template
from glmforge.report.schedule import (
    NUM_SIZES,
    TOKENS_OF_STEPS,
    Schedule,
    phase_columns,
    phase_rows,
    plan_schedule,
    rate_words,
    source_rows,
)

SUFFIXES = (".html", ".png", ".svg")


def write_schedule(config: RunConfig, out: Path) -> Path:
    """Write the schedule of a run to `out`: .html with tables, .png or .svg the drawing alone.

    Returns `out`. Raises `ConfigError` for another suffix or a schedule that cannot be, `DataError` if the shards are
    there and hold too little, and `MissingPackageError` if matplotlib is not installed.
    """
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--schedule: {out}: must end in one of {', '.join(SUFFIXES)}")
    with needed_for("--schedule: drawing"):
        from glmforge.report.schedule_figures import save_schedule, schedule_svg
    schedule = plan_schedule(config)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix != ".html":
        save_schedule(schedule, out)
        return out
    svg = schedule_svg(schedule)
    caption = "Settings that differ from the previous phase are bold. The mixture is as sampled, not as configured."
    if schedule.missing:
        caption = "Settings that differ from the previous phase are bold. The mixture is as configured."
    page = page_template("schedule.html")
    write_text(out, page.render(summary=_summarize(schedule), svg=svg, caption=caption, config=dump_config(config)))
    return out


def _summarize(schedule: Schedule) -> Summary:
    config = schedule.config
    model = config.model
    return Summary(
        name=config.name,
        lead=f"GLM mixture of experts, {model.num_hidden_layers} layers of width {model.hidden_size}, "
        f"{model.num_experts_per_tok} of {model.n_routed_experts} experts active · {config.optim.matrix_optimizer}, "
        f"{config.optim.schedule} learning rate{' over steps' if schedule.lr_by_steps else ''}",
        tiles=_tiles(schedule),
        tables=[
            *_phases(schedule),
            make_table("Sources", _source_columns(schedule), source_rows(schedule), note=_sources_note(schedule)),
        ],
    )


def _tiles(schedule: Schedule) -> list[Tile]:
    config, batches = schedule.config, [span.batch_tokens for phase in schedule.phases for span in phase.spans]
    lengths = [phase.seq_len for phase in config.phases]
    return [
        Tile("Tokens", format_count(schedule.tokens)),
        Tile("Steps", f"{config.num_steps:,}"),
        Tile("Phases", str(len(config.phases))),
        Tile("Largest batch", format_count(max(batches)), "tokens"),
        Tile("Longest sequence", f"{max(lengths):,}", "tokens"),
        Tile("Learning rate", rate_words(config.optim.lr), f"down to {rate_words(schedule.phases[-1].last_lr)}"),
        Tile("Warm-up", f"{config.optim.warmup_steps or 0:,}", "steps")
        if schedule.lr_by_steps
        else Tile("Warm-up", format_count(schedule.warmup_tokens), "tokens"),
    ]


def _phases(schedule: Schedule) -> list[Table]:
    """Sizes and settings in a table each: in one they are wider than a page."""
    columns, rows = phase_columns(), list(phase_rows(schedule))
    return [
        make_table(
            "Phases",
            columns[:NUM_SIZES],
            [row[:NUM_SIZES] for row in rows],
            note=TOKENS_OF_STEPS if schedule.lr_by_steps else "",
        ),
        make_table(
            "Settings of the phases", [columns[0], *columns[NUM_SIZES:]], [[r[0], *r[NUM_SIZES:]] for r in rows]
        ),
    ]


def _source_columns(schedule: Schedule) -> list[str]:
    return ["source", "tokens", "share", "epochs", "cap", *(phase.config.name for phase in schedule.phases)]


def _sources_note(schedule: Schedule) -> str:
    if not schedule.missing:
        return "What each phase samples, with epoch caps: the other sources make up for capped ones."
    names = ", ".join(schedule.missing)
    return (
        "From the configured weights. Epochs per source, and the effect of epoch caps, are unknown because these "
        f"shards do not exist: {names}."
    )
