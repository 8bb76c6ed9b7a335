# shellcheck shell=dash
# One request after the other by whatever this guest has, and what it counts of them. KIND is
#
#   disk     reads of 4 KiB of DISK
#   attach   the same of a volume of the node io1, whose client this guest is (client.sh)
#   card     frames of a ping to PEER, and as many back, by the card that has ADDRESS
#   answer   nothing: it answers another guest's pings
#
# The host types "work N", with N one more each time, since what is typed may come twice: for
# SECONDS_EACH of reads, or PINGS. With "look N" it tells what it has counted so far.
KIND=${KIND:?}
SECONDS_EACH=${SECONDS_EACH:-1}
PINGS=${PINGS:-200}
# What the device's lines of /proc/interrupts have in them, and drivers to be loaded first.
INTERRUPTS=${INTERRUPTS:-virtio}
DRIVERS=${DRIVERS:-}
TRACING=/sys/kernel/tracing

# Those of the device so far. There is one processor.
interrupts() {
    awk -v name="$INTERRUPTS" 'index($0, name) { sum += $2 } END { print sum + 0 }' /proc/interrupts
}

# Kicks of virtio's drivers so far: each is a store to a register by this one function.
if mount -t tracefs tracing "$TRACING" &&
    echo 'p:kick vp_notify' >"$TRACING/kprobe_events" &&
    echo 1 >"$TRACING/events/kprobes/kick/enable"; then
    kicks() { awk '$1 == "kick" { print $2 }' "$TRACING/kprobe_profile"; }
    counts_kicks=1
else
    kicks() { echo 0; }
    counts_kicks=0
fi 2>/tmp/no-kicks

# Frames of the card so far, either way.
frames() {
    (cd /sys/class/net/eth0/statistics && echo "$(($(cat rx_packets) + $(cat tx_packets)))")
}

failed() {
    say "fail $KIND: $(tail -n 2 /tmp/out | tr '\n' ' ')"
    exit 1
}

work() {
    case $KIND in
        disk | attach)
            agent measure "$DISK" --name models --threads 1 --seconds "$SECONDS_EACH" \
                >/tmp/out 2>&1 || failed
            requests=$(sed -n 's/.* requests=\([0-9]*\).*/\1/p' /tmp/out)
            speed=$(grep -o 'p[59][09]_us=[0-9]*' /tmp/out | tr '\n' ' ')
            ;;
        card)
            first=$(frames)
            ping -c "$PINGS" -A -q "$PEER" >/tmp/out 2>&1 || failed
            requests=$(($(frames) - first))
            speed=
            ;;
    esac
}

for driver in $DRIVERS; do modprobe "$driver"; done
case $KIND in
    attach)
        join eth0
        modprobe ublk_drv
        DISK=$(attach io1/bench) || fail "attach: $DISK"
        ;;
    card | answer)
        until ip link set eth0 up 2>/dev/null; do sleep 0.2; done
        ip addr add "${ADDRESS:?}/24" dev eth0
        ;;
esac
case $KIND in
    disk) until [ -b "$DISK" ]; do sleep 0.2; done ;;
    # It knows where the other one is from here on.
    card) until ping -c 1 -W 5 "${PEER:?}" >/tmp/out; do :; done ;;
esac
say "ready"
last=0
while read -r word number; do
    [ "$number" -gt "$last" ] 2>/dev/null || continue
    case $word in
        work)
            last=$number
            interrupts_before=$(interrupts)
            kicks_before=$(kicks)
            work
            ;;
        look)
            last=$number
            interrupts_before=0
            kicks_before=0
            requests=1
            speed=
            ;;
        *) continue ;;
    esac
    words="requests=$requests interrupts=$(($(interrupts) - interrupts_before))"
    [ "$counts_kicks" = 0 ] || words="$words kicks=$(($(kicks) - kicks_before))"
    say "measured $number $words $speed"
done
