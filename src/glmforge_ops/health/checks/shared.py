"""Storage that all nodes share, as one node sees it: mounted, writable, with options that suit a training job."""

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.disk import judge_writing
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning, worst

NO_PATH = skipped("no shared_path is given", "give it in cluster.yaml")


def mounted(facts: Facts, context: Context) -> Outcome:
    """Whether it is there: an empty directory of the root disk, where nothing is mounted, looks the same to a job."""
    path = facts.text("path")
    if path is None:
        return NO_PATH
    if facts.text("kind") != "directory":
        return failed(f"{path} is not there", "mounted", f"mount it: look at /etc/fstab, then mount {path}")
    mount = facts.inner("mount")
    if mount is None or mount.text("point") == "/":
        return failed(f"{path} lies on the root file system", "mounted", "mount it: look at /etc/fstab, then mount -a")
    writing = judge_writing(facts)
    return writing if writing.mend else passed(f"{mount.text('type')} at {mount.text('point')}", "mounted, writable")


def options(facts: Facts, context: Context) -> Outcome:
    """What is known to hurt, of NFS and of Lustre."""
    if facts.text("path") is None:
        return NO_PATH
    mount = facts.inner("mount")
    if mount is None:
        return skipped("there is no such directory")
    kind, given = mount.text("type") or "", _parse(mount.text("options") or "")
    if kind in ("nfs", "nfs4"):
        return worst(_nfs(kind, given))
    if kind == "lustre":
        return _lustre(facts)
    return passed(kind, "options that suit a training job")


def _nfs(kind: str, given: dict[str, str]) -> list[Outcome]:
    version = given.get("vers", "4" if kind == "nfs4" else "3")
    found = [
        warning(
            f"NFS {version}",
            "a parallel file system",
            "all nodes share one server: copy data to local_path first (glmforge cluster stage), write checkpoints "
            "there or asynchronously",
        )
    ]
    if "soft" in given or "softerr" in given:
        mend = "mount it hard: a soft mount answers a slow server with errors, and data can be lost silently (nfs(5))"
        found.insert(0, failed(f"NFS {version}, soft", "hard", mend))
    if given.get("actimeo") == "0" or "noac" in given:
        mend = "leave out noac and actimeo=0: every stat asks the server (nfs(5))"
        found.insert(0, warning(f"NFS {version} without attribute cache", "actimeo over 0", mend))
    if given.get("nconnect", "1") == "1":
        mend = "mount it with nconnect=8: one TCP connection carries all otherwise (nfs(5), Linux 5.3)"
        found.insert(0, warning(f"NFS {version} over one connection", "nconnect over 1", mend))
    return found


def _lustre(facts: Facts) -> Outcome:
    count, least = facts.number("stripe_count"), "over several targets"
    if count is None:
        return skipped("Lustre; its striping is not known", "install lfs (lustre-client)")
    if count in (0, 1):
        mend = f"lfs setstripe -E 64M -c 1 -E -1 -c -1 {facts.text('path')}: large files then use all targets"
        return warning(f"Lustre, stripe count {int(count)}", least, mend)
    return passed(f"Lustre, stripe count {'all' if count < 0 else int(count)}", least)


def _parse(options: str) -> dict[str, str]:
    pairs = (option.partition("=") for option in options.split(","))
    return {name: value for name, _, value in pairs if name}


CHECKS = (
    Check("shared.mounted", "shared_path is mounted and writable", Level.QUICK, "shared", judge=mounted),
    Check("shared.options", "how shared_path is mounted: NFS options, Lustre stripes", Level.STANDARD, "shared",
          judge=options),
)  # fmt: skip
