# shellcheck shell=dash
# A disk that two hosts keep, for `vrio bench compare replicas`. The hosts io1 and io2 are network
# namespaces of this guest, on one switch with the guest itself, which is the user's host. SIDE is
#
#   vrio   a volume with two copies, as a disk by `vrio attach`
#   md     Linux's mirror of two disks by NVMe/TCP
#   drbd   Linux's DRBD; its user is on one of the two hosts. Its driver knows no namespaces, so
#          its other host is this guest too, by the loopback device.
#
# The host types a number, one more each time since a line may come twice, and then
# "write DEPTH SECONDS", "read DEPTH SECONDS", or "die HOST": the host with the copy that does not
# serve (2), or with the other copy (1), is cut off under writes.
SIDE=${SIDE:?}
MIB=16
PORT=7789
CONFIGFS=/sys/kernel/config/nvmet

fail() {
    say "fail $*"
    dmesg | tail -n 20
    cat /tmp/*.log 2>/dev/null
    exit 1
}

# The shell prefers busybox's own.
ip() { /bin/ip "$@"; }

# Longer packets than the cable's are cut before they are counted.
network() {
    modprobe veth
    modprobe bridge
    mkdir -p /var /run/lock
    ln -s /run /var/run
    ln -s /run/lock /var/lock
    ip link set lo up mtu 1500 gso_max_segs 1
    ip link add hosts type bridge
    ip link set hosts up gso_max_segs 1
    ip addr add 10.1.0.9/24 dev hosts
    for host in 1 2; do
        ip netns add "io$host"
        ip link add "io$host" type veth peer name eth0 netns "io$host"
        ip link set "io$host" up gso_max_segs 1 master hosts
        ip -n "io$host" link set lo up
        ip -n "io$host" link set eth0 up gso_max_segs 1
        ip -n "io$host" addr add "10.1.0.$host/24" dev eth0
    done
}

public() { vrio key show "/run/$1.key" | sed -n 's/^public *//p'; }

# The node of a host, with a pool in memory. Sidecores sleep without work: four threads that poll
# would take two emulated processors from each other.
node() {
    host=$1 other=$((3 - $1))
    vrio pool create --size 256MiB "/run/io$host.pool" >/tmp/pool.log 2>&1
    mkdir -p "/run/io$host"
    cat >"/run/io$host.toml" <<-CONFIG
	name = "io$host"
	listen = "10.1.0.$host:4870"
	key = "/run/io$host.key"
	[directories]
	volumes = ["/run"]
	sockets = "/run/io$host"
	state = "/run/io$host/state"
	[sidecores]
	count = 1
	idle = "sleep"
	[cluster]
	directory = "/run/io$host/cluster"
	[[peer]]
	name = "io$other"
	address = "10.1.0.$other:4870"
	key = "$(public "io$other")"
	[[peer]]
	name = "web1"
	key = "$(public web1)"
	[[pool]]
	name = "fast"
	devices = ["/run/io$host.pool"]
	[[volume]]
	name = "disk"
	backend = { pool = "fast", size = "${MIB}MiB" }
	replicas = ["io1", "io2"]
	allow = ["web1"]
	CONFIG
    nsenter --net="/run/netns/io$host" vrio node --config "/run/io$host.toml" \
        >"/tmp/io$host.log" 2>&1 &
    until [ -S "/run/io$host/io$host.control" ]; do sleep 0.2; done
    token=$(vrio cluster token --directory /run/operator)
    vrio node join "$token" --config "/run/io$host.toml" >/tmp/join.log 2>&1 ||
        fail "vrio node join"
}

copies_in_sync() {
    vrio status --socket /run/io1/io1.control --json 2>/tmp/status.log | tr -d ' \n' |
        grep -q '"role":"primary".*"missing":\[\]'
}

make_vrio() {
    modprobe ublk_drv
    for name in io1 io2 web1; do vrio key new "/run/$name.key" >/tmp/key.log; done
    vrio cluster init bench --file /run/registry --directory /run/operator >/tmp/cluster.log
    node 1
    node 2
    until copies_in_sync; do sleep 0.5; done
    # The command gives up soon, and an emulated guest on a busy machine is slow.
    tries=0
    until DISK=$(vrio attach io1,io2/disk --peer 10.1.0.1:4870,10.1.0.2:4870 --name web1 \
        --key /run/web1.key --peer-key "$(public io1),$(public io2)" --idle sleep \
        2>/tmp/attach.log); do
        tries=$((tries + 1))
        [ "$tries" -lt 20 ] || fail "vrio attach"
    done
}

# Disks of memory: /dev/ram0 and /dev/ram1.
memory() { modprobe brd rd_nr=2 rd_size=$((MIB << 10)); }

# The driver knows the namespace of the process that opens the port.
target() {
    subsystem=$CONFIGFS/subsystems/io$1 port=$CONFIGFS/ports/$1
    mkdir "$subsystem" "$subsystem/namespaces/1" "$port"
    echo 1 >"$subsystem/attr_allow_any_host"
    echo "/dev/ram$(($1 - 1))" >"$subsystem/namespaces/1/device_path"
    echo 1 >"$subsystem/namespaces/1/enable"
    echo tcp >"$port/addr_trtype"
    echo ipv4 >"$port/addr_adrfam"
    echo "10.1.0.$1" >"$port/addr_traddr"
    echo 4420 >"$port/addr_trsvcid"
    nsenter --net="/run/netns/io$1" ln -s "$subsystem" "$port/subsystems/"
    echo "transport=tcp,traddr=10.1.0.$1,trsvcid=4420,nqn=io$1,fast_io_fail_tmo=1" \
        >/dev/nvme-fabrics
}

make_md() {
    for module in nvmet_tcp nvme_tcp raid1; do modprobe "$module"; done
    memory
    mount -t configfs none /sys/kernel/config
    target 1
    target 2
    until [ -b /dev/nvme0n1 ] && [ -b /dev/nvme1n1 ]; do sleep 0.2; done
    mdadm --create /dev/md0 --level=1 --raid-devices=2 --bitmap=internal --assume-clean --run \
        /dev/nvme0n1 /dev/nvme1n1 >/tmp/mdadm.log 2>&1 || fail "mdadm"
    DISK=/dev/md0
}

drbd_states() { grep -q "^ *0: cs:$1 .*ds:$2" /proc/drbd; }

make_drbd() {
    modprobe drbd
    memory
    for minor in 0 1; do
        {
            drbdmeta --force "$minor" v08 "/dev/ram$minor" internal create-md
            drbdsetup new-resource "r$minor"
            drbdsetup new-minor "r$minor" "$minor" 0
            drbdsetup attach "$minor" "/dev/ram$minor" "/dev/ram$minor" internal
            drbdsetup connect "r$minor" "ipv4:127.0.0.1:$((PORT + minor))" \
                "ipv4:127.0.0.1:$((PORT + 1 - minor))" --protocol=C
        } >>/tmp/drbd.log 2>&1 || fail "DRBD"
    done
    until drbd_states Connected Inconsistent; do sleep 0.2; done
    drbdsetup new-current-uuid --clear-bitmap 0 || fail "drbdsetup new-current-uuid"
    until drbd_states Connected UpToDate/UpToDate; do sleep 0.2; done
    drbdsetup primary 0 || fail "drbdsetup primary"
    DISK=/dev/drbd0
}

# cut_off HOST: a host with a copy is gone without a word. Its processes stand still as well: the
# registry is a file of this guest, which they would reach without a cable. The other host is there
# again, with all that was written.
cut_off() {
    case $SIDE in
        drbd) ip link set lo down ;;
        *) ip link set "io$1" down ;;
    esac
    [ "$SIDE" != vrio ] || signal STOP "$1"
}
come_back() {
    ip link set "io$((3 - $1))" up
    [ "$SIDE" != vrio ] || signal CONT "$((3 - $1))"
    [ "$SIDE" != vrio ] || until copies_in_sync; do sleep 0.5; done
}

# signal NAME HOST: to all processes of a host.
signal() { ip netns pids "io$2" | while read -r pid; do kill "-$1" "$pid"; done; }

# Packets and bytes that hosts have sent so far, and the guest's context switches.
counts() {
    awk 'FILENAME == "/proc/stat" && /^ctxt/ { switches = $2 }
        { sub(":", " ") }
        FILENAME ~ "dev$" && $1 ~ "^(io[12]|lo)$" { bytes += $2; packets += $3 }
        FILENAME ~ "dev$" && $1 == "hosts" { bytes += $10; packets += $11 }
        END { printf "%d %d %d", packets, bytes, switches }' /proc/stat /proc/net/dev
}

# rest SECONDS: packets, bytes and switches of so long without requests, of the window with the
# fewest packets: what an emulated host sends late, or again, is of the requests before.
rest() {
    fewest=
    for _ in 1 2 3; do
        # shellcheck disable=SC2046 # three numbers each
        set -- "$1" $(counts) $(sleep "$1") $(counts)
        [ -n "$fewest" ] && [ "$(($5 - $2))" -ge "${fewest%% *}" ] ||
            fewest="$(($5 - $2)) $(($6 - $3)) $(($7 - $4))"
        set -- "$1"
    done
    echo "$fewest"
}

# work write|read DEPTH SECONDS: what the hosts send and do in the same time without requests
# (heartbeats) is subtracted.
work() {
    # shellcheck disable=SC2046 # three numbers each
    set -- "$@" $(rest "$3") $(counts)
    writes=
    [ "$1" != write ] || writes="--write 1"
    # shellcheck disable=SC2086 # two words or none
    agent measure "$DISK" --name copies --threads "$2" --seconds "$3" $writes >/tmp/measured 2>&1 ||
        fail "requests: $(tail -n 1 /tmp/measured)"
    line=$(grep -o 'requests=.*' /tmp/measured)
    # shellcheck disable=SC2046 # three numbers
    set -- "$@" $(counts)
    shift 3
    say "done $number $line packets=$(($7 - $4 - $1)) bytes=$(($8 - $5 - $2))" \
        "switches=$(($9 - $6 - $3))"
}

# Hundredths of a second since the boot.
now() {
    read -r up _ </proc/uptime
    echo "${up%.*}${up#*.}"
}

# The longest time in which no write is completed, until 30 s after a host is cut off, and then
# until writes go on. The disk is looked at every few hundredths of a second.
die() {
    come_back "$1"
    agent measure "$DISK" --name dies --threads 1 --seconds 120 --write 1 >/tmp/last.log 2>&1 &
    sleep 3
    cut_off "$1"
    last="" since=$(now) longest=0
    end=$((since + 3000))
    while at=$(now) && [ "$at" -lt "$end" ]; do
        read -r _ _ _ _ writes _ <"/sys/block/${DISK#/dev/}/stat"
        gap=$((at - since))
        [ "$gap" -le "$longest" ] || longest=$gap
        if [ "$writes" != "$last" ]; then last=$writes since=$at; fi
        [ $((end - at)) -gt 100 ] || [ "$gap" -lt 100 ] || end=$((end + 100))
        usleep 10000
    done
    say "done $number pause_ms=$((longest * 10))"
}

network
"make_$SIDE"
# Each block has memory from here on.
dd if=/dev/zero of="$DISK" bs=1M count=$((MIB - 2)) oflag=direct 2>/tmp/dd.log || fail "writing"
say "ready"
done=0
while read -r number command words; do
    [ "$number" -gt "$done" ] 2>/dev/null || continue
    done=$number
    # shellcheck disable=SC2086 # separate words
    case $command in
        write | read) work "$command" $words ;;
        die) die $words ;;
    esac
done
