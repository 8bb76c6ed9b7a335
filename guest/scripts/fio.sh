# shellcheck shell=dash
# fio on a direct client's disk, io1/far, while the host kills the node and has the client killed
# (client.sh says how): pass after pass over SIZE, each block written once with a checksum, in any
# order and DEPTH at once, then read and checked. The last pass is checked once more by a client
# that knows nothing of it.
SIZE=${SIZE:-8M}
DEPTH=${DEPTH:-16}

# work OPTIONS...: fio ends well, and says so.
work() {
    fio --name=verify --filename="$DISK" --size="$SIZE" --bs=4k --ioengine=libaio --direct=1 \
        --thread --iodepth="$DEPTH" --verify=crc32c --verify_fatal=1 --verify_state_save=0 "$@" \
        >/tmp/fio 2>&1 || fail "fio: $(tr '\n' ' ' </tmp/fio)"
    grep -q "err= 0" /tmp/fio || fail "fio says of no error: $(tr '\n' ' ' </tmp/fio)"
}

requests() { awk '{ print $1 + $5 }' "/sys/block/${DISK#/dev/}/stat"; }

join eth0
modprobe ublk_drv
DISK=$(attach io1/far) || fail "attach: $DISK"
obey </dev/console &
while sleep 0.5; do say "progress fio requests=$(requests)"; done &
progress=$!

pass=0
while [ ! -e /run/stop ]; do
    pass=$((pass + 1))
    work --rw=randwrite --do_verify=1 --randseed="$pass"
done
kill "$progress"
vrio detach io1/far
DISK=$(attach io1/far) || fail "attach: $DISK"
work --rw=read
vrio detach io1/far
say "verified passes=$pass"
