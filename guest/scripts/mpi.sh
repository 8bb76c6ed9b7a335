# shellcheck shell=dash
# One of two guests of an MPI job: ADDRESS is its own, PEER the other's, of the network card. The
# region is behind an ivshmem device, DOMAIN and KEY let in. Programs are started in the other guest
# by a command that is sent to its port 4000: nothing of a job's messages takes that way. With
# CACHED=1 there is an NVDIMM over the same memory as well.
ADDRESS=${ADDRESS:?}
PEER=${PEER:?}
export VRIO_DOMAIN="${DOMAIN:?}" VRIO_FABRIC=ivshmem VRIO_FI_LOG=1
until ip link set eth0 up 2>/dev/null; do sleep 0.2; done
ip addr replace "$ADDRESS/24" dev eth0
ip link set lo up
# MPI tells hosts apart by their names.
hostname "guest-${ADDRESS##*.}"

# What ndctl does: the whole NVDIMM is one device without a file system, whose pages are kept in
# this guest's own memory. A guest that comes later finds it done.
make_dax() {
    for module in /usr/lib/dax/*; do insmod "$module"; done
    sleep 1
    if ! ls /dev/dax* >/dev/null 2>&1; then
        bus=/sys/bus/nd
        echo namespace0.0 >$bus/drivers/nd_pmem/unbind
        cat /proc/sys/kernel/random/uuid >$bus/devices/dax0.0/uuid
        echo ram >$bus/devices/dax0.0/mode
        echo namespace0.0 >$bus/devices/dax0.0/namespace
        echo dax0.0 >$bus/drivers/dax_pmem/bind
    fi
    until ls /dev/dax* >/dev/null 2>&1; do sleep 0.2; done
    VRIO_FABRIC=$(echo /dev/dax*)
}
[ "${CACHED:-0}" = 0 ] || make_dax
mkdir -p /dev/shm /prov
mount -t tmpfs shm /dev/shm
printf '%s\n' "${KEY:?}" >/etc/domain.key
chmod 600 /etc/domain.key
export VRIO_DOMAIN_KEY_FILE=/etc/domain.key
mv /libvrio-fi.so /prov/
export FI_PROVIDER_PATH=/prov FI_PROVIDER=vrio
export OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_mtl_ofi_provider_include=vrio OMPI_MCA_btl=self
export HOME=/ TMPDIR=/tmp

# What plm_rsh_agent is called with: a host, and a command for its shell.
cat >/bin/send-order <<'AGENT'
#!/bin/sh
host=$1
shift
printf '%s\n' "$*" | nc "$host" 4000
AGENT
chmod 755 /bin/send-order
(
    while nc -l -p 4000 >/tmp/order; do
        cp /tmp/order "/tmp/order.run"
        sh /tmp/order.run </dev/null >>/tmp/orders.log 2>&1 &
        sleep 0.1
    done
) &

# Whoever is of the group that the rule for udev names is let in, and needs no more.
if [ -e /vf.rules ]; then
    printf 'member:x:1000:1000::/tmp:/bin/sh\n' >>/etc/passwd
    printf 'root:x:0:\nvrio-vf:x:1000:\n' >/etc/group
    # Nobody but root has needed to pass here before.
    chmod 755 /
    mkdir -p /etc/udev/rules.d /run/udev
    mv /vf.rules /etc/udev/rules.d/60-vrio-vf.rules
    # Its name says which of its two programs it is.
    ln -s udevadm /bin/systemd-udevd
    systemd-udevd --daemon >/tmp/udev.log 2>&1
    udevadm trigger --action=add --subsystem-match=pci >>/tmp/udev.log 2>&1
    udevadm settle >>/tmp/udev.log 2>&1
    chgrp vrio-vf /etc/domain.key
    chmod 640 /etc/domain.key
fi

# libfabric's own tool between the two guests, which looks at its data; by a user, where there is
# one. With an address it asks, else it serves.
pingpong() {
    command="fi_pingpong -p vrio -e rdm -m tagged -c -I 20 -S 65536 $1"
    [ ! -x /bin/udevadm ] || command="su -p member -c '$command'"
    if eval "$command" >/tmp/pingpong 2>&1; then
        say "ping-pong $(tail -n 1 /tmp/pingpong)"
    else
        say "fail ping-pong $(tail -n 3 /tmp/pingpong /tmp/udev.log | tr '\n' ' ')"
    fi
}

# job SECONDS HOSTS RANKS PROGRAM [WORD..]: its lines are told as they come, then how it ended.
job() {
    seconds=$1 hosts=$2 ranks=$3
    shift 3
    {
        status=0
        timeout "$seconds" mpirun --allow-run-as-root --host "$hosts" -n "$ranks" \
            --map-by node --bind-to none \
            --mca plm_rsh_agent /bin/send-order --mca plm_rsh_no_tree_spawn 1 \
            --mca oob_tcp_if_include eth0 --mca oob_tcp_keepalive_time 5 \
            --mca oob_tcp_keepalive_intvl 2 --mca oob_tcp_keepalive_probes 3 \
            -x FI_PROVIDER_PATH -x FI_PROVIDER -x VRIO_FABRIC -x VRIO_DOMAIN -x VRIO_FI_LOG \
            -x VRIO_DOMAIN_KEY_FILE "$@" </dev/null 2>&1 || status=$?
        echo "ended $status"
    } | while read -r line; do say "job $line"; done
}

say "ready $VRIO_FABRIC"
while read -r word; do
    case $word in
        info)
            fi_info -p vrio 2>&1 | while read -r line; do say "info $line"; done
            say "info end"
            ;;
        job\ *)
            # shellcheck disable=SC2086 # words of its own
            job ${word#job } &
            ;;
        serve)
            pingpong "" &
            until netstat -ltn | grep -q ':47592 '; do sleep 0.2; done
            say "serving"
            ;;
        ask)
            pingpong "$PEER"
            ;;
        garbage)
            garbage 2>&1 | while read -r line; do say "garbage $line"; done &
            ;;
        stop)
            killall -9 timeout mpirun orterun orted exercise garbage messages 2>/dev/null || true
            say "stopped"
            ;;
        log)
            cat /tmp/orders.log
            ;;
        end)
            break
            ;;
    esac
done
