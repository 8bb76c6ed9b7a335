# shellcheck shell=dash
# Put before the scripts of guests in which fio works on DISK: pass after pass over SIZE, each block
# written once with a checksum, in any order and DEPTH at once, then read and checked.
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

# Passes until there is /run/stop; their number is in `pass`.
passes() {
    while sleep 0.5; do say "progress fio requests=$(requests)"; done &
    progress=$!
    pass=0
    while [ ! -e /run/stop ]; do
        pass=$((pass + 1))
        work --rw=randwrite --do_verify=1 --randseed="$pass"
    done
    kill "$progress"
}
