#!/usr/bin/env bash
# A job of the whole cluster, in the background, that outlives the terminal: job.sh train run.yaml
# Written by 'glmforge cluster setup'.
set -euo pipefail

if [ "$#" -eq 0 ]; then
  echo "usage: job.sh ARGUMENTS OF glmforge, as in: job.sh train run.yaml" >&2
  exit 2
fi

log="h200-$(date +%Y%m%d-%H%M%S).log"
setsid nohup bash /shared/cluster/launch.sh "$@" >"$log" 2>&1 </dev/null &
echo "process $! writes $log; end it with: kill $!"
