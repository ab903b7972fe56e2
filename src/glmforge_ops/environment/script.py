"""The environment of a training job as a bash script, made of the table.

A script is to be read before it is run, and to outlive the machine that wrote it: it says of each variable what it does
and when to change it, and looks on each node for what nodes may have different (`finders.sh`). What the user set wins.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

from glmforge.errors import ConfigError
from glmforge_ops.environment.table import FOUND, NETWORKS, RDMA, VARIABLES, Network, Variable, packaged, parse_version

Form = Literal["bash", "slurm", "json"]
FORMS: tuple[Form, ...] = get_args(Form)
Choice = Literal["infiniband", "roce", "tcp", "auto"]
CHOICES: tuple[Choice, ...] = get_args(Choice)

NCCL = "2.27"
"""The oldest NCCL that comes with a version of PyTorch that glmforge runs on."""
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
"""Linux has names of up to 15 characters; others than these occur nowhere, but mean something to a shell."""
_FUNCTION = re.compile(r"^(_glmforge_\w+)\(\) \{", re.MULTILINE)
"""Each begins a paragraph of `finders.sh`, after its comment."""
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(:[1-9][0-9]?)?")
_CALLED = re.compile(r"_glmforge_\w+")

_WORDS: dict[Choice, str] = {
    "infiniband": "InfiniBand",
    "roce": "RDMA over Ethernet (RoCE)",
    "tcp": "sockets (TCP)",
    "auto": "the network that each node has",
}
_USE: dict[str, str] = {
    "bash": """\
# For every node: read by the shell that starts its ranks, or run before the command that a rank is.
#
#   source env.sh && torchrun ... -m glmforge train run.yaml
#   srun env.sh glmforge train run.yaml
#
# Not in a batch script before srun: what the first node found would be every node's.
""",
    "slurm": """\
# A task prolog: Slurm runs it on each node and gives its variables to the task.
#
#   srun --task-prolog=/shared/env.sh glmforge train run.yaml
""",
}
_BASH_ONLY = """\
if [ -z "${BASH_VERSION-}" ]; then
  echo "env: needs bash" >&2
  # shellcheck disable=SC2317 # not sourced, but run by another shell
  return 1 2>/dev/null || exit 1
fi
"""
_RUN_OR_RETURN = """\
if [[ ${BASH_SOURCE[0]-} == "$0" ]]; then
  if (($# == 0)); then
    _glmforge_warn "source this file, or give it the command to run with these variables"
    exit 2
  fi
  exec "$@"
fi
"""


@dataclass(frozen=True)
class Wanted:
    """What a script is to be for. Raises `ConfigError` for what cannot be.

    Attributes:
        network: "auto" looks on each node.
        interfaces: names of network interfaces, instead of those that are looked for.
        devices: RDMA devices or ports of them (mlx5_0:1), instead of those that are looked for.
        nccl: the oldest version of NCCL that it is to work with.
    """

    network: Choice = "auto"
    interfaces: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    nccl: str = NCCL

    def __post_init__(self) -> None:
        if self.network not in CHOICES:
            raise ConfigError(f"unknown network {self.network!r}: one of {', '.join(CHOICES)}")
        for name in self.interfaces:
            if not _INTERFACE.fullmatch(name):
                raise ConfigError(
                    f"invalid interface name {name!r}: letters, digits, '_', '.' and '-', at most 15; see 'ip link'"
                )
        for name in self.devices:
            if not _DEVICE.fullmatch(name):
                raise ConfigError(f"invalid RDMA device {name!r}: as in mlx5_0 or mlx5_0:1; see 'ibstat -l'")
        if self.devices and self.network not in RDMA:
            raise ConfigError(f"network {self.network!r} does not use RDMA devices: choose infiniband or roce")
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,2}", self.nccl) or parse_version(self.nccl) < (2, 18):
            raise ConfigError(f"NCCL {self.nccl!r} is not a version, 2.18 or later: for example {NCCL}")

    @property
    def command(self) -> str:
        """The command line that writes this script."""
        words = ["glmforge cluster env --network", self.network]
        words += ["--interface", ",".join(self.interfaces)] if self.interfaces else []
        words += ["--device", ",".join(self.devices)] if self.devices else []
        words += ["--nccl", self.nccl] if self.nccl != NCCL else []
        return " ".join(words)

    def rows(self, network: Network | None = None) -> list[Variable]:
        """Rows that a script sets on `network`; None: those that it sets on every network."""
        rows = [row for row in VARIABLES if row.is_set and row.is_for_nccl(parse_version(self.nccl))]
        return [row for row in rows if (row.networks is None if network is None else row.is_for(network))]


def as_script(wanted: Wanted, form: Form = "bash") -> str:
    """The script; `form` "bash" is sourced or run before a command, "slurm" is a task prolog."""
    body = "\n".join([*_found_first(wanted, form), *_settings(wanted)])
    end = _slurm_end(wanted) if form == "slurm" else _RUN_OR_RETURN
    functions = _needed_functions(body + end)
    if form == "bash":
        end += _cleared("unset -f", list(functions)) + _cleared("unset", _helpers(body))
    return "\n".join([_head(wanted, form), _BASH_ONLY, *functions.values(), body, end])


def as_dict(wanted: Wanted) -> dict[str, object]:
    """The rows for a machine: those of the network, with those that are left alone; of "auto", those of all."""
    networks = NETWORKS if wanted.network == "auto" else (wanted.network,)
    rows = [row for row in VARIABLES if any(row.is_for(network) for network in networks)]
    return {
        "network": wanted.network,
        "interfaces": list(wanted.interfaces),
        "devices": list(wanted.devices),
        "variables": [_row_dict(row) for row in rows if row.is_for_nccl(parse_version(wanted.nccl))],
    }


def _row_dict(row: Variable) -> dict[str, object]:
    return {
        "name": row.name,
        "group": row.group,
        "networks": list(row.networks or NETWORKS),
        "set": row.is_set,
        "by_glmforge": row.by_glmforge,
        "value": row.set,
        "found": FOUND[row.find] if row.find else None,
        "default": row.default,
        "meaning": row.meaning,
        "change": row.change,
        "source": row.source,
    }


def _head(wanted: Wanted, form: Form) -> str:
    command = wanted.command + ("" if form == "bash" else f" --shell {form}")
    return (
        f"#!/bin/bash\n# Environment variables of a training job on {_WORDS[wanted.network]}. Written by:\n#\n"
        f"#   {command}\n#\n{_USE[form]}#\n"
        + _comment(
            "What is set already stays as it is. What nodes may have different (interfaces, adapters, cores) is looked "
            "for on the node that runs this. All variables with defaults and sources: docs/cluster-env.md of glmforge."
        )
    )


def _found_first(wanted: Wanted, form: Form) -> Iterator[str]:
    """Assignments of what several variables are made of."""
    if wanted.interfaces:
        yield f"_glmforge_interface={','.join(wanted.interfaces)}\n"
    else:
        yield "_glmforge_interface=$(_glmforge_find_interface)\n"
    if any(row.find == "cache" for row in wanted.rows()):
        yield "_glmforge_cache=$(_glmforge_make_cache)\n"
    if wanted.devices:
        yield f"_glmforge_ports={','.join(name if ':' in name else f'{name}:1' for name in wanted.devices)}\n"
        return
    match wanted.network:
        case "infiniband":
            yield _ports("InfiniBand")
        case "roce":
            yield _ports("Ethernet")
        case "auto":
            yield (
                "_glmforge_network=infiniband\n_glmforge_ports=$(_glmforge_rdma_ports InfiniBand)\n"
                "if [[ -z $_glmforge_ports ]]; then\n  _glmforge_network=roce\n"
                "  _glmforge_ports=$(_glmforge_rdma_ports Ethernet)\nfi\n"
                "if [[ -z $_glmforge_ports ]]; then\n  _glmforge_network=tcp\nfi\n"
            )


def _ports(layer: str) -> str:
    kind = "InfiniBand" if layer == "InfiniBand" else "RoCE"
    return (
        f"_glmforge_ports=$(_glmforge_rdma_ports {layer})\nif [[ -z $_glmforge_ports ]]; then\n"
        f'  _glmforge_warn "no active {kind} port: NCCL will fail here; look at ibstat, or use --network tcp"\nfi\n'
    )


def _settings(wanted: Wanted) -> Iterator[str]:
    """A paragraph per variable, by groups; what depends on the network that a node has, at the end."""
    network = None if wanted.network == "auto" else wanted.network
    for group, rows in groupby(wanted.rows(network), key=lambda row: row.group):
        yield f"# ---- {group} ----\n"
        yield from (_setting(row) for row in rows)
    if network == "roce":
        yield _check_gids()
    if network is None:
        yield "# ---- NCCL, by network ----\n"
        yield "case $_glmforge_network in"
        for case in NETWORKS:
            own = [row for row in wanted.rows(case) if row.networks is not None]
            lines = "\n".join(_setting(row, indent=4) for row in own) + (
                "" if case != "roce" else "\n" + _check_gids(4)
            )
            yield f"  {case})\n{lines.rstrip()}\n    ;;"
        yield "esac\n"


def _check_gids(indent: int = 0) -> str:
    command = '_glmforge_check_gids "$_glmforge_ports" "$(_glmforge_family "$_glmforge_interface")"'
    return " " * indent + command + "\n"


def _setting(row: Variable, indent: int = 0) -> str:
    margin = " " * indent
    words = _comment(row.meaning, indent)
    words += _comment(f"default: {row.default}", indent, 2) + _comment(f"change: {row.change}", indent, 2)
    return f"{words}{margin}_glmforge_export {row.name} {_value(row)}\n"


def _value(row: Variable) -> str:
    """What a row sets, as a word of bash."""
    interface, ports = '"$_glmforge_interface"', '"$_glmforge_ports"'
    family = f'"$(_glmforge_family {interface})"'
    match row.find:
        case None:
            assert row.set is not None
            return row.set
        case "interface":
            return interface
        case "exact_interface":
            return '"${_glmforge_interface:+=$_glmforge_interface}"'
        case "family":
            return family
        case "infiniband_devices" | "roce_devices":
            return '"${_glmforge_ports:+=$_glmforge_ports}"'
        case "gid_index":
            return f'"$(_glmforge_gid_index {ports} {family})"'
        case "socket_threads":
            return f'"$(_glmforge_socket_threads {interface})"'
        case "threads":
            return '"$(_glmforge_threads)"'
        case "cache":
            directory = row.name.removesuffix("_CACHE_DIR").removesuffix("_DIR").removesuffix("_PATH").lower()
            return f'"${{_glmforge_cache:+$_glmforge_cache/{directory}}}"'
    raise AssertionError(row.find)


def _slurm_end(wanted: Wanted) -> str:
    networks = NETWORKS if wanted.network == "auto" else (wanted.network,)
    names = list(dict.fromkeys(row.name for network in networks for row in wanted.rows(network)))
    listed = textwrap.fill(" ".join(names), width=116, initial_indent="  ", subsequent_indent="  ").replace(
        "\n", " \\\n"
    )
    return (
        '# Slurm sets for the task what lines with "export" say.\n'
        f"for _glmforge_name in \\\n{listed}; do\n"
        "  if [[ -v $_glmforge_name ]]; then\n"
        '    echo "export $_glmforge_name=${!_glmforge_name}"\n'
        "  fi\ndone\n"
    )


def _needed_functions(text: str) -> dict[str, str]:
    """Name -> text of the functions that `text` calls, and those that they call, in the order of the file."""
    source = packaged("finders.sh")
    paragraphs = source.rstrip("\n").split("\n\n")
    functions = {found[1]: f"{text}\n" for text in paragraphs if (found := _FUNCTION.search(text))}
    needed: set[str] = set()
    called = set(_CALLED.findall(text)) & functions.keys()
    while called - needed:
        needed |= called
        called = {name for of in needed for name in _CALLED.findall(functions[of])} & functions.keys()
    return {name: function for name, function in functions.items() if name in needed}


def _helpers(body: str) -> list[str]:
    """Variables of the script's own."""
    return sorted(set(re.findall(r"^ *(_glmforge_\w+)=", body, re.MULTILINE)))


def _cleared(command: str, names: list[str]) -> str:
    return (
        textwrap.fill(f"{command} {' '.join(names)}", width=116, subsequent_indent="  ").replace("\n", " \\\n") + "\n"
    )


def _comment(words: str, indent: int = 0, inner: int = 0) -> str:
    first = " " * indent + "# " + " " * inner
    later = first + " " * inner
    return textwrap.fill(words, 120, initial_indent=first, subsequent_indent=later, break_long_words=False) + "\n"
