#!/bin/bash
# Node 1 of two: start it there, and launch_node0.sh on the other node, with the same address and arguments.
#
#   MASTER_ADDR=10.0.0.1 examples/two_nodes/launch_node1.sh CONFIG [key.sub=value ...]
NODE_RANK=1
# shellcheck source=examples/two_nodes/launch.sh
source "$(dirname "$0")/launch.sh"
