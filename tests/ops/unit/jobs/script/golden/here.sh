#!/bin/bash
# air: without a scheduler. The supervisor of glmforge starts the ranks with ssh, and
# starts them again when something fails.
#
#   glmforge jobs show air
#
# Written by `glmforge launch`, which runs it.

set -eu
cd -- '/shared/my work'
exec /opt/python -m glmforge supervise /shared/jobs/air
