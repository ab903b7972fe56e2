"""Files that run a server where it stays: a container image, Compose with Prometheus, a systemd unit.

Versions are pinned, nobody runs as root, health is checked, the model is mounted read-only, and ports are open on the
host alone. Keys are in none of the files: our own engine, and Prometheus which asks it, read one from a secret of
Compose, vLLM from its environment.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from glmforge.deploy.engines import KEY_VARIABLES, EngineName
from glmforge.errors import GlmforgeError
from glmforge.files import why_no_text

_IMAGES = {"vllm": "0.32.0", "sglang": "0.5.3"}
_MODEL_IN_CONTAINER, _KEY_IN_CONTAINER = "/model", "/run/secrets/api-key"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_START_SECONDS = {True: 1800, False: 60}


def write_deployment(
    directory: Path,
    engine: EngineName,
    command: Sequence[str],
    model: Path,
    *,
    name: str,
    port: int,
    num_gpus: int = 0,
    others: Sequence[Path] = (),
    overwrite: bool = False,
) -> list[Path]:
    """Write the files for a command as `engine_command` gives it; the paths.

    Args:
        name: of images and units: lower-case letters, digits, `-` and `_`.
        num_gpus: that containers get; 0 for none.
        others: further directories that the command names, as it names them: a tokenizer, adapters.

    Raises:
        GlmforgeError: a name or path that the files cannot contain, or a file that is there already.
    """
    if not _NAME.fullmatch(name):
        raise GlmforgeError(
            f"--name: '{name}' is not lower-case letters, digits, - and _, which Compose and systemd need"
        )
    path = str(model.resolve())
    for needed in (path, *map(str, others)):
        if why_no_text(needed) is not None or any(letter in needed for letter in ':"\\\n$%'):
            raise GlmforgeError(f"{needed!r}: contains a character that Compose or systemd reads; move it")
    mounts = {str(model): _MODEL_IN_CONTAINER} | {str(one): f"/mounted/{n}" for n, one in enumerate(others)}
    inside = [_mounted(word, mounts) for word in command]
    if engine == "native":
        inside = [*_without(inside, "--api-key-file"), "--api-key-file", _KEY_IN_CONTAINER]
    facts = {
        "engine": engine,
        "name": name,
        "port": port,
        "num_gpus": num_gpus,
        "mounts": [f"{path if one == str(model) else one}:{there}:ro" for one, there in mounts.items()],
        "command": _reachable(["python3" if "python" in inside[0] else inside[0], *inside[1:]]),
        "unit_command": " ".join(_quoted(path if word == str(model) else word) for word in command),
        "key_variable": KEY_VARIABLES.get(engine),
        "key_file": _KEY_IN_CONTAINER if engine == "native" else None,
        "start_seconds": _START_SECONDS[num_gpus > 0],
        "torch": version("torch").partition("+")[0],
        "version": version("glmforge"),
        **_IMAGES,
    }
    written = {f"{name}.service": "service.jinja"}
    if engine != "llama.cpp":
        written |= {
            "Dockerfile": "Dockerfile.jinja",
            "compose.yaml": "compose.yaml.jinja",
            "prometheus.yml": "prometheus.yml.jinja",
        }
    templates = Environment(
        loader=PackageLoader("glmforge.deploy"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    texts = {file: templates.get_template(template).render(facts) for file, template in written.items()}
    if engine == "vllm":
        texts[".env.example"] = f"{KEY_VARIABLES[engine]}=write-a-long-random-key-here\n"
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / file for file in texts]
    if not overwrite and (there := [path for path in paths if path.exists()]):
        raise GlmforgeError(f"{there[0]}: exists already; remove it or pass --force")
    for file, text in texts.items():
        (directory / file).write_text(text, "utf-8")
    return paths


def _mounted(word: str, mounts: Mapping[str, str]) -> str:
    """A path, or NAME=PATH, as it is called in the container."""
    name, equals, path = word.rpartition("=")
    return name + equals + mounts.get(path, path)


def _without(command: Sequence[str], option: str) -> list[str]:
    """Without an option and its value."""
    if option not in command:
        return list(command)
    place = command.index(option)
    return [*command[:place], *command[place + 2 :]]


def _reachable(command: Sequence[str]) -> list[str]:
    """Within a container a server listens to all; Compose opens the port on the host's loopback alone."""
    words = list(command)
    if "--host" in words:
        words[words.index("--host") + 1] = "0.0.0.0"
    return words


def _quoted(word: str) -> str:
    """As systemd reads it: `%` and `$` would be expanded."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if re.fullmatch(r"[\w@%+=:,./\-$]+", text) else f'"{text}"'
