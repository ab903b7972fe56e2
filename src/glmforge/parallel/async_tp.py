"""Asynchronous tensor parallelism: matrix products in pieces, beside the gather before or the reduce-scatter behind.

A rank multiplies the piece of tokens that it has while the next one comes from another rank over NVLink, by copies in
symmetric memory instead of NCCL's kernels (torch's "micro-pipeline", as in torchtitan). It is a pass of torch.compile
over the graph of a compiled part, so it finds what lies in one part: under sequence parallelism the gather that a
region begins with (`parallel.region`) next to the products that read it, and the product next to the reduce-scatter
that the region ends with. Of what it passes over:

- q, k and v where they have biases: it looks for `mm`, and a product with a bias is an `addmm`, unless inductor takes
  the two apart, which on a GPU it does where only pointwise operations read the sum (q and k, not v);
- in the backward pass of a region that several maps begin, the reduce-scatter: it is of the sum of their products;
- products in 8 bits: what is gathered is rounded before it is multiplied.
"""

from torch.distributed._symmetric_memory import enable_symm_mem_for_group

from glmforge.errors import ConfigError
from glmforge.parallel.world import World
from glmforge.runtime.launch import LaunchEnvironment


def async_tp_options(world: World) -> dict[str, bool]:
    """Options of inductor for the compiled parts that hold a region's gather or reduce-scatter.

    Makes the ranks of the tp axis ready to read each other's memory. Raises `ConfigError` where they cannot.
    """
    _check(world, LaunchEnvironment.read().local_world_size)
    group = world.group("tp")
    assert group is not None, "async_tp needs tp > 1"
    # torch's pass takes the collectives of such groups only.
    enable_symm_mem_for_group(group.group_name)
    return {"_micro_pipeline_tp": True}


def _check(world: World, ranks_per_node: int) -> None:
    if world.device.type != "cuda":
        raise ConfigError(f"parallel.async_tp: needs GPUs, but the ranks are on {world.device.type}; set it to false")
    tp = world.axis_size("tp")
    if ranks_per_node % tp:
        raise ConfigError(
            f"parallel.async_tp: tp = {tp} ranks must lie on one node, which has {ranks_per_node}; "
            "set it to false, or tp to a divisor"
        )
