#!/usr/bin/env bash
# Several processes on this machine, as on so many hosts: launch/local.sh N run --config=ark --workdir=DIR ...
set -euo pipefail
processes=${1:?how many processes}
shift
python=${PYTHON:-python3}
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
export ARK_COORDINATOR="localhost:$port" ARK_PROCESSES="$processes"
pids=()
trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' INT TERM
for ((i = 0; i < processes; i++)); do
  ARK_PROCESS=$i "$python" -m ark_jax "$@" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do # the others of one that ends early end by themselves
  while code=0; wait "$pid" || code=$?; kill -0 "$pid" 2>/dev/null; do :; done # a signal ends the waiting, not the process
  if ((code > 128)); then # how the process ended, if it was while the signal was handled; 127: that is known already
    again=0; wait "$pid" 2>/dev/null || again=$?
    ((again == 127)) || code=$again
  fi
  ((code == 0)) || status=$code
done
if ((status)); then
  echo "the run ended early; what is finished is kept: run the same command again to go on" >&2
fi
exit "$status"
