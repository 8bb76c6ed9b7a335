# shellcheck shell=dash
# A disk (DEVICE is ide) or a card (e1000) that QEMU emulates. The host types "work" when it counts:
# SECONDS_EACH of reads, or PINGS frames there and as many back.
SECONDS_EACH=${SECONDS_EACH:-1}
PINGS=${PINGS:-200}
HOST=${HOST:-10.0.2.2}

# interrupts NAME: those of a device so far. There is one processor.
interrupts() {
    awk -v name="$1" 'index($0, name) { sum += $2 } END { print sum + 0 }' /proc/interrupts
}
# frames: those of the card so far, either way.
frames() {
    cd /sys/class/net/eth0/statistics || exit
    echo "$(($(cat rx_packets) + $(cat tx_packets)))"
}

case ${DEVICE:?} in
    ide)
        modprobe ata_piix
        modprobe sd_mod
        until [ -b /dev/sda ]; do sleep 0.2; done
        name=ata_piix
        ;;
    e1000)
        modprobe e1000
        until ip link set eth0 up 2>/dev/null; do sleep 0.2; done
        ip addr add 10.0.2.15/24 dev eth0
        # It knows where the host is from here on.
        until ping -c 1 -W 5 "$HOST" >/tmp/ping; do :; done
        name=eth0
        ;;
esac
say "ready"
read -r _
before=$(interrupts "$name")
case $DEVICE in
    ide) agent measure /dev/sda --name ide --threads 1 --seconds "$SECONDS_EACH" ;;
    e1000)
        first=$(frames)
        ping -c "$PINGS" -A -q "$HOST" >/tmp/ping
        say "measured e1000 requests=$(($(frames) - first))"
        ;;
esac
say "interrupts $(($(interrupts "$name") - before))"
read -r _
