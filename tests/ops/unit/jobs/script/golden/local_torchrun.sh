#!/bin/bash
# air: local, ranks started by torchrun, without a supervisor.
# Written by `glmforge launch`.

set -u
cd -- '/shared/my work' || exit

# torchrun makes the address itself (--standalone). A warning (USR1) would end it.
trap '' USR1
/opt/python -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 0 --no-python /opt/python -m glmforge train /shared/jobs/air/run.yaml &
torchrun=$!
# torchrun passes on no warning, so its ranks get it from here. A signal ends a wait, which then begins again.
warn() { again=1; read -ra ranks <"/proc/$torchrun/task/$torchrun/children"; kill -USR1 "${ranks[@]}"; } 2>/dev/null
end() { again=1; kill -TERM "$torchrun"; } 2>/dev/null
trap warn USR1
trap end INT TERM HUP
again=1
while ((again)); do
  again=0
  wait "$torchrun"
done

