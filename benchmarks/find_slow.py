"""How often the search for slow hosts and paths is right, on simulated hosts.

    python benchmarks/find_slow.py [--few 400] [--many 10]     # writes benchmarks/results/find_slow.json

Each trial plants something among hosts (`glmforge_ops.health.collectives.slow.simulate` states the model) and counts as
right if exactly that is named, no more and no less: a slow host, two of them, a slow path between two hosts, between
the hosts of two switches, a host that ceases to answer, a mixture, nothing. Each at three kinds of noise: measurements
scatter by 2, 5 and 10 %, and 0.1, 1 and 5 % of them lose 10 to 70 % of their bandwidth to something else. What is slow
has half of its bandwidth; slow is what has less than 0.7 of the others'.

Expected before measuring: all right at 8 hosts in 4 or 5 rounds, at 1,024 in 11 or 12; errors only where scatter is
10 %, at which the slow ones' distribution (half, up to 3 standard deviations) comes within reach of the limit.
"""

import argparse
import random
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from record import write_result

from glmforge_ops.health.collectives.slow.simulate import Noise, SimulatedHosts, named_right, search_simulated

SHARE = 0.5
PARTS = ("explain", "rounds", "search", "simulate")
NOISE = {
    "quiet": Noise(scatter=0.02, disturbed=0.001, left=(0.3, 0.9)),
    "usual": Noise(scatter=0.05, disturbed=0.01, left=(0.3, 0.9)),
    "noisy": Noise(scatter=0.10, disturbed=0.05, left=(0.3, 0.9)),
}
Plant = Callable[[int, random.Random], dict[str, Any]]


def _hosts(count: int) -> Plant:
    return lambda num, draw: {"slow_hosts": dict.fromkeys(draw.sample(range(num), count), SHARE)}


def _path(num: int, draw: random.Random) -> dict[str, Any]:
    one, other = draw.sample(range(num), 2)
    return {"slow_paths": {((one,), (other,)): SHARE}}


def _switches(num: int, draw: random.Random) -> dict[str, Any]:
    """Between the hosts of two switches that have an eighth of the hosts each, at least two."""
    size = max(2, num // 8)
    one, other = draw.sample(range(num // size), 2)
    sides = tuple(tuple(range(side * size, (side + 1) * size)) for side in (one, other))
    return {"slow_paths": {sides: SHARE}}


def _mixture(num: int, draw: random.Random) -> dict[str, Any]:
    """A slow host, a lost one, and a slow path between two others."""
    slow, lost, one, other = draw.sample(range(num), 4)
    return {
        "slow_hosts": {slow: SHARE},
        "lost": {lost: draw.randint(1, 3)},
        "slow_paths": {((one,), (other,)): SHARE},
    }


PLANTS: dict[str, Plant] = {
    "nothing": lambda num, draw: {},
    "one_host": _hosts(1),
    "two_hosts": _hosts(2),
    "one_path": _path,
    "two_switches": _switches,
    "lost_host": lambda num, draw: {"lost": {draw.randrange(num): draw.randint(1, 3)}},
    "mixture": _mixture,
}


def trials(num_hosts: int, plant: Plant, noise: Noise, count: int) -> dict[str, Any]:
    """How many of `count` searches named exactly what was planted, and what they took."""
    right, rounds, exchanges, wrong_seeds = 0, [], [], []
    for seed in range(count):
        planted = plant(num_hosts, random.Random(seed))
        hosts = SimulatedHosts(num_hosts=num_hosts, seed=seed, noise=noise, **planted)
        findings = search_simulated(hosts)
        rounds.append(findings.num_rounds)
        exchanges.append(findings.num_exchanges)
        if named_right(findings, hosts):
            right += 1
        else:
            wrong_seeds.append(seed)
    return {
        "trials": count,
        "right": right,
        "percent": 100 * right / count,
        "most_rounds": max(rounds),
        "mean_rounds": mean(rounds),
        "most_exchanges": max(exchanges),
        "first_wrong_seeds": wrong_seeds[:10],
    }


def fewest_exchanges(num_hosts: int, count: int) -> dict[str, Any]:
    """One slow host, one partner in each round."""
    right, exchanges = 0, []
    for seed in range(count):
        hosts = SimulatedHosts(num_hosts=num_hosts, seed=seed, **_hosts(1)(num_hosts, random.Random(seed)))
        findings = search_simulated(hosts, max_partners=1)
        right += [one.host for one in findings.hosts] == list(hosts.slow_hosts) and not findings.paths
        exchanges.append(findings.num_exchanges)
    return {"trials": count, "right": right, "percent": 100 * right / count, "most_exchanges": max(exchanges)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=400, help="trials of each kind at 8 hosts")
    parser.add_argument("--many", type=int, default=10, help="trials of each kind at 1,024 hosts")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"slow_share": SHARE, "slow_below": 0.7, "hosts_8": {}, "hosts_1024": {}}
    for name, noise in NOISE.items():
        result["hosts_8"][name] = {}
        for plant, make in PLANTS.items():
            result["hosts_8"][name][plant] = trials(8, make, noise, options.few)
            print(8, name, plant, result["hosts_8"][name][plant], flush=True)
    for name, share in (("usual", 1.0), ("noisy", 0.3)):
        result["hosts_1024"][name] = {}
        for plant, make in PLANTS.items():
            result["hosts_1024"][name][plant] = trials(1024, make, NOISE[name], max(1, int(options.many * share)))
            print(1024, name, plant, result["hosts_1024"][name][plant], flush=True)
    result["one_partner_each_round"] = {
        "8": fewest_exchanges(8, options.few),
        "1024": fewest_exchanges(1024, max(1, options.many // 2)),
    }
    for hosts in ("hosts_8", "hosts_1024"):
        for of_noise in result[hosts].values():
            of_noise["all"] = {
                "trials": sum(one["trials"] for one in of_noise.values()),
                "right": sum(one["right"] for one in of_noise.values()),
                "most_rounds": max(one["most_rounds"] for one in of_noise.values()),
                "most_exchanges": max(one["most_exchanges"] for one in of_noise.values()),
            }
            of_noise["all"]["percent"] = 100 * of_noise["all"]["right"] / of_noise["all"]["trials"]
    print(
        write_result(
            "find_slow",
            result,
            code=[f"src/glmforge_ops/health/collectives/slow/{name}.py" for name in PARTS],
            out=options.out,
        )
    )


if __name__ == "__main__":
    main()
