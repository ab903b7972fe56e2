"""The environment of a training job as a bash script, made of the table by one template (`script.sh.jinja`).

A script is to be read before it is run, and to outlive the machine that wrote it: it says of each variable what it does
and when to change it, and looks on each node for what nodes may have different (`finders.sh`). What the user set wins.
"""

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

from glmforge.errors import ConfigError
from glmforge_ops.environment.table import NETWORKS, VARIABLES, Variable, packaged

Form = Literal["bash", "slurm"]
FORMS: tuple[Form, ...] = get_args(Form)
Choice = Literal["infiniband", "roce", "tcp", "auto"]
CHOICES: tuple[Choice, ...] = get_args(Choice)

_ABOUT = dict(zip(CHOICES, ("InfiniBand", "RoCE", "sockets (TCP)", "the network that each node has"), strict=True))
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
"""Linux allows up to 15 characters; these are all that occur, and others mean something to a shell."""
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(:[1-9][0-9]?)?")
_FUNCTION = re.compile(r"^(_glmforge_\w+)\(\) \{", re.MULTILINE)
"""Each begins a paragraph of `finders.sh`, after its comment."""
_WIDTH = 116


@dataclass(frozen=True)
class Wanted:
    """What a script is for. Raises `ConfigError` for what cannot be.

    Attributes:
        network: "auto" looks on each node.
        interfaces: names of network interfaces, instead of those that the script finds.
        devices: RDMA devices or ports of them (mlx5_0:1), instead of those that the script finds.
    """

    network: Choice = "auto"
    interfaces: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

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
        if self.devices and self.network not in ("infiniband", "roce"):
            raise ConfigError(f"network {self.network!r} does not use RDMA devices: choose infiniband or roce")

    @property
    def command(self) -> str:
        """The command line that writes this script."""
        words = ["glmforge cluster env --network", self.network]
        words += ["--interface", ",".join(self.interfaces)] if self.interfaces else []
        words += ["--device", ",".join(self.devices)] if self.devices else []
        return " ".join(words)

    @property
    def ports(self) -> list[str]:
        """The devices, each with its port."""
        return [name if ":" in name else f"{name}:1" for name in self.devices]

    @property
    def groups(self) -> list[tuple[str, list[Variable]]]:
        """Rows that the script sets on every node, by group."""
        rows = [row for row in VARIABLES if row.is_set and (not row.networks or self.network in row.networks)]
        return [(group, list(of_group)) for group, of_group in groupby(rows, key=lambda row: row.group)]


def as_script(wanted: Wanted, form: Form = "bash") -> str:
    """The script; `form` "bash" is sourced or run before a command, "slurm" is a task prolog."""
    import jinja2  # takes long

    template = jinja2.Template(
        packaged("script.sh.jinja"), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    by_network = {network: [row for row in VARIABLES if row.is_set and network in (row.networks or ())]
                  for network in NETWORKS}  # fmt: skip
    names = [row.name for row in VARIABLES if row.is_set and (wanted.network == "auto" or row.is_for(wanted.network))]
    values = {"wanted": wanted, "form": form, "about": _ABOUT[wanted.network], "by_network": by_network,
              "names": list(dict.fromkeys(names)), "settings": _settings}  # fmt: skip
    calls = template.render(values, functions={})
    return template.render(values, functions=_needed_functions(calls))


def _settings(rows: Iterable[Variable]) -> str:
    """A paragraph per variable."""
    return "\n\n".join(
        f"{_comment(row.meaning)}\n{_comment(f'default: {row.default}', '  ')}\n"
        f"{_comment(f'change: {row.change}', '  ')}\n_glmforge_export {row.name} {row.bash}"
        for row in rows
    )


def _comment(words: str, indent: str = "") -> str:
    return textwrap.fill(
        words, _WIDTH, initial_indent=f"# {indent}", subsequent_indent=f"# {indent * 2}", break_long_words=False
    )


def _needed_functions(text: str) -> dict[str, str]:
    """Name -> text of the functions that `text` calls, and those that they call, in the order of the file."""
    paragraphs = packaged("finders.sh").rstrip("\n").split("\n\n")
    functions = {found[1]: text for text in paragraphs if (found := _FUNCTION.search(text))}
    needed: set[str] = set()
    called = re.findall(r"_glmforge_\w+", text)
    while called:
        name = called.pop()
        if name in functions and name not in needed:
            needed.add(name)
            called += re.findall(r"_glmforge_\w+", functions[name])
    return {name: function for name, function in functions.items() if name in needed}
