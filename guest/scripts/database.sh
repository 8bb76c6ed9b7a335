# shellcheck shell=dash
# A database on ext4 on the disk: PostgreSQL with checksums of its pages, and pgbench, each of whose
# clients numbers its transactions and is told which of them are committed. STEP is
#
#   work     makes file system and database and works, until the guest has no power any more. The
#            host types "acked N" with N one more each time; the answer is "acked N" and the number
#            of the last transaction that each client was told is committed.
#   check    the database recovers on the disk of such a guest, and all of it is checked. Says the
#            number of the last transaction of each client that is there.
STEP=${STEP:?}
CLIENTS=${CLIENTS:-4}
DATA=/mnt/data
PATH=$PATH:/usr/lib/postgresql/15/bin
export PGHOST=/tmp PGUSER=postgres PGDATABASE=postgres

fail() {
    say "fail $*"
    cat /tmp/server.log /tmp/pgbench.out
    exit 1
}

# The server's own programs refuse to be root.
as_owner() {
    su -s /bin/sh -c "$*" postgres >/tmp/owner.out 2>&1 || fail "$1: $(cat /tmp/owner.out)"
}

start() { as_owner pg_ctl start --pgdata="$DATA" --log=/tmp/server.log --wait --timeout=1200; }

make() {
    mkfs.ext4 -q -F "$DISK"
    mount -t ext4 "$DISK" /mnt
    # guest/build has made an empty database.
    cp -a /data "$DATA"
    chown -R postgres "$DATA"
    # Checkpoints come often, so that the faults meet them.
    cat >>"$DATA/postgresql.conf" <<-SETTINGS
	listen_addresses = ''
	unix_socket_directories = '/tmp'
	shared_buffers = 16MB
	max_wal_size = 32MB
	min_wal_size = 8MB
	checkpoint_timeout = 30s
	timezone = 'GMT'
	log_timezone = 'GMT'
	SETTINGS
    start
    say "database starts"
    pgbench --initialize --quiet >/tmp/pgbench.out 2>&1 || fail "pgbench --initialize"
    psql -q -c 'ALTER TABLE pgbench_history ADD client int, ADD number int' || fail "psql"
}

# pgbench's own transaction; its row of history has the client and the number besides.
cat >/tmp/transfer.sql <<'SQL'
\set number :number + 1
\set aid random(1, 100000)
\set tid random(1, 10)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = 1;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime, client, number)
    VALUES (:tid, 1, :aid, :delta, CURRENT_TIMESTAMP, :client_id, :number);
END;
SQL

# Each line of pgbench's log is a committed transaction: its client, and its number. The last line
# may be there in part.
acked() {
    sed '$d' /tmp/log.* | awk -v clients="$CLIENTS" '{ last[$1] = $2 }
        END { for (at = 0; at < clients; at++) printf "%d ", last[at] }'
}

work() {
    make
    pgbench --no-vacuum --client="$CLIENTS" --time=86400 --define=number=0 \
        --file=/tmp/transfer.sql --protocol=prepared --log --log-prefix=/tmp/log \
        >/tmp/pgbench.out 2>&1 &
    say "works"
    while read -r word number; do
        # A client ends when its transaction fails.
        ! grep -q -i -e error -e aborted /tmp/pgbench.out || fail "pgbench"
        [ "$word" != acked ] || say "acked $number $(acked)"
    done
}

# Lines of this query are what does not agree.
cat >/tmp/disagree.sql <<'SQL'
SELECT 'account', aid FROM pgbench_accounts
    LEFT JOIN (SELECT aid, sum(delta) FROM pgbench_history GROUP BY aid) AS history USING (aid)
    WHERE abalance <> coalesce(sum, 0);
SELECT 'teller', tid FROM pgbench_tellers
    LEFT JOIN (SELECT tid, sum(delta) FROM pgbench_history GROUP BY tid) AS history USING (tid)
    WHERE tbalance <> coalesce(sum, 0);
SELECT 'branch', bid FROM pgbench_branches
    WHERE bbalance <> (SELECT coalesce(sum(delta), 0) FROM pgbench_history);
SELECT 'accounts', count(*) FROM pgbench_accounts HAVING count(*) <> 100000;
SELECT 'transactions of client', client FROM pgbench_history GROUP BY client
    HAVING count(*) <> max(number) OR count(DISTINCT number) <> max(number);
SQL

check() {
    mount -t ext4 "$DISK" /mnt
    start
    disagree=$(psql -At -f /tmp/disagree.sql 2>&1) || fail "psql: $disagree"
    [ -z "$disagree" ] || fail "do not agree: $disagree"
    there=$(psql -At -c "SELECT coalesce(max(number), 0) FROM generate_series(0, $CLIENTS - 1) AS at
        LEFT JOIN pgbench_history ON client = at GROUP BY at ORDER BY at" | tr '\n' ' ')
    say "agree"
    pg_amcheck --all --install-missing --heapallindexed >/tmp/amcheck 2>&1 ||
        fail "pg_amcheck: $(cat /tmp/amcheck)"
    as_owner pg_ctl stop --pgdata="$DATA" --mode=fast --wait --timeout=1200
    as_owner pg_checksums --check --pgdata="$DATA"
    say "checksums $(grep -i -e scanned -e bad /tmp/owner.out | tr '\n' ' ')"
    umount /mnt
    /bin/e2fsck -fn "$DISK" >/tmp/fsck 2>&1 || fail "e2fsck: $(tr '\n' ' ' </tmp/fsck)"
    say "checked $there"
}

mkdir -p /dev/shm
mount -t tmpfs -o mode=1777 shm /dev/shm
chmod 1777 /tmp
touch /tmp/server.log /tmp/pgbench.out
chown postgres /tmp/server.log
ip link set lo up
"$STEP"
