# shellcheck shell=dash
# fio (fio.sh) on a direct client's disk, io1/far, while the host kills the node and has the client
# killed (client.sh says how). The last pass is checked once more by a client that knows nothing of
# it.
join eth0
modprobe ublk_drv
DISK=$(attach io1/far) || fail "attach: $DISK"
obey </dev/console &
passes
vrio detach io1/far
DISK=$(attach io1/far) || fail "attach: $DISK"
work --rw=read
vrio detach io1/far
# shellcheck disable=SC2154 # by passes
say "verified passes=$pass"
