# shellcheck shell=dash
# The guest is an IOhost: `vrio node` with the configuration CONFIG, its volumes on ext4 on the
# disk, reachable through QEMU's user network. It serves until its power is cut.
CONFIG=${CONFIG:?}

ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
mount -t ext4 "$DISK" /mnt 2>/dev/null || {
    mkfs.ext4 -q -F "$DISK"
    mount -t ext4 "$DISK" /mnt
    # The file system itself is not what is tried: it is there, whatever happens to the volume.
    sync
}
printf '%s\n' "$CONFIG" >/run/node.toml
vrio node --config /run/node.toml &
node=$!
until [ -S /run/vrio/io1.control ]; do
    kill -0 "$node" || exit 1
    sleep 0.1
done
say "serving"
wait "$node"
