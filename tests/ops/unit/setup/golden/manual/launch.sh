#!/usr/bin/env bash
# Starts glmforge on all nodes of the hostfile by ssh, with torchrun on each:
#     launch.sh train run.yaml
# It ends when all have ended; if one fails, or it is interrupted, it ends the others.
# Written by 'glmforge cluster setup'.
set -euo pipefail

cluster=/shared/cluster

if [ "$#" -eq 0 ]; then
  echo "usage: launch.sh ARGUMENTS OF glmforge, as in: launch.sh train run.yaml" >&2
  exit 2
fi

# Words as any POSIX shell reads them back: the login shell of a node need not be bash.
quoted() {
  local word quote="'" escape="'\\''"
  for word in "$@"; do
    printf "'%s' " "${word//"$quote"/"$escape"}"
  done
}

processes=()
end_all() {
  kill "${processes[@]}" 2>/dev/null || true
  wait
}
trap 'end_all; exit 130' INT TERM

number=0
while read -r name _; do
  case $name in
    '' | '#'*) continue ;;
    localhost | 127.0.0.1) bash "$cluster/on_node.sh" "$number" "$PWD" "$@" </dev/null & ;;
    *)
      # With a terminal, what runs there ends with this ssh.
      command=$(quoted bash "$cluster/on_node.sh" "$number" "$PWD" "$@")
      ssh -F "$cluster/ssh/config" -tt -- "$name" "$command" </dev/null &
      ;;
  esac
  processes+=("$!")
  number=$((number + 1))
done <"$cluster/hostfile"

for _ in "${processes[@]}"; do
  if ! wait -n; then
    echo "launch.sh: a node has failed; the others are ended" >&2
    end_all
    exit 1
  fi
done
