# shellcheck shell=dash
# Writes and verifies on the disk while the host plugs memory in, until the host types "stop"; then
# begins anew with all the memory that the guest was started with in use, so that the buffers are in
# the new one. The host types "memory" to hear how many MiB there are. BOOT_MIB is what there was at
# first.
THREADS=${THREADS:-8}
SECONDS_MAX=${SECONDS_MAX:-600}
BOOT_MIB=${BOOT_MIB:?}

fail() {
    say "fail $*"
    exit 1
}

echo online >/sys/devices/system/memory/auto_online_blocks || fail "no memory hot-plug"
(
    while read -r line; do
        case $line in
            stop) touch /run/stop ;;
            memory) say "memory $(awk '/^MemTotal/ { print int($2 / 1024) }' /proc/meminfo)" ;;
        esac
    done
) </dev/console &
agent churn "$DISK" --seed 1 --threads "$THREADS" --seconds "$SECONDS_MAX" --stop /run/stop

mount -t tmpfs -o size="$((BOOT_MIB * 2))m" full /mnt
head -c "$((BOOT_MIB * 3 << 19))" /dev/zero >/mnt/full || fail "the new memory cannot be filled"
blkdiscard "$DISK" || fail "blkdiscard"
agent churn "$DISK" --seed 2 --threads "$THREADS" --seconds 5
