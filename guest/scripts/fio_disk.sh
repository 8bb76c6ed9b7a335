# shellcheck shell=dash
# fio (fio.sh) on the disk, until the host types "stop". Then the last pass is checked once more.
fail() {
    say "fail $*"
    exit 1
}

(
    while read -r line; do
        [ "$line" != stop ] || touch /run/stop
    done
) </dev/console &
passes
work --rw=read
# shellcheck disable=SC2154 # by passes
say "verified passes=$pass"
