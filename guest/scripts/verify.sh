# shellcheck shell=dash
# Another boot, maybe on another path to the same volume: the files of filesystem.sh are there.
mount -t ext4 "$DISK" /mnt
(cd /mnt && sha256sum -c SUMS >/tmp/verdict 2>&1) || {
    say "fail verify: $(grep -v ': OK$' /tmp/verdict | head -n 3 | tr '\n' ' ')"
    exit 1
}
umount /mnt
say "verified files=$(wc -l </tmp/verdict)"
