/* A program that knows libfabric and nothing of vrio. Two processes sleep until the other process
 * has something for them, in each way that libfabric offers.
 *
 * The argument names the case. Behaviour that differs from libfabric's manuals ends the program
 * with the line of the failed check. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "check.h"

#define PATIENCE_MS (PATIENCE_S * 1000)

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_cntr *received;
static struct fid_av *av;
static fi_addr_t other, self;
static pid_t child;
static int wait_fd = -1, received_fd = -1;

static enum fi_wait_obj wait_object = FI_WAIT_FD;
static enum fi_threading threading = FI_THREAD_DOMAIN;

/* No other process knows this endpoint yet, so all its events are its own. */
static void look_alone(void)
{
    struct fid *fids[] = { &cq->fid, &received->fid };
    struct pollfd poll_ = { .fd = wait_fd, .events = POLLIN };

    OK(fi_trywait(fabric, fids, 2));
    IS(poll(&poll_, 1, 0), 0);
    OK(fi_cq_signal(cq));
    IS(poll(&poll_, 1, 0), 1);
    IS(fi_trywait(fabric, fids, 2), -FI_EAGAIN);
    OK(fi_trywait(fabric, fids, 2));
    IS(poll(&poll_, 1, 0), 0);
    poll_.fd = received_fd;
    OK(fi_cntr_set(received, 5));
    IS(poll(&poll_, 1, 0), 1);
    IS(fi_trywait(fabric, &fids[1], 1), -FI_EAGAIN);
    IS(fi_cntr_read(received), 5);
    OK(fi_cntr_set(received, 0));
    IS(fi_cntr_read(received), 0);
    OK(fi_trywait(fabric, &fids[1], 1));
}

static void open_all(void)
{
    struct fi_info *hints = fi_allocinfo();
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    struct fi_cntr_attr cntr_attr = { .events = FI_CNTR_EVENTS_COMP };
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    enum fi_wait_obj kind;

    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV;
    hints->domain_attr->threading = threading;
    hints->fabric_attr->prov_name = strdup("vrio");
    OK(fi_getinfo(FI_VERSION(1, 5), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    for (cq_attr.wait_obj = FI_WAIT_SET; cq_attr.wait_obj <= FI_WAIT_YIELD; cq_attr.wait_obj++) {
        if (cq_attr.wait_obj != FI_WAIT_FD)
            IS(fi_cq_open(domain, &cq_attr, &cq, NULL), -FI_ENOSYS);
    }
    cq_attr.wait_obj = cntr_attr.wait_obj = wait_object;
    OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    OK(fi_cntr_open(domain, &cntr_attr, &received, NULL));
    OK(fi_control(&cq->fid, FI_GETWAITOBJ, &kind));
    IS(kind, wait_object);
    if (wait_object == FI_WAIT_FD) {
        OK(fi_control(&cq->fid, FI_GETWAIT, &wait_fd));
        OK(fi_control(&received->fid, FI_GETWAIT, &received_fd));
        TRUE(wait_fd >= 0 && received_fd >= 0 && wait_fd != received_fd);
    } else {
        IS(fi_control(&cq->fid, FI_GETWAIT, &wait_fd), -FI_ENOSYS);
    }
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_ep_bind(ep, &received->fid, FI_RECV));
    OK(fi_enable(ep));
    if (wait_object == FI_WAIT_FD)
        look_alone();
}

/* Goes on in a child. The case may kill the child, which is a success. */
static void delegate(void)
{
    int status;

    child = fork();
    if (child == 0) {
        OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
        return;
    }
    IS(waitpid(child, &status, 0), child);
    exit(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? 0 : status != 0);
}

/* Exchanges names with the other rank, by files. */
static void swap(int me, const char *name, char *theirs, size_t length)
{
    const char *mine = me ? "name-1" : "name-0", *other_ones = me ? "name-0" : "name-1";
    FILE *file;
    char unready[16];

    snprintf(unready, sizeof unready, "unready-%d", me);
    file = fopen(unready, "w");
    IS(fwrite(name, 1, length, file), length);
    OK(fclose(file));
    OK(rename(unready, mine));
    while ((file = fopen(other_ones, "r")) == NULL)
        usleep(1000);
    IS(fread(theirs, 1, length, file), length);
    OK(fclose(file));
}

/* Makes two processes that know each other's addresses: by a fork, or, in a job of two ranks, by
 * files in a folder that both ranks see. */
static int meet(void)
{
    int there[2], back[2], me;
    char name[64], theirs[64], *rank = getenv("OMPI_COMM_WORLD_RANK");
    size_t length = sizeof name;

    OK(pipe(there));
    OK(pipe(back));
    if (rank) {
        me = atoi(rank);
        delegate();
    } else {
        child = fork();
        me = child == 0;
        if (me)
            OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
    }
    open_all();
    OK(fi_getname(&ep->fid, name, &length));
    if (rank) {
        swap(me, name, theirs, length);
    } else {
        IS(write(me ? back[1] : there[1], name, length), length);
        IS(read(me ? there[0] : back[0], theirs, length), length);
    }
    IS(fi_av_insert(av, theirs, 1, &other, 0, NULL), 1);
    IS(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
    return me;
}

static void part(int me)
{
    int status = 0;

    /* The other process may be on another host. */
    if (child)
        IS(waitpid(child, &status, 0), child);
    IS(status, 0);
    OK(fi_close(&ep->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&cq->fid));
    OK(fi_close(&received->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
    fi_freeinfo(info);
    if (me)
        exit(0);
}

/* Polls the descriptor of an object, if fi_trywait allows it. */
static void sleep_on(struct fid *fid, int fd)
{
    struct pollfd poll_ = { .fd = fd, .events = POLLIN };
    int r = fi_trywait(fabric, &fid, 1);

    if (r == -FI_EAGAIN)
        return;
    IS(r, 0);
    IS(poll(&poll_, 1, PATIENCE_MS), 1);
}

static struct fi_cq_tagged_entry by_descriptor(void)
{
    struct fi_cq_tagged_entry entry = { 0 };
    ssize_t got;

    while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
        sleep_on(&cq->fid, wait_fd);
    IS(got, 1);
    return entry;
}

static struct fi_cq_tagged_entry by_call(void)
{
    struct fi_cq_tagged_entry entry = { 0 };

    IS(fi_cq_sread(cq, &entry, 1, NULL, PATIENCE_MS), 1);
    return entry;
}

static struct fi_cq_tagged_entry (*next)(void) = by_descriptor;

/* Sends, again and again until it is possible. */
#define SOON(call) \
    do { \
        ssize_t r_; \
        while ((r_ = (call)) == -FI_EAGAIN) \
            fi_cq_read(cq, NULL, 0); \
        IS(r_, 0); \
    } while (0)

/* A pause whose length varies: some pauses are too short for the other process to sleep. */
static void dawdle(int round)
{
    struct timespec pause_ = { .tv_nsec = (round * 7919L % 11) * 20000 };

    if (round % 3 == 0)
        nanosleep(&pause_, NULL);
}

/* Messages of this length in both directions. */
static void rounds(int me, int count, size_t bytes)
{
    char *in = calloc(1, bytes), *out = calloc(1, bytes);

    for (int round = 0; round < count; round++) {
        int left = 2;

        OK(fi_trecv(ep, in, bytes, NULL, other, round, 0, in));
        dawdle(round + me);
        if (me) {
            while (left > 1)
                left -= next().op_context == in;
        }
        memset(out, round, bytes);
        SOON(fi_tsend(ep, out, bytes, NULL, other, round, out));
        while (left > 0)
            left -= next().op_context != NULL;
        IS(in[0], (char)round);
        IS(in[bytes - 1], (char)round);
    }
    free(in);
    free(out);
}

static void descriptor(void)
{
    int me = meet();

    rounds(me, 3000, 8);
    rounds(me, 100, 10000);
    part(me);
}

static void call(void)
{
    int me = meet();

    rounds(me, 3000, 8);
    rounds(me, 100, 10000);
    part(me);
}

/* A message that is longer than any buffer needs both processes to wake again and again. */
static void long_(void)
{
    int me = meet();

    rounds(me, 100, 3 << 20);
    rounds(me, 20, 9 << 20);
    part(me);
}

static void counter(void)
{
    int me = meet();
    char in[8];
    struct fi_cq_tagged_entry entry;

    for (uint64_t round = 0; round < 2000; round++) {
        OK(fi_trecv(ep, in, 8, NULL, other, round, 0, in));
        for (int step = 0; step < 2; step++) {
            if (step == me) {
                dawdle((int)round);
                SOON(fi_tinject(ep, &round, 8, other, round));
            } else if (round % 2) {
                OK(fi_cntr_wait(received, round + 1, PATIENCE_MS));
            } else {
                while (fi_cntr_read(received) <= round)
                    sleep_on(&received->fid, received_fd);
            }
        }
        OK(memcmp(in, &round, 8));
        while (fi_cq_read(cq, &entry, 1) != -FI_EAGAIN)
            ;
    }
    IS(fi_cntr_wait(received, 2001, 5), -FI_ETIMEDOUT);
    OK(fi_cntr_add(received, 1));
    OK(fi_cntr_wait(received, 2001, 5));
    part(me);
}

static double used(void)
{
    struct rusage usage;

    OK(getrusage(RUSAGE_SELF, &usage));
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
        + 1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* A sleeper takes no processor time, and wakes when its time is over. */
static void still(void)
{
    int me = meet();
    struct fi_cq_tagged_entry entry;
    double before = used();

    IS(fi_cq_sread(cq, &entry, 1, NULL, 2000), -FI_EAGAIN);
    IS(fi_cntr_wait(received, 1, 1000), -FI_ETIMEDOUT);
    /* Polling would take at least a tenth of the time. */
    TRUE(used() - before < 0.1);
    rounds(me, 1, 8);
    part(me);
}

/* A process is killed while another process waits for it: each wait ends with an error. */
static void killed(void)
{
    char in[8], *out = calloc(1, 1 << 20);
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = { 0 };
    struct timespec while_ = { .tv_nsec = 100000000 };
    int me = meet();

    rounds(me, 10, 8);
    if (me) {
        nanosleep(&while_, NULL);
        kill(getpid(), SIGKILL);
    }
    OK(fi_trecv(ep, in, 8, NULL, other, 1, 0, in));
    SOON(fi_tsend(ep, out, 1 << 20, NULL, other, 2, out));
    for (int i = 0; i < 2; i++) {
        if (wait_object == FI_WAIT_FD) {
            while (fi_cq_read(cq, &entry, 1) == -FI_EAGAIN)
                sleep_on(&cq->fid, wait_fd);
        } else {
            IS(fi_cq_sread(cq, &entry, 1, NULL, PATIENCE_MS), -FI_EAVAIL);
        }
        IS(fi_cq_readerr(cq, &error, 0), 1);
        IS(error.err, FI_ECONNRESET);
    }
}

static void *wait_for_two(void *nothing)
{
    for (int i = 0; i < 2; i++)
        by_call();
    return nothing;
}

/* One thread sleeps while another thread does the operation that it waits for. */
static void threads(void)
{
    pthread_t sleeper;
    struct timespec while_ = { .tv_nsec = 20000000 };
    char in[8];
    int me = meet();

    for (int i = 0; i < 20; i++) {
        OK(pthread_create(&sleeper, NULL, wait_for_two, NULL));
        nanosleep(&while_, NULL);
        OK(fi_trecv(ep, in, 8, NULL, FI_ADDR_UNSPEC, 7, 0, in));
        nanosleep(&while_, NULL);
        OK(fi_tsend(ep, "x", 1, NULL, self, 7, "x"));
        OK(pthread_join(sleeper, NULL));
    }
    part(me);
}

static double now(void)
{
    struct timespec time_;

    OK(clock_gettime(CLOCK_MONOTONIC, &time_));
    return (double)time_.tv_sec + 1e-9 * (double)time_.tv_nsec;
}

static void rest_ms(long ms)
{
    struct timespec while_ = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

    nanosleep(&while_, NULL);
}

/* A message is refused for want of room. Room is not announced: the wait ends by itself. */
static void refused(void)
{
    int me = meet();
    struct fi_cq_tagged_entry entry;
    int sent = 0, value, waits = 0;
    double begun;
    enum { COUNT = 5000 };

    if (me) {
        struct timespec while_ = { .tv_nsec = 200000000 };

        nanosleep(&while_, NULL);
        for (int i = 0; i < COUNT; i++) {
            OK(fi_trecv(ep, &value, 4, NULL, other, 1, 0, &value));
            by_call();
            IS(value, i);
        }
    } else {
        while (sent < COUNT) {
            ssize_t r = fi_tinject(ep, &sent, 4, other, 1);

            if (r == -FI_EAGAIN) {
                begun = now();
                IS(fi_cq_sread(cq, &entry, 1, NULL, PATIENCE_MS), -FI_EAGAIN);
                TRUE(now() - begun < PATIENCE_S / 2);
                waits++;
            } else {
                IS(r, 0);
                sent++;
            }
        }
        TRUE(waits > 0);
    }
    part(me);
}

/* Messages wait for room at their sender, which sleeps until the last message is answered. */
static void queued(void)
{
    enum { COUNT = 5000 };
    int me = meet(), value;

    if (me) {
        rest_ms(200);
        for (int i = 0; i < COUNT; i++) {
            OK(fi_trecv(ep, &value, 4, NULL, other, 1, 0, &value));
            by_call();
            IS(value, i);
        }
        SOON(fi_tinject(ep, &value, 4, other, 2));
    } else {
        OK(fi_trecv(ep, &value, 4, NULL, other, 2, 0, &value));
        for (int sent = 0; sent < COUNT; sent++)
            OK(fi_tinject(ep, &sent, 4, other, 1));
        by_call();
        IS(value, COUNT - 1);
    }
    part(me);
}

/* The same with a receiver that has no room and another that has. The wait ends when there is room,
 * long before its time is over. */
static void refused_by_one(void)
{
    int me = meet();
    struct fi_cq_tagged_entry entry;
    double begun;
    int value, sent = 0;

    if (me) {
        rest_ms(300);
        do {
            OK(fi_trecv(ep, &value, 4, NULL, other, 1, 0, &value));
            while (next().op_context != &value)
                ;
        } while (value >= 0);
    } else {
        while (!fi_tinject(ep, &sent, 4, other, 1))
            sent++;
        OK(fi_tinject(ep, "x", 1, self, 2));
        begun = now();
        IS(fi_cq_sread(cq, &entry, 1, NULL, PATIENCE_MS), -FI_EAGAIN);
        TRUE(now() - begun < PATIENCE_S / 2);
        value = -1;
        SOON(fi_tinject(ep, &value, 4, other, 1));
    }
    part(me);
}

static uint64_t thresholds[] = { 2, 4, 6, 8 };

static void *wait_for_threshold(void *threshold)
{
    OK(fi_cntr_wait(received, *(uint64_t *)threshold, PATIENCE_MS));
    return NULL;
}

/* Threads that sleep for one counter: the thread that is woken first has not reached its number. */
static void sleepers(void)
{
    enum { COUNT = sizeof thresholds / sizeof *thresholds };
    pthread_t sleepers_[COUNT];
    struct fi_cq_tagged_entry entry;
    char in[8];
    int me = meet();

    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < COUNT; i++)
            OK(pthread_create(&sleepers_[i], NULL, wait_for_threshold, &thresholds[i]));
        rest_ms(5);
        for (int i = 0; i < 2 * COUNT; i++) {
            OK(fi_trecv(ep, in, 8, NULL, FI_ADDR_UNSPEC, 7, 0, in));
            if (me)
                SOON(fi_tinject(ep, "x", 1, other, 7));
            rest_ms(i % 3);
            if (!me)
                SOON(fi_tinject(ep, "x", 1, other, 7));
        }
        for (int i = 0; i < COUNT; i++)
            OK(pthread_join(sleepers_[i], NULL));
        while (fi_cq_read(cq, &entry, 1) == 1)
            ;
        for (int i = 0; i < COUNT; i++)
            thresholds[i] += 2 * COUNT;
    }
    part(me);
}

static void *wait_for_received(void *count)
{
    for (uint64_t i = 1; i <= *(uint64_t *)count; i++)
        OK(fi_cntr_wait(received, i, PATIENCE_MS));
    return NULL;
}

/* One thread sleeps for the queue and another for the counter of the same endpoint. */
static void both(void)
{
    pthread_t counts;
    uint64_t count = 1000;
    char in[8];
    int me = meet();

    OK(pthread_create(&counts, NULL, wait_for_received, &count));
    for (uint64_t i = 0; i < count; i++) {
        OK(fi_trecv(ep, in, 8, NULL, other, i, 0, in));
        if (me)
            IS(by_call().op_context, in);
        dawdle((int)i);
        SOON(fi_tinject(ep, "x", 1, other, i));
        if (!me)
            IS(by_call().op_context, in);
    }
    OK(pthread_join(counts, NULL));
    part(me);
}

static void *wait_for_one(void *context)
{
    IS(by_call().op_context, context);
    return NULL;
}

/* An endpoint that is bound while a thread sleeps wakes that thread, too. */
static void late(void)
{
    pthread_t sleeper;
    struct fid_ep *later;
    fi_addr_t there;
    char name[64], in[8];
    size_t length = sizeof name;
    int me = meet();

    OK(pthread_create(&sleeper, NULL, wait_for_one, in));
    rest_ms(50);
    OK(fi_endpoint(domain, info, &later, NULL));
    OK(fi_ep_bind(later, &av->fid, 0));
    OK(fi_ep_bind(later, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_enable(later));
    OK(fi_getname(&later->fid, name, &length));
    IS(fi_av_insert(av, name, 1, &there, 0, NULL), 1);
    OK(fi_trecv(later, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    rest_ms(50);
    SOON(fi_tinject(ep, "x", 1, there, 1));
    OK(pthread_join(sleeper, NULL));
    OK(fi_close(&later->fid));
    part(me);
}

enum { READS = 20 };

static void *wait_for_reads(void *counter)
{
    for (uint64_t i = 1; i <= READS; i++)
        OK(fi_cntr_wait(counter, i, PATIENCE_MS));
    return NULL;
}

/* One thread sleeps for a counter that counts only reads while another thread reads memory of their
 * own process. An endpoint has at most one such counter. */
static void reads(void)
{
    struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = wait_object };
    pthread_t sleeper;
    struct fid_ep *reader;
    struct fid_cntr *counter_;
    struct fid_mr *memory;
    fi_addr_t there;
    char name[64], from[8] = "content", to[8];
    size_t length = sizeof name;
    int me = meet();

    OK(fi_cntr_open(domain, &attr, &counter_, NULL));
    OK(fi_mr_reg(domain, from, 8, FI_REMOTE_READ, 0, 7, 0, &memory, NULL));
    OK(fi_endpoint(domain, info, &reader, NULL));
    OK(fi_ep_bind(reader, &av->fid, 0));
    OK(fi_ep_bind(reader, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_ep_bind(reader, &counter_->fid, FI_READ));
    IS(fi_ep_bind(reader, &received->fid, FI_READ), -FI_EOPBADSTATE);
    OK(fi_enable(reader));
    OK(fi_getname(&reader->fid, name, &length));
    IS(fi_av_insert(av, name, 1, &there, 0, NULL), 1);
    OK(pthread_create(&sleeper, NULL, wait_for_reads, counter_));
    for (int i = 0; i < READS; i++) {
        rest_ms(10);
        OK(fi_read(reader, to, 8, NULL, there, 0, 7, to));
    }
    OK(pthread_join(sleeper, NULL));
    OK(memcmp(from, to, 8));
    OK(fi_close(&reader->fid));
    OK(fi_close(&counter_->fid));
    OK(fi_close(&memory->fid));
    part(me);
}

/* A child that closes what it has inherited leaves its parent's descriptors as they are. */
static void inherited(void)
{
    int me = meet(), status = 0;
    pid_t heir = fork();

    if (heir == 0) {
        OK(fi_close(&ep->fid));
        _exit(0);
    }
    IS(waitpid(heir, &status, 0), heir);
    IS(status, 0);
    rounds(me, 100, 8);
    part(me);
}

/* A process that may ring a doorbell can also shut it down. Its owner gets a new doorbell, and
 * sleeps again. */
static void torn(void)
{
    int me = meet();
    struct fid *fids[] = { &cq->fid };
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    double begun;

    OK(sigaction(SIGPIPE, &ignore, NULL));
    rounds(me, 100, 8);
    for (int fd = 3; fd < 256; fd++) {
        int kind;
        socklen_t length = sizeof kind;

        /* The doorbells of both processes, but not the connection with the node. */
        if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &length) && kind == SOCK_STREAM)
            OK(shutdown(fd, SHUT_RDWR));
    }
    for (begun = now(); fi_trywait(fabric, fids, 1); rest_ms(1))
        TRUE(now() - begun < PATIENCE_S);
    rounds(me, 100, 8);
    part(me);
}

static void calls(void) { wait_object = FI_WAIT_UNSPEC; next = by_call; }
static void no_waiting(void) { calls(); OK(setenv("VRIO_FI_WAITING_BYTES", "0", 1)); }
static void safe(void) { calls(); threading = FI_THREAD_SAFE; }

static const struct {
    const char *name;
    void (*how)(void);
    void (*what)(void);
} cases[] = {
    { "descriptor", NULL, descriptor }, { "call", calls, call }, { "long", NULL, long_ },
    { "long_call", calls, long_ }, { "counter", NULL, counter }, { "still", calls, still },
    { "killed", NULL, killed }, { "killed_call", calls, killed }, { "threads", safe, threads },
    { "refused", no_waiting, refused }, { "refused_by_one", no_waiting, refused_by_one },
    { "queued", calls, queued },
    { "sleepers", safe, sleepers }, { "both", safe, both }, { "late", safe, late },
    { "reads", safe, reads }, { "inherited", NULL, inherited }, { "torn", NULL, torn },
};

int main(int count, char **arguments)
{
    for (size_t i = 0; count == 2 && i < sizeof cases / sizeof *cases; i++) {
        if (!strcmp(cases[i].name, arguments[1])) {
            if (cases[i].how)
                cases[i].how();
            cases[i].what();
            printf("ok %s\n", arguments[1]);
            return 0;
        }
    }
    fprintf(stderr, "sleep: which way?\n");
    return 2;
}
