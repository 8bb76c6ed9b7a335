# shellcheck shell=dash
# Writes and verifies on all queues until the host types a line, or for SECONDS; then tells the
# digest of what the disk must hold. The host compares the image with it.
THREADS=${THREADS:-16}
SECONDS_MAX=${SECONDS_MAX:-600}
SEED=${SEED:-1}

# With a card it can be pinged.
if [ -n "${ADDRESS:-}" ]; then
    until ip link set eth0 up 2>/dev/null; do sleep 0.2; done
    ip addr add "$ADDRESS/24" dev eth0
fi

set -- "/sys/block/${DISK#/dev/}"/mq/*
# The features are a digit each; VIRTIO_F_RING_PACKED is number 34.
packed=$(cut -c 35 "/sys/block/${DISK#/dev/}/device/features")
say "churn queues=$# processors=$(nproc) packed=$packed"
(read -r _ && touch /run/stop) </dev/console &
agent churn "$DISK" --seed "$SEED" --threads "$THREADS" --seconds "$SECONDS_MAX" --stop /run/stop
