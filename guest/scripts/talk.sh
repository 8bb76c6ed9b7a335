# shellcheck shell=dash
# One of two guests of a network: ADDRESS is its own, PEER the other's; BYTES_KIB go there and come
# back, and are the same. The host types "ask" to the one that begins, and "carrier 0" to one whose
# cable is to be pulled.
PEER=${PEER:?}
ADDRESS=${ADDRESS:?}
KIB=${BYTES_KIB:?}
until ip link set eth0 up 2>/dev/null; do sleep 0.2; done
ip addr add "$ADDRESS/24" dev eth0
hash() { echo "$(wc -c <"$1") $(sha256sum "$1" | cut -d ' ' -f 1)"; }

say "ready $(cat /sys/class/net/eth0/address) mtu=$(cat /sys/class/net/eth0/mtu)"
# What it reads stays open: at its end nc would close its half, and the other one would leave.
mkfifo /tmp/hold
receive() {
    nc -l -p 5000 >/tmp/got </tmp/hold &
    receiver=$!
}
receive
exec 9>/tmp/hold
while read -r word; do
    case $word in
        ask)
            ping -c 5 -w 60 "$PEER" >/tmp/ping || {
                say "fail ping $(tail -n 2 /tmp/ping | tr '\n' ' ')"
                exit 1
            }
            # The largest packet that is not cut; 28 bytes are headers.
            ping -c 3 -w 60 -s 1472 "$PEER" >/tmp/ping || {
                say "fail ping -s 1472 $(tail -n 2 /tmp/ping | tr '\n' ' ')"
                exit 1
            }
            dd if=/dev/urandom of=/tmp/sent bs=1024 count="$KIB" 2>/dev/null
            nc "$PEER" 5000 </tmp/sent
            say "sent $(hash /tmp/sent)"
            ;;
        tell)
            wait "$receiver"
            say "got $(hash /tmp/got)"
            receive
            ;;
        ping)
            ping -c 3 -w 60 "$PEER" >/tmp/ping &&
                say "pinged $(cat /sys/class/net/eth0/carrier_changes)"
            ;;
        carrier\ *)
            until [ "$(cat /sys/class/net/eth0/carrier)" = "${word#carrier }" ]; do sleep 0.1; done
            say "$word $(cat /sys/class/net/eth0/operstate)"
            ;;
        end)
            break
            ;;
    esac
done
say "packets in=$(cat /sys/class/net/eth0/statistics/rx_packets)" \
    "errors=$(cat /sys/class/net/eth0/statistics/rx_errors)"
