#!/usr/bin/env bash
# Kafka and MinIO for local jobs, on the loopback interface.
#   infra/servers.sh start [kafka|minio] | stop | status     data and logs in .servers/; ports by KAFKA_PORT (19092) and MINIO_PORT (19000)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
data=${PENSTOCK_SERVERS_DATA:-$root/.servers}
pid_file=$data/servers.pid

running() {
  # kill -0 succeeds for a zombie too, so check the state
  [[ -f $pid_file ]] || return 1
  local state
  state=$(awk '/^State:/ { print $2 }' "/proc/$(<"$pid_file")/status" 2>/dev/null) || return 1
  [[ -n $state && $state != Z ]]
}

case ${1:-} in
start)
  shift
  [[ $# -gt 0 ]] || set -- kafka minio
  if running; then
    cat "$data/servers.out"
    for name in "$@"; do
      if ! grep -qi "\"server\": \"$name\"" "$data/servers.out"; then
        echo "error: the running servers have no $name; run infra/servers.sh stop, then start" >&2
        exit 1
      fi
    done
    exit 0
  fi
  python3 "$root/infra/bootstrap.py" servers "$@"
  mkdir -p "$data"
  echo "starting $* ..." >&2
  setsid "$root/.venv/bin/python" -m penstock_lab.servers run "$@" --data "$data" \
    --kafka-port "${KAFKA_PORT:-19092}" --minio-port "${MINIO_PORT:-19000}" \
    >"$data/servers.out" 2>"$data/servers.err" </dev/null &
  echo $! >"$pid_file"
  for _ in $(seq 1200); do
    if [[ $(wc -l 2>/dev/null <"$data/servers.out" || echo 0) -ge $# ]]; then
      cat "$data/servers.out"
      exit 0
    fi
    running || break
    sleep 0.1
  done
  echo "error: the servers did not start: $(tail -n 1 "$data/servers.err")" >&2
  exit 1
  ;;
stop)
  running || exit 0
  kill -TERM "$(<"$pid_file")"
  for _ in $(seq 400); do
    running || { rm -f "$pid_file"; echo stopped; exit 0; }
    sleep 0.1
  done
  echo "error: the servers (pid $(<"$pid_file")) do not stop" >&2
  exit 1
  ;;
status)
  if running; then cat "$data/servers.out"; else echo "not running"; exit 3; fi
  ;;
*)
  echo "usage: infra/servers.sh start [kafka|minio] | stop | status" >&2
  exit 2
  ;;
esac
