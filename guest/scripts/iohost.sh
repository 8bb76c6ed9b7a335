# shellcheck shell=dash
# The guest is an IOhost: `vrio node` with the configuration CONFIG, its volumes and its records on
# ext4 on the disk, reachable through QEMU's user network. It serves until its power is cut.
# With FORMAT=1 the file system is made first.
CONFIG=${CONFIG:?}
CONTROL=/run/vrio/io1.control

# The kernel writes nothing back by itself: what was not flushed is lost with the power.
echo 0 >/proc/sys/vm/dirty_writeback_centisecs

ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
if [ "${FORMAT:-}" = 1 ]; then mkfs.ext4 -q -F "$DISK"; fi
mount -t ext4 "$DISK" /mnt
# With KEY=1 its volume is encrypted, under a key that is made with the file system.
if [ "${FORMAT:-}${KEY:-}" = 11 ]; then vrio key new --volume /mnt/root.xts >/dev/null; fi
printf '%s\n' "$CONFIG" >/run/node.toml
vrio node --config /run/node.toml &
node=$!
until [ -S "$CONTROL" ] && status=$(vrio status --socket "$CONTROL" --json 2>&1); do
    kill -0 "$node" || exit 1
    sleep 0.1
done
say "serving $(printf '%s\n' "$status" | sed -n 's/.*"incarnation": *"\([^"]*\)".*/\1/p')"
wait "$node"
