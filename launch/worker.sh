#!/usr/bin/env bash
# What tpu_pod.sh does in the home folder of a worker: install EXTRAS | start VERB FLAGS... | watch | status | stop
set -euo pipefail
cd
case $1 in
  install) # the image's own Python may be 3.10, which is too old; uv fetches another one
    python3 -m pip install --quiet --user uv
    python3 -m uv venv --quiet --allow-existing --python 3.12 .ark
    python3 -m uv pip install --quiet --python .ark/bin/python --editable "./ark_jax[tpu${2:+,$2}]"
    ;;
  start) # in a session of its own, so that the end of ssh does not end it
    set -a
    # shellcheck disable=SC1091  # made by tpu_pod.sh
    . ./ark.keys
    set +a
    rm -f ark.keys ark.status
    cd ark_jax
    # shellcheck disable=SC2016  # the inner shell expands it
    ARK_COORDINATOR=auto setsid bash -c 'trap stopped=143 TERM; "$@"; echo "${stopped-$?}" >../ark.status' - \
      ../.ark/bin/python -m ark_jax "${@:2}" </dev/null >../ark.log 2>&1 &
    echo $! >../ark.pid
    ;;
  watch)
    tail -n +1 --follow --pid="$(cat ark.pid)" ark.log
    exit "$(cat ark.status || echo 1)"
    ;;
  status) # running; how the run ended: its status, 143 after SIGTERM; or none
    if kill -0 "$(cat ark.pid 2>/dev/null)" 2>/dev/null; then echo running; else cat ark.status 2>/dev/null || echo none; fi
    ;;
  stop) kill -TERM -- "-$(cat ark.pid)" ;;
esac
