"""How fast a server answers: time to the first token, between tokens, tokens per second, for more and more users.

A number of users send one request after another, each as soon as the one before it has been answered (a closed loop),
over OpenAI's `/v1/completions` with streaming, which every engine has. Answers are made to have the length asked for,
where the server can. Prompts are words drawn from a seed: no two requests begin alike, so no cache helps, but for the
measurement of what the cache of prefixes gains. Numbers of tokens are the server's own.

Times are those that a user sees, network and HTTP included. A level is repeated by nobody: on a busy machine compare
levels of one profile, and profiles that were measured one after the other.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from pydantic import TypeAdapter

from glmforge.endpoint import url_fault
from glmforge.errors import DataError, GlmforgeError

PERCENTILES = (50, 95, 99)
_WORDS = """\
river stone garden window letter music winter summer bread water paper silver engine village mountain forest morning
evening teacher doctor market bridge harbour island kitchen library painter sailor farmer castle"""
_MAX_LINE = 1 << 20


@dataclass(frozen=True)
class Load:
    """What users ask for.

    Attributes:
        prompt_words: of each prompt; a word is one token or a few.
        output_tokens: of each answer.
        requests: of each user.
    """

    prompt_words: int = 128
    output_tokens: int = 64
    requests: int = 4
    seed: int = 0


@dataclass
class Timed:
    """A request: seconds from sending it to each piece of its answer, and the server's numbers of tokens."""

    pieces: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class Level:
    """What a number of users saw. Percentiles are the 50th, 95th and 99th, in seconds; NaN without an answer.

    Attributes:
        first_token: from sending a request to its first piece.
        between: from one piece to the next.
        user_tokens_per_second: of a user while an answer comes, the mean.
        tokens_per_second: of all users over the whole level.
        memory_bytes: of the server's process at its end, where it says so.
    """

    num_users: int
    num_answers: int
    errors: dict[str, int]
    prompt_tokens: float
    output_tokens: float
    first_token: list[float]
    between: list[float]
    user_tokens_per_second: float
    tokens_per_second: float
    memory_bytes: float | None


@dataclass(frozen=True)
class Profile:
    """All levels of a server. `prefix_gain`: how many times as fast a first token comes for a prompt seen before."""

    server: str
    model: str
    load: Load
    levels: list[Level]
    prefix_gain: float

    @property
    def saturation(self) -> int | None:
        """The first number of users from which the next one gains less than a tenth; None if all gain more."""
        for lower, higher in zip(self.levels, self.levels[1:], strict=False):
            if higher.tokens_per_second < 1.1 * lower.tokens_per_second:
                return lower.num_users
        return None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"saturation": self.saturation}


def profile_server(
    url: str,
    load: Load,
    batch_sizes: Sequence[int],
    *,
    model: str | None = None,
    key: str = "",
    timeout: float = 600.0,
    on_level: Callable[[Level], None] = lambda level: None,
) -> Profile:
    """Measure a server at each number of users.

    Args:
        url: up to `/v1` or without it.
        model: its name there; None: the first that the server lists.

    Raises:
        GlmforgeError: the URL is none, the server does not answer, or no request of a level was answered.
    """
    if fault := url_fault(url):
        raise GlmforgeError(f"{url}: {fault}")
    return asyncio.run(_profile(url.rstrip("/").removesuffix("/v1"), load, batch_sizes, model, key, timeout, on_level))


async def _profile(
    url: str,
    load: Load,
    batch_sizes: Sequence[int],
    model: str | None,
    key: str,
    timeout: float,
    on_level: Callable[[Level], None],
) -> Profile:
    limits = httpx2.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(
        base_url=url, headers=headers, timeout=timeout, limits=limits, trust_env=False
    ) as client:
        name = model or await _first_model(client)
        await _answer(client, name, _prompt(load, "warm"), load)
        levels = []
        for number in batch_sizes:
            levels.append(await _level(client, name, load, number))
            on_level(levels[-1])
        return Profile(url, name, load, levels, await _prefix_gain(client, name, load))


async def _first_model(client: httpx2.AsyncClient) -> str:
    try:
        reply = await client.get("/v1/models")
        reply.raise_for_status()
        return str(reply.json()["data"][0]["id"])
    except httpx2.HTTPError as error:
        raise GlmforgeError(f"{client.base_url}: does not list its models: {_reason(error)}") from None
    except (ValueError, LookupError, TypeError):
        raise DataError(f"{client.base_url}: lists no model; pass --model") from None


async def _level(client: httpx2.AsyncClient, model: str, load: Load, num_users: int) -> Level:
    async def user(number: int) -> list[Timed]:
        return [
            await _answer(client, model, _prompt(load, f"{num_users}:{number}:{turn}"), load)
            for turn in range(load.requests)
        ]

    started = time.perf_counter()
    found = [one for some in await asyncio.gather(*map(user, range(num_users))) for one in some]
    seconds = time.perf_counter() - started
    errors: dict[str, int] = {}
    for one in found:
        if one.error:
            errors[one.error] = errors.get(one.error, 0) + 1
    good = [one for one in found if not one.error]
    if not good:
        raise GlmforgeError(f"{client.base_url}: no request of {num_users} users was answered: {next(iter(errors))}")
    gaps = [gap for one in good for gap in np.diff(one.pieces)]
    speeds = [(one.num_tokens - 1) / (one.pieces[-1] - one.pieces[0]) for one in good if len(one.pieces) > 1]
    return Level(
        num_users,
        len(good),
        errors,
        float(np.mean([one.num_prompt_tokens for one in good])),
        float(np.mean([one.num_tokens for one in good])),
        _percentiles([one.pieces[0] for one in good]),
        _percentiles(gaps),
        float(np.mean(speeds)) if speeds else float("nan"),
        sum(one.num_tokens for one in good) / seconds,
        await _memory(client),
    )


async def _prefix_gain(client: httpx2.AsyncClient, model: str, load: Load) -> float:
    """Median over some prompts, each sent twice."""
    gains = []
    for turn in range(max(3, load.requests)):
        prompt = _prompt(load, f"prefix:{turn}")
        first, second = [await _answer(client, model, prompt, load) for _ in range(2)]
        if not (first.error or second.error):
            gains.append(first.pieces[0] / second.pieces[0])
    return float(np.median(gains)) if gains else float("nan")


async def _answer(client: httpx2.AsyncClient, model: str, prompt: str, load: Load) -> Timed:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": load.output_tokens,
        "min_tokens": load.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    timed, started = Timed(), time.perf_counter()
    try:
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            if reply.status_code != 200:
                timed.error = f"status {reply.status_code}"
                return timed
            async for event in _events(reply):
                if event.get("error"):
                    timed.error = "error in the stream"
                if any(choice.get("text") for choice in event.get("choices") or ()):
                    timed.pieces.append(time.perf_counter() - started)
                if usage := event.get("usage"):
                    timed.num_tokens = int(usage["completion_tokens"])
                    timed.num_prompt_tokens = int(usage["prompt_tokens"])
    except httpx2.HTTPError as error:
        timed.error = _reason(error)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        timed.error = "malformed stream"
    timed.num_tokens = timed.num_tokens or len(timed.pieces)
    if not timed.pieces and not timed.error:
        timed.error = "empty answer"
    return timed


async def _events(reply: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON of server-sent events, up to `[DONE]`."""
    async for line in reply.aiter_lines():
        if len(line) > _MAX_LINE:
            raise ValueError("an event without end")
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        if line.startswith("data:"):
            yield json.loads(data)


async def _memory(client: httpx2.AsyncClient) -> float | None:
    """What `/metrics` says of the server's process."""
    try:
        text = (await client.get("/metrics")).text
    except httpx2.HTTPError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "process_resident_memory_bytes":
            try:
                return float(value)
            except ValueError:
                return None
    return None


def _prompt(load: Load, of: str) -> str:
    return " ".join(random.Random(f"{load.seed}:{of}").choices(_WORDS.split(), k=load.prompt_words))


def _percentiles(values: Sequence[float]) -> list[float]:
    return [float(one) for one in np.percentile(values, PERCENTILES)] if values else [float("nan")] * 3


def _reason(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()[:200]


def read_profile(file: Path) -> Profile:
    """What `as_json` gave. Raises `DataError` for any other file."""
    try:
        content = json.loads(file.read_text("utf-8"))
        content.pop("saturation")
        profile = TypeAdapter(Profile).validate_python(content)
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise DataError(f"{file}: not a profile; pass what 'glmforge profile inference --out' wrote") from None
    if not profile.levels:
        raise DataError(f"{file}: has no level")
    return profile
