"""Mistakes in a configuration are told in the user's words, wherever they stand."""

from collections.abc import Iterator
from typing import Any

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge.config.launch import LaunchConfig
from glmforge.config.load import load_config, load_settings
from glmforge.config.model import Strict
from glmforge.config.tree import assign, from_value
from glmforge.errors import ConfigError
from glmforge_ops.jobs.chain.file import ChainFile

STAGES = {"one": {"command": "true", "outputs": {"a": "b"}}, "two": {"needs": ["one"], "command": "true"}}
FILES: dict[type[Strict], dict[str, Any]] = {
    ChainFile: {"name": "life", "stages": STAGES},
    LaunchConfig: LaunchConfig().model_dump(mode="json"),
    ClusterConfig: ClusterConfig(nodes=["a"]).model_dump(mode="json"),
}
FREE = ("launch", "outputs", "env", "stages", "thresholds", "expected")
"""Whose keys are the user's own."""


def sections(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all mappings with given keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict) and not (path and path[-1] in FREE):
        yield path
    for key, below in items:
        yield from sections(below, (*path, str(key)))


@pytest.mark.parametrize("cls", FILES)
def test_an_unknown_key_of_every_section(cls: type[Strict]) -> None:
    places = list(sections(FILES[cls]))
    assert places
    for place in places:
        tree = assign(from_value(FILES[cls], "given"), [*place, "zzz"], from_value(1, "given"), "given")
        with pytest.raises(ConfigError, match=rf"given: {'[.]'.join([*place, 'zzz'])}: unknown key; valid here: "):
            load_settings(cls, tree)


def test_an_unknown_key_of_every_section_of_a_run() -> None:
    places = list(sections(load_config("demo").model_dump(mode="json")))
    assert len(places) > 10
    for place in places:
        with pytest.raises(ConfigError, match=rf"{'[.]'.join([*place, 'zzz'])}: unknown key; valid here: "):
            load_config("demo", [f"{'.'.join([*place, 'zzz'])}=1"])


def test_the_nearest_key_of_a_stage() -> None:
    chain = {"name": "life", "stages": {"one": {"comand": "true"}}}
    with pytest.raises(ConfigError, match=r"stages\.one\.comand: unknown key; did you mean 'command'\?"):
        load_settings(ChainFile, from_value(chain, "chain.yaml"))
