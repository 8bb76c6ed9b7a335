# shellcheck shell=dash
# Throughput and latency of the disk, one line each. Destroys its content if WRITE is 1.
SECONDS_EACH=${SECONDS_EACH:-3}
WRITE=${WRITE:-1}
DEPTH=${DEPTH:-16}

measure() {
    name=$1
    shift
    agent measure "$DISK" --name "$name" --seconds "$SECONDS_EACH" "$@"
}

measure read-4k-qd1 --threads 1
measure "read-4k-qd$DEPTH" --threads "$DEPTH"
measure read-128k-qd4 --blocks 32 --threads 4
[ "$WRITE" = 1 ] || exit 0
measure write-4k-qd1 --write 1 --threads 1
measure "write-4k-qd$DEPTH" --write 1 --threads "$DEPTH"
measure write-128k-qd4 --write 1 --blocks 32 --threads 4
