#!/bin/bash
# air: local, ranks started by torchrun, without a supervisor.
# Written by `glmforge launch`.

set -u
cd -- '/shared/my work' || exit

# torchrun makes the address itself (--standalone); a warning (USR1) is for its ranks, and would end it.
trap '' USR1
exec /opt/python -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 0 --no-python /opt/python -m glmforge train /shared/jobs/air/run.yaml
