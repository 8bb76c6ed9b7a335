# shellcheck shell=dash
# Put before the scripts of guests that are direct clients of the node io1, which is outside. NODE
# is what follows a volume in the command: the node's address and the keys.
NODE=${NODE:?}
RECORDS=/run/vrio/attach

# Words of NODE are separate ones.
# shellcheck disable=SC2086
attach() { vrio attach "$@" $NODE; }

fail() {
    say "fail $*"
    cat "$RECORDS"/*.log
    exit 1
}

# The client of io1/far.
process() { sed -n 's/.*"pid": \([0-9]*\).*/\1/p' "$RECORDS/io1@far.json"; }

# join CARD: the way to the node.
join() {
    until ip link set "$1" up 2>/dev/null; do sleep 0.2; done
    ip link set lo up
    ip addr add 10.0.2.15/24 dev "$1"
    ip route add default via 10.0.2.2
    chmod 600 /etc/*.key
    hostname web1
}

# Does what the host types, until there is nothing more:
#
#   kill N    the client of io1/far ends, with -9, and another one goes on: "killed N" (N counts,
#             since what is typed may come twice)
#   stop      makes /run/stop
obey() {
    last=0
    while read -r word number; do
        case $word in
            stop) touch /run/stop ;;
            kill)
                if [ "$number" -gt "$last" ]; then
                    last=$number
                    kill -9 "$(process)"
                    again=$(attach io1/far) || fail "attach again: $again"
                    [ "$again" = "$DISK" ] || fail "it is $again now"
                fi
                say "killed $number"
                ;;
        esac
    done
}
