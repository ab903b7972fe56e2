"""RoCE: what makes Ethernet lossless enough for RDMA. Each setting that is missing is silent: traffic flows, slowly."""

from collections.abc import Callable

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.infiniband import ETHERNET, of_each_port
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning

_Judge = Callable[[Facts, Context], Outcome]


def _of_ethernet(judge: _Judge) -> _Judge:
    """What stands in a port's `ethernet`; the others have none."""

    def judge_port(port: Facts, context: Context) -> Outcome:
        ethernet = port.inner("ethernet")
        if port.text("layer") != ETHERNET or ethernet is None:
            return skipped("the network is InfiniBand")
        return judge(ethernet, context)

    return judge_port


def gids(ethernet: Facts, context: Context) -> Outcome:
    """An address of version 2, which routers and switches' congestion marks know."""
    found = ethernet.count("roce_v2") or 0
    threshold, mend = "at least one", "give the interface an IP address; 'show_gids' lists them"
    return passed(f"{found}", threshold) if found else failed("no RoCE v2 address", threshold, mend)


def lossless(ethernet: Facts, context: Context) -> Outcome:
    """Priority flow control for one priority, chosen by the packets' DSCP."""
    priorities, trust, interface = ethernet.numbers("lossless"), ethernet.text("trust"), ethernet.text("interface")
    if not priorities and ethernet.is_unknown("lossless"):
        return skipped("mlnx_qos is not there", "install mlnx-tools")
    if not priorities:
        mend = f"'mlnx_qos -i {interface} --pfc 0,0,0,1,0,0,0,0', as the switches have it"
        return failed("no priority is lossless", "flow control for one priority", mend)
    told = ", ".join(f"{priority:g}" for priority in priorities)
    if trust is not None and trust != "dscp":
        mend = f"'mlnx_qos -i {interface} --trust dscp'"
        return failed(f"priorities are chosen by {trust}", "by dscp", mend)
    return passed(f"priority {told}", "flow control for one priority")


def congestion(ethernet: Facts, context: Context) -> Outcome:
    """Congestion marks are answered and obeyed for the lossless priorities."""
    if ethernet.is_unknown("ecn_np") or ethernet.is_unknown("ecn_rp"):
        return skipped("the card does not tell")
    wanted = set(ethernet.numbers("lossless")) or {3.0}
    interface = ethernet.text("interface")
    for side in ("np", "rp"):
        missing = sorted(wanted - set(ethernet.numbers(f"ecn_{side}")))
        if missing:
            where = f"/sys/class/net/{interface}/ecn/roce_{side}/enable/{missing[0]:g}"
            return warning(f"off for priority {missing[0]:g}", "on for the lossless priority", f"'echo 1 > {where}'")
    return passed("on", "on for the lossless priority")


def traffic_class(ethernet: Facts, context: Context) -> Outcome:
    """Packets carry the DSCP of the lossless priority, unless NCCL_IB_TC says so for each job."""
    found, usual = ethernet.count("tos"), context.thresholds.get("roce-tos").value
    threshold = f"{usual:g} (DSCP {usual // 4:g})"
    if found is None:
        return skipped("cma_roce_tos is not there", "install mlnx-tools, or set NCCL_IB_TC")
    mend = f"'cma_roce_tos -d DEVICE -t {usual:g}', or NCCL_IB_TC={usual:g} in the environment of jobs"
    return passed(f"{found}", threshold) if found == usual else warning(f"{found}", threshold, mend)


def interface_mtu(ethernet: Facts, context: Context) -> Outcome:
    """Room for RDMA's largest packet and its headers."""
    found, least = ethernet.count("interface_mtu"), context.thresholds.get("roce-interface-mtu").value
    threshold, interface = f"at least {least:g} bytes", ethernet.text("interface")
    if found is None:
        return skipped("no interface belongs to the device")
    mend = f"'ip link set {interface} mtu 9000', and the same on the switches"
    return passed(f"{found} bytes", threshold) if found >= least else warning(f"{found} bytes", threshold, mend)


def _check(name: str, about: str, judge: _Judge, well: str) -> Check:
    return Check(f"roce.{name}", about, Level.STANDARD, "infiniband", judge=of_each_port(_of_ethernet(judge), well))


CHECKS = (
    _check("gids", "addresses of RoCE v2", gids, "on {count} ports"),
    _check("lossless", "priority flow control", lossless, "on {count} ports"),
    _check("congestion", "congestion marks (ECN)", congestion, "on {count} ports"),
    _check("traffic-class", "traffic class of RDMA", traffic_class, "on {count} ports"),
    _check("mtu", "MTU of interfaces", interface_mtu, "on {count} ports"),
)
