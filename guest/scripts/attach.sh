# shellcheck shell=dash
# The guest is a direct client: `vrio attach` shows volumes of the node io1, which is outside, as
# disks. WRONG_NODE is NODE with a wrong key, OTHER_NODE that of another client. First a file
# system on io1/files, then writes and verifies on io1/far, while the host kills the node and has
# the client killed (client.sh says how).
#
# CARD is `virtio`, or `igb` for one of that card's virtual functions.
WRONG_NODE=${WRONG_NODE:?}
OTHER_NODE=${OTHER_NODE:?}
FILES=${FILES:-8}
FILE_KIB=${FILE_KIB:-256}
THREADS=${THREADS:-8}
SECONDS_MAX=${SECONDS_MAX:-1200}
CARD=${CARD:-virtio}

# refused WORDS COMMAND...: the command fails, and says so with these words.
refused() {
    words=$1
    shift
    if "$@" >/tmp/refusal 2>&1; then fail "not refused: $*"; fi
    grep -q "$words" /tmp/refusal || fail "no '$words': $(cat /tmp/refusal)"
    say "refused $(tail -n 1 /tmp/refusal)"
}

# A counter of the client of io1/far.
counter() {
    vrio attach --list --json | tr -d ' \n' | sed -n "s/.*\"$1\",\([0-9]*\).*/\1/p"
}

# The client's processor time in ticks, and how often it gave the processor up.
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }
switches() { cat /proc/"$1"/task/*/status | awk '/^voluntary_ctxt/ { n += $2 } END { print n }'; }

cost() {
    say "cost $1 requests=$(counter requests) wakeups=$(counter wakeups) sleeps=$(counter sleeps)" \
        "enters=$(counter uring_enters) sends=$(counter send_calls)" \
        "receives=$(counter receive_calls) ticks=$(ticks "$(process)")" \
        "switches=$(switches "$(process)") s=$(cut -d ' ' -f 1 /proc/uptime)"
}

# A virtual function of an igb card, as the only card of a network namespace: everything from here
# on runs there. The card itself has to be up before it has functions, or they have no carrier.
if [ "$CARD" = igb ] && [ -z "${FUNCTION:-}" ]; then
    modprobe igb
    ip link set eth0 up
    until [ "$(cat /sys/class/net/eth0/carrier)" = 1 ]; do sleep 0.2; done
    modprobe igbvf
    echo 1 >/sys/class/net/eth0/device/sriov_numvfs
    until [ -e /sys/class/net/eth1 ]; do sleep 0.2; done
    say "function of $(basename "$(readlink /sys/class/net/eth1/device/driver)")"
    FUNCTION=eth1 unshare -n sh /script &
    inside=$!
    until [ "$(readlink /proc/$inside/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do
        sleep 0.2
    done
    ip link set eth1 netns "$inside"
    wait "$inside"
    exit
fi

join "${FUNCTION:-eth0}"

refused "installed and not loaded: run .modprobe ublk_drv" attach io1/files
modprobe ublk_drv
refused "opens no volume none" attach io1/none
right=$NODE
NODE=$WRONG_NODE
refused "is --peer-key its key" attach io1/files
NODE=$right

# A file system, like on any disk.
disk=$(attach io1/files) || fail "attach: $disk"
say "attached $disk"
mkfs.ext4 -q -F "$disk"
mount -t ext4 "$disk" /mnt
file=1
while [ "$file" -le "$FILES" ]; do
    head -c $((FILE_KIB * 1024)) /dev/urandom >"/mnt/file-$file"
    file=$((file + 1))
done
(cd /mnt && sha256sum file-* >SUMS)
sync
refused "in use" vrio detach "$disk"
umount /mnt
vrio detach "$disk"
[ ! -e "$disk" ] || fail "$disk is still there"
disk=$(attach io1/files) || fail "attach: $disk"
/bin/e2fsck -fn "$disk" >/tmp/fsck 2>&1 || fail "e2fsck: $(tr '\n' ' ' </tmp/fsck)"
mount -t ext4 "$disk" /mnt
(cd /mnt && sha256sum -c SUMS >/tmp/verdict 2>&1) || fail "files: $(cat /tmp/verdict)"
fstrim /mnt || fail "fstrim"
umount /mnt
vrio detach "$disk"
say "filesystem done"

DISK=$(attach io1/far) || fail "attach: $DISK"
say "attached $DISK"
cost start
sleep 5
cost idle
agent measure "$DISK" --name reads-at-depth-1 --seconds 3 --threads 1
cost depth1
agent measure "$DISK" --name reads-at-depth-8 --seconds 3 --threads 8
cost depth8
refused "process $(process)" attach io1/far
refused "has io1/far attached" attach io1/files
NODE=$OTHER_NODE
refused "in use by attachment web1" attach io1/far --name web2 --directory /tmp/second
NODE=$right
vrio attach --list

obey </dev/console &
agent churn "$DISK" --seed 1 --threads "$THREADS" --seconds "$SECONDS_MAX" --stop /run/stop
cost end

# Another client takes the volume over: this one is told, and harms nothing.
NODE=$OTHER_NODE
second=$(attach io1/far --name web2 --directory /tmp/second --take-over) || fail "$second"
if dd if="$DISK" of=/dev/null bs=4096 count=1 iflag=direct 2>/tmp/refusal; then
    fail "the replaced client still reads"
fi
grep -qi "input/output error" /tmp/refusal || fail "$(cat /tmp/refusal)"
vrio attach --list | grep "taken-over: a successor on" || fail "$(vrio attach --list)"
dd if="$second" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null ||
    fail "the new client cannot read"
vrio detach "$second" --directory /tmp/second
vrio detach io1/far
set -- /dev/ublkb* /sys/block/ublkb* "$RECORDS"/*.json "$RECORDS"/*.socket
for left; do [ ! -e "$left" ] || fail "$left is left"; done
# A client answers before it has ended.
tries=0
while pidof vrio && [ $tries -lt 300 ]; do tries=$((tries + 1)); sleep 0.1; done
! pidof vrio || fail "a process is left"
say "detached"
