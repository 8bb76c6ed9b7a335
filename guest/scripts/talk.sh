# shellcheck shell=dash
# One of two guests of a network: ADDRESS is its own, PEER the other's; BYTES_KIB go there and come
# back unchanged. HOST is the address behind an uplink, if there is one. The host types commands:
# "ask" for the guest that begins, and "carrier 0" for a guest whose cable will be unplugged.
PEER=${PEER:?}
ADDRESS=${ADDRESS:?}
KIB=${BYTES_KIB:?}
until ip link set eth0 up 2>/dev/null; do sleep 0.2; done
ip addr add "$ADDRESS/24" dev eth0
# iperf3 binds to it, and to nothing else.
ip link set lo up
hash() { echo "$(wc -c <"$1") $(sha256sum "$1" | cut -d ' ' -f 1)"; }

# figure BLOCK NAME: a number of the last block of this name in what iperf3 reported.
figure() {
    sed -n "/\"$1\":/,/}/s/.*\"$2\":[[:space:]]*\([0-9.e+-]*\).*/\1/p" /tmp/stream | tail -n 1
}

say "ready $(cat /sys/class/net/eth0/address) mtu=$(cat /sys/class/net/eth0/mtu)"
receive() {
    agent receive 5000 --into /tmp/got &
    receiver=$!
}
receive
while read -r word; do
    case $word in
        ask)
            # The other one may stand still for a while: emulated, on a busy machine.
            until ping -c 1 -W 5 "$PEER" >/tmp/ping; do :; done
            ping -c 5 -i 0.2 -w 60 "$PEER" >/tmp/ping || {
                say "fail ping $(tail -n 2 /tmp/ping | tr '\n' ' ')"
                exit 1
            }
            # The largest packet that is not cut; 28 bytes are headers.
            ping -c 3 -i 0.2 -w 60 -s 1472 "$PEER" >/tmp/ping || {
                say "fail ping -s 1472 $(tail -n 2 /tmp/ping | tr '\n' ' ')"
                exit 1
            }
            dd if=/dev/urandom of=/tmp/sent bs=1024 count="$KIB" 2>/dev/null
            agent send "$PEER:5000" --from /tmp/sent
            say "sent $(hash /tmp/sent)"
            ;;
        tell)
            wait "$receiver"
            say "got $(hash /tmp/got)"
            receive
            ;;
        ping)
            # Until it answers: it may have gone.
            until ping -c 1 -W 1 "$PEER" >/tmp/ping; do :; done
            say "pinged $(cat /sys/class/net/eth0/carrier_changes)"
            ;;
        reboot)
            reboot -f
            ;;
        deaf)
            # It must hear nothing of the other one.
            if ping -c 4 -W 2 "$PEER" >/tmp/ping; then
                say "fail $PEER answers $(tail -n 2 /tmp/ping | tr '\n' ' ')"
                exit 1
            fi
            say "silent $PEER"
            ;;
        host)
            ping -c 3 -i 0.2 -w 60 "${HOST:?}" >/tmp/ping || {
                say "fail ping $HOST $(tail -n 2 /tmp/ping | tr '\n' ' ')"
                exit 1
            }
            say "reached $HOST"
            ;;
        serve)
            iperf3 --server >/tmp/served 2>&1 &
            until netstat -ltn | grep -q ':5201 '; do sleep 0.1; done
            say "serving"
            ;;
        stream\ *)
            # Words of iperf3's own.
            # shellcheck disable=SC2086
            iperf3 --client "$PEER" --json ${word#stream } >/tmp/stream 2>&1 || {
                say "fail iperf3 $(grep error /tmp/stream)"
                exit 1
            }
            # Of UDP there is one sum, which counts what was lost.
            case $word in
                *--udp*) say "streamed bits_per_s=$(figure sum bits_per_second)" \
                    "packets=$(figure sum packets) lost=$(figure sum lost_packets)" ;;
                *) say "streamed bits_per_s=$(figure sum_received bits_per_second)" \
                    "bytes=$(figure sum_received bytes)" ;;
            esac
            ;;
        check)
            # What comes is only compared: it need not fit into memory. The agent tells how much
            # it was.
            agent receive 5001 &
            checker=$!
            until netstat -ltn | grep -q ':5001 '; do sleep 0.1; done
            say "checking"
            wait "$checker"
            ;;
        large\ *)
            # So many blocks of 4 KiB, no two the same.
            agent send "$PEER:5001" --blocks "${word#large }"
            say "large ${word#large }"
            ;;
        queues)
            # How many bring frames here, and by how many frames came: both halves of an interrupt's
            # counts, of two processors at most.
            came=$(grep -e '-input\.' /proc/interrupts | while read -r _ one two _; do
                case $two in *[!0-9]*) two=0 ;; esac
                [ $((one + two)) = 0 ] || echo came
            done | wc -l)
            say "queues $(find /sys/class/net/eth0/queues/ -name "rx-*" | wc -l) $came"
            ;;
        lost)
            # What this system itself lost of UDP, for want of room, and of its card's frames.
            say "lost $(($(grep '^Udp:' /proc/net/snmp | tail -n 1 | cut -d ' ' -f 4) +
                $(cat /sys/class/net/eth0/statistics/rx_dropped)))"
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
