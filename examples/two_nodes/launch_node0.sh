#!/bin/bash
# Node 0 of two: start it there, and launch_node1.sh on the other node, with the same address and arguments.
#
#   MASTER_ADDR=10.0.0.1 examples/two_nodes/launch_node0.sh CONFIG [key.sub=value ...]
NODE_RANK=0
# shellcheck source=examples/two_nodes/launch.sh
source "$(dirname "$0")/launch.sh"
