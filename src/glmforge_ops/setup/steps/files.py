"""Steps 4, 5, 7 and 8: the hostfile, keys and host keys, launch scripts and the job script."""

from glmforge.files import shown
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.environment.script import Wanted as EnvironmentWanted
from glmforge_ops.environment.script import as_script
from glmforge_ops.setup.change import HERE, Change
from glmforge_ops.setup.plan import Context, Problem, Step, problems_by_text
from glmforge_ops.setup.render import render

_PROXY_MEND = "add it to ssh/config, or set up from a machine within the cluster's network"
JOB_SCRIPTS = {"slurm": "job.sbatch", "mpi": "job.pbs", "manual": "job.sh"}


def hostfile(context: Context) -> Step:
    step = Step("Hostfile")
    lines = "".join(f"{line.name} slots={line.slots}\n" for line in context.wanted.machines)
    step.wanted.append(Change(HERE, "file", str(context.wanted.out / "hostfile"), 0o644, lines))
    return step


def ssh(context: Context) -> Step:
    """The cluster's own key, its file of host keys, a configuration for both; and the public key on the nodes."""
    step = Step("ssh keys and known hosts")
    wanted, directory = context.wanted, context.wanted.ssh_directory
    remote = [name for name in wanted.names if name not in LOCAL]
    if not remote:
        step.notes.append("none: no node but this machine")
        return step
    step.wanted.append(Change(HERE, "directory", str(directory), 0o700))
    step.wanted += context.key_files
    if context.known_hosts:
        step.wanted.append(Change(HERE, "file", str(directory / "known_hosts"), 0o600, context.known_hosts, adds=True))
    text = render(
        "ssh_config", wanted=wanted, places=[context.places[name] for name in remote if name in context.places]
    )
    step.wanted.append(Change(HERE, "file", str(directory / "config"), 0o600, text))
    step.problems += problems_by_text(
        {
            host: (
                "its ~/.ssh/authorized_keys is one that sshd refuses, since others can write to it",
                "chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys there",
            )
            for host, facts in context.facts.items()
            if facts.get("home_is_open")
        }
    )
    proxied = {host: place.through for host, place in context.places.items() if place.through}
    step.problems += problems_by_text(
        {
            host: (f"ssh goes through {shown(how)}, which is not taken over", _PROXY_MEND)
            for host, how in proxied.items()
        },
        is_error=False,
    )
    holders = set[str]()
    for host in remote:
        if host not in context.facts and not context.offline:
            continue
        home = context.facts.get(host, {}).get("home", {})
        if home.get("network"):
            if home["source"] in holders:
                continue  # the same directory as another node's
            holders.add(home["source"])
        step.wanted += [
            Change(host, "directory", "~/.ssh", 0o700),
            Change(host, "line", "~/.ssh/authorized_keys", 0o600, context.authorized),
        ]
    return step


def launch_script(context: Context) -> Step:
    """With the environment of a job, which it finds out on each node: see `glmforge cluster env`."""
    step = Step("Launch script")
    wanted = context.wanted
    interfaces = (wanted.cluster.interface,) if wanted.cluster.interface else ()
    environment = EnvironmentWanted(
        network=wanted.cluster.network or "auto",
        interfaces=interfaces,
        devices=tuple(wanted.cluster.infiniband) if wanted.cluster.network in ("infiniband", "roce") else (),
    )
    step.wanted.append(Change(HERE, "file", str(wanted.out / "env.sh"), 0o755, as_script(environment)))
    text = render(f"launch_{wanted.kind}.sh", wanted=wanted)
    step.wanted.append(Change(HERE, "file", str(wanted.out / "launch.sh"), 0o755, text))
    on_node = render("on_node.sh", wanted=wanted)
    step.wanted.append(Change(HERE, "file", str(wanted.out / "on_node.sh"), 0o755, on_node))
    unseen = [host for host, facts in context.facts.items() if facts["paths"][str(wanted.out)]["kind"] == "absent"]
    unseen = [host for host in unseen if host not in LOCAL]
    if unseen and wanted.out.exists():
        text, mend = f"does not see {wanted.out}, where the scripts are", "give --out a directory on shared storage"
        step.problems.append(Problem(text, mend, tuple(unseen), is_error=False))
    return step


def job_script(context: Context) -> Step:
    step = Step("Job script")
    name = JOB_SCRIPTS[context.wanted.kind]
    text = render(name, wanted=context.wanted)
    step.wanted.append(Change(HERE, "file", str(context.wanted.out / name), 0o755, text))
    return step
