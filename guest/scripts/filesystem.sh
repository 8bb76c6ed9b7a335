# shellcheck shell=dash
# Makes ext4 on the disk, writes FILES files of FILE_KIB KiB, syncs, and reads them back from the
# disk itself: with dropped caches, after a check of the file system, and after a new mount.
FILES=${FILES:-16}
FILE_KIB=${FILE_KIB:-256}

verify() {
    echo 3 >/proc/sys/vm/drop_caches
    (cd /mnt && sha256sum -c SUMS >/tmp/verdict 2>&1) || {
        say "fail $1: $(grep -v ': OK$' /tmp/verdict | head -n 3 | tr '\n' ' ')"
        exit 1
    }
    say "filesystem verified $1"
}

mkfs.ext4 -q -F "$DISK"
mount -t ext4 "$DISK" /mnt
say "filesystem made"
file=1
while [ "$file" -le "$FILES" ]; do
    head -c $((FILE_KIB * 1024)) /dev/urandom >"/mnt/file-$file"
    sync "/mnt/file-$file"
    say "filesystem wrote $file of $FILES"
    file=$((file + 1))
done
(cd /mnt && sha256sum file-* >SUMS)
sync
verify "with dropped caches"
umount /mnt
/bin/e2fsck -fn "$DISK" >/tmp/fsck 2>&1 || {
    say "fail e2fsck: $(tr '\n' ' ' </tmp/fsck)"
    exit 1
}
mount -t ext4 "$DISK" /mnt
verify "after a new mount"
umount /mnt
say "filesystem done files=$FILES kib=$((FILES * FILE_KIB))"
