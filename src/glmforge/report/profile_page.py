"""The page of one or several inference profiles: tokens per second and waiting over the number of users, tables."""

from collections.abc import Callable, Sequence
from pathlib import Path

from glmforge.deploy.inference_profile import PERCENTILES, Level, Profile
from glmforge.observe.run import write_text
from glmforge.report.canvas import SERIES, Figure, draw_legend, drawing
from glmforge.report.page import Summary, Table, Tile, check_suffix, make_table, page_template


def write_profile_page(profiles: Sequence[tuple[str, Profile]], out: Path) -> None:
    """Write the page of named profiles, at most four. Raises `ConfigError` for a suffix other than .html."""
    check_suffix(out, "--page")
    write_text(out, page_template("profile.html").render(summary=_summary(profiles), figures=_figures(profiles)))


def level_rows(levels: Sequence[Level]) -> list[list[str]]:
    """What a table says of each level; see `LEVEL_COLUMNS`."""
    return [
        [
            f"{one.num_users:,}",
            _of_milliseconds(one.first_token),
            _of_milliseconds(one.between),
            f"{one.user_tokens_per_second:,.1f}",
            f"{one.tokens_per_second:,.1f}",
            f"{one.prompt_tokens:,.0f} + {one.output_tokens:,.0f}",
            "" if one.memory_bytes is None else f"{one.memory_bytes / 1e9:,.2f}",
            f"{sum(one.errors.values()):,}" if one.errors else "",
        ]
        for one in levels
    ]


_OF = " / ".join(f"p{percentile}" for percentile in PERCENTILES)
LEVEL_COLUMNS = (
    "users",
    f"first token, ms ({_OF})",
    f"between tokens, ms ({_OF})",
    "tokens/s of each",
    "tokens/s of all",
    "prompt + answer, tokens",
    "memory, GB",
    "errors",
)


def profile_words(profile: Profile) -> list[str]:
    """Saturation and the gain of the cache of prefixes."""
    saturated = profile.saturation
    return [
        f"saturated from {saturated:,} users on: more users gain less than a tenth"
        if saturated is not None
        else "not saturated: each level gains a tenth or more",
        f"a prompt seen before has its first token {profile.prefix_gain:.2f} times as fast",
    ]


def _summary(profiles: Sequence[tuple[str, Profile]]) -> Summary:
    best = max((level.tokens_per_second, name) for name, one in profiles for level in one.levels)
    quickest = min((level.first_token[0], name) for name, one in profiles for level in one.levels)
    load = profiles[0][1].load
    lead = f"{load.prompt_words:,} words in, {load.output_tokens:,} tokens out, {load.requests:,} requests of each user"
    return Summary(
        name=", ".join(name for name, _ in profiles),
        lead=lead,
        tiles=[
            Tile("most tokens per second", f"{best[0]:,.0f}", best[1]),
            Tile("shortest median to first token", f"{1000 * quickest[0]:,.1f}", f"ms, {quickest[1]}"),
        ],
        tables=[_table(name, one) for name, one in profiles],
    )


def _table(name: str, profile: Profile) -> Table:
    note = "; ".join([f"{profile.model} at {profile.server}", *profile_words(profile)]) + "."
    return make_table(name, LEVEL_COLUMNS, level_rows(profile.levels), note=note)


def _figures(profiles: Sequence[tuple[str, Profile]]) -> list[Figure]:
    return [
        _figure(profiles, "Tokens per second", "of all users together", lambda level: level.tokens_per_second),
        _figure(profiles, "A user's speed", "tokens per second of each", lambda level: level.user_tokens_per_second),
        _figure(profiles, "First token", "median, ms", lambda level: 1000 * level.first_token[0]),
        _figure(profiles, "Between tokens", "99th percentile, ms", lambda level: 1000 * level.between[2]),
    ]


def _figure(profiles: Sequence[tuple[str, Profile]], title: str, label: str, value: Callable[[Level], float]) -> Figure:
    with drawing(f"profile-{title.lower().replace(' ', '-')}", 2.55, wide=False) as plot:
        for color, (name, one) in zip(SERIES, profiles, strict=False):
            users = [level.num_users for level in one.levels]
            plot.axes.plot(users, list(map(value, one.levels)), marker="o", markersize=3, color=color, label=name)
        plot.axes.set_xscale("log", base=2)
        plot.axes.set(xlabel="users", ylabel=label)
        ticks = sorted({level.num_users for _, one in profiles for level in one.levels})
        plot.axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        plot.axes.set_ylim(bottom=0)
        if len(profiles) > 1:
            draw_legend(plot.axes)
    return Figure(title, label[:1].upper() + label[1:] + ", over the number of users.", plot.svg)


def _of_milliseconds(seconds: Sequence[float]) -> str:
    return " / ".join(f"{1000 * one:,.1f}" for one in seconds)
