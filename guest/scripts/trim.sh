# shellcheck shell=dash
# Fills the disk and gives the space back, by blkdiscard and by fstrim, then waits for the disk to
# be resized. After each step the host looks at its file, and types the name of the next one.
FILL_MIB=${FILL_MIB:-40}
NAME=${DISK#/dev/}

# The host types again until it is heard, so a line may come more than once.
wait_for() {
    while read -r line; do
        [ "$line" != "$1" ] || return 0
    done
}

fail() {
    say "fail $*"
    exit 1
}

queue=/sys/block/$NAME/queue
discard=$(cat "$queue/discard_max_bytes")
zeroes=$(cat "$queue/write_zeroes_max_bytes")
say "queue discard=$discard zeroes=$zeroes physical=$(cat "$queue/physical_block_size")"
[ "$discard" -gt 0 ] || fail "the disk offers no discard"

dd if=/dev/urandom of="$DISK" bs=1M count="$FILL_MIB" oflag=direct 2>/tmp/dd ||
    fail "dd $(cat /tmp/dd)"
say "step filled"
wait_for discard
blkdiscard "$DISK" || fail "blkdiscard"
echo 3 >/proc/sys/vm/drop_caches
head -c $((FILL_MIB << 20)) "$DISK" | cmp -n $((FILL_MIB << 20)) - /dev/zero ||
    fail "what was discarded is not zeroes"
say "step discarded"

wait_for file
mkfs.ext4 -q -F "$DISK"
mount -t ext4 "$DISK" /mnt
head -c $((FILL_MIB << 20)) /dev/urandom >/mnt/big
head -c 1048576 /dev/urandom >/mnt/small
sum=$(sha256sum </mnt/small)
sync
say "step used"
wait_for trim
rm /mnt/big
sync
fstrim /mnt || fail "fstrim"
sync
echo 3 >/proc/sys/vm/drop_caches
[ "$sum" = "$(sha256sum </mnt/small)" ] || fail "a file changed by a trim"
say "step trimmed"

before=$(cat "/sys/block/$NAME/size")
wait_for resize
tries=0
while [ "$(cat "/sys/block/$NAME/size")" = "$before" ]; do
    tries=$((tries + 1))
    [ "$tries" -le 600 ] || fail "the disk has $before sectors still"
    sleep 0.1
done
size=$(cat "/sys/block/$NAME/size")
umount /mnt
# The last megabyte, which was not there when the guest was started.
dd if=/dev/urandom of=/tmp/last bs=1M count=1 2>/dev/null
at=$((size / 2048 - 1))
dd if=/tmp/last of="$DISK" bs=1M seek="$at" oflag=direct 2>/tmp/dd || fail "dd $(cat /tmp/dd)"
dd if="$DISK" bs=1M skip="$at" count=1 2>/dev/null | cmp - /tmp/last || fail "the new end"
/bin/e2fsck -fn "$DISK" >/tmp/fsck 2>&1 || fail "e2fsck: $(tr '\n' ' ' </tmp/fsck)"
say "step resized sectors=$before to $size"
