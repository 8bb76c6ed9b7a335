# shellcheck shell=dash
# What the demo shows: makes ext4, writes FILES files of FILE_KIB KiB, then writes and verifies in
# one file of WORK_KIB KiB until the host types a line, while the host kills what serves the disk.
# At the end everything is read back from the disk itself.
FILES=${FILES:-8}
FILE_KIB=${FILE_KIB:-256}
WORK_KIB=${WORK_KIB:-16384}
THREADS=${THREADS:-16}

mkfs.ext4 -q -F "$DISK"
mount -t ext4 "$DISK" /mnt
say "demo made"
file=1
while [ "$file" -le "$FILES" ]; do
    head -c $((FILE_KIB * 1024)) /dev/urandom >"/mnt/file-$file"
    file=$((file + 1))
done
(cd /mnt && sha256sum file-* >SUMS)
# Written once, so that the work overwrites blocks in parallel instead of waiting for new ones.
head -c $((WORK_KIB * 1024)) /dev/zero >/mnt/work
sync
say "demo wrote files=$FILES kib=$((FILES * FILE_KIB))"
(read -r _ && touch /run/stop) </dev/console &
agent churn /mnt/work --threads "$THREADS" --seconds 600 --stop /run/stop
echo 3 >/proc/sys/vm/drop_caches
(cd /mnt && sha256sum -c SUMS >/tmp/verdict 2>&1) || {
    say "fail files: $(grep -v ': OK$' /tmp/verdict | head -n 3 | tr '\n' ' ')"
    exit 1
}
umount /mnt
/bin/e2fsck -fn "$DISK" >/tmp/fsck 2>&1 || {
    say "fail e2fsck: $(tr '\n' ' ' </tmp/fsck)"
    exit 1
}
say "demo verified"
