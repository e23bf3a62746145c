#!/usr/bin/env bash
# Several processes on this machine, as on so many hosts: launch/local.sh N run --config=configs/ark.py --workdir=DIR ...
set -euo pipefail
processes=${1:?how many processes}
shift
python=${PYTHON:-python3}
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
export ARK_COORDINATOR="localhost:$port" ARK_PROCESSES="$processes"
pids=()
for ((i = 0; i < processes; i++)); do
  ARK_PROCESS=$i "$python" -m ark_jax "$@" &
  pids+=($!)
done
trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' INT TERM
status=0
for ((i = 0; i < processes; i++)); do
  wait -n || { code=$?; ((status)) || status=$code; }
done
if ((status)); then
  echo "a process ended with status $status, and the others after it; what is finished is kept: run the same command again" >&2
fi
exit "$status"
