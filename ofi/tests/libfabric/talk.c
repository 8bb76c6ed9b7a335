/* A program that knows libfabric and nothing of vrio. It makes the calls that MPI makes.
 *
 * Two endpoints of one process, each with its own address vector and queue, send each other
 * messages. The argument names the case. Behaviour that differs from libfabric's manuals ends the
 * program with the line of the failed check. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "check.h"

struct side {
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_cntr *sent, *received;
    fi_addr_t other;
    fi_addr_t self;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct side a, b;

/* The attributes of the endpoints. */
static enum fi_threading threading = FI_THREAD_DOMAIN;
static enum fi_av_type kind = FI_AV_TABLE;
static enum fi_cq_format format = FI_CQ_FORMAT_TAGGED;
static enum fi_wait_obj wait_object = FI_WAIT_NONE;
static uint64_t bind_flags = 0;
static uint64_t op_flags = 0;
static int with_counters = 0;

static void open_side(struct side *side)
{
    struct fi_cq_attr cq = { .format = format, .wait_obj = wait_object };
    struct fi_av_attr av = { .type = kind };
    struct fi_cntr_attr cntr = { .events = FI_CNTR_EVENTS_COMP };

    OK(fi_endpoint(domain, info, &side->ep, NULL));
    OK(fi_cq_open(domain, &cq, &side->cq, NULL));
    OK(fi_av_open(domain, &av, &side->av, NULL));
    IS(fi_enable(side->ep), -FI_ENOAV);
    OK(fi_ep_bind(side->ep, &side->av->fid, 0));
    IS(fi_enable(side->ep), -FI_ENOCQ);
    OK(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV | bind_flags));
    if (with_counters) {
        OK(fi_cntr_open(domain, &cntr, &side->sent, NULL));
        OK(fi_cntr_open(domain, &cntr, &side->received, NULL));
        OK(fi_ep_bind(side->ep, &side->sent->fid, FI_SEND | FI_WRITE));
        OK(fi_ep_bind(side->ep, &side->received->fid, FI_RECV | FI_READ));
    }
    IS(fi_send(side->ep, "", 0, NULL, 0, NULL), -FI_EOPBADSTATE);
    OK(fi_enable(side->ep));
}

static void meet(struct side *side, struct side *other)
{
    char name[64], known[64];
    size_t length = sizeof name, size;

    OK(fi_getname(&other->ep->fid, name, &length));
    TRUE(length <= 64);
    size = 3;
    IS(fi_getname(&other->ep->fid, known, &size), -FI_ETOOSMALL);
    IS(size, length);
    IS(fi_av_insert(side->av, name, 1, &side->other, 0, NULL), 1);
    size = sizeof known;
    OK(fi_av_lookup(side->av, side->other, known, &size));
    IS(size, length);
    OK(memcmp(name, known, length));
    length = sizeof name;
    OK(fi_getname(&side->ep->fid, name, &length));
    IS(fi_av_insert(side->av, name, 1, &side->self, 0, NULL), 1);
    TRUE(side->self != side->other);
}

static void begin(void)
{
    struct fi_info *hints = fi_allocinfo();

    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE | FI_MULTI_RECV;
    hints->mode = FI_CONTEXT;
    hints->domain_attr->threading = threading;
    hints->domain_attr->mr_mode = FI_MR_ENDPOINT;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->tx_attr->op_flags = hints->rx_attr->op_flags = op_flags;
    hints->fabric_attr->prov_name = strdup("vrio");
    OK(fi_getinfo(FI_VERSION(1, 5), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
    OK(info->next != NULL);
    OK(strcmp(info->fabric_attr->prov_name, "vrio"));
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    open_side(&a);
    open_side(&b);
    meet(&a, &b);
    meet(&b, &a);
}

static void end(void)
{
    struct side *sides[] = { &a, &b };

    IS(fi_close(&domain->fid), -FI_EBUSY);
    for (int i = 0; i < 2; i++) {
        IS(fi_close(&sides[i]->cq->fid), -FI_EBUSY);
        OK(fi_close(&sides[i]->ep->fid));
        OK(fi_close(&sides[i]->av->fid));
        OK(fi_close(&sides[i]->cq->fid));
        if (with_counters) {
            OK(fi_close(&sides[i]->sent->fid));
            OK(fi_close(&sides[i]->received->fid));
        }
    }
    IS(fi_close(&fabric->fid), -FI_EBUSY);
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
    fi_freeinfo(info);
}

/* The next completion of a side. The messages of the other side move meanwhile. Its queue is not
 * read, so its completions stay there. */
static ssize_t next(struct side *side, struct fi_cq_tagged_entry *entry, fi_addr_t *from)
{
    struct side *other = side == &a ? &b : &a;
    time_t end = time(NULL) + PATIENCE_S;
    ssize_t got;

    while ((got = fi_cq_readfrom(side->cq, entry, 1, from)) == -FI_EAGAIN) {
        fi_cq_read(other->cq, NULL, 0);
        if (time(NULL) > end)
            return -FI_ETIMEDOUT;
    }
    return got;
}

static struct fi_cq_tagged_entry done(struct side *side, void *context)
{
    struct fi_cq_tagged_entry entry = { 0 };

    IS(next(side, &entry, NULL), 1);
    IS((long)entry.op_context, (long)context);
    return entry;
}

static struct fi_cq_err_entry failed(struct side *side, void *context)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = { 0 };

    IS(next(side, &entry, NULL), -FI_EAVAIL);
    IS(fi_cq_readerr(side->cq, &error, 0), 1);
    IS((long)error.op_context, (long)context);
    IS(fi_cq_readerr(side->cq, &error, 0), -FI_EAGAIN);
    return error;
}

/* There are no more completions on either side. */
static void quiet(void)
{
    struct fi_cq_tagged_entry entry;

    for (int i = 0; i < 1000; i++) {
        IS(fi_cq_read(a.cq, &entry, 1), -FI_EAGAIN);
        IS(fi_cq_read(b.cq, &entry, 1), -FI_EAGAIN);
    }
}

/* For calls that may need to be repeated. */
#define AGAIN(call) \
    do { \
        time_t end_ = time(NULL) + PATIENCE_S; \
        ssize_t r_; \
        while ((r_ = (call)) == -FI_EAGAIN && time(NULL) <= end_) { \
            fi_cq_read(a.cq, NULL, 0); \
            fi_cq_read(b.cq, NULL, 0); \
        } \
        IS(r_, 0); \
    } while (0)

static unsigned char at(size_t place, int seed)
{
    return (unsigned char)(place * 31 + place / 251 + seed);
}

static char *make(size_t size, int seed)
{
    char *buffer = malloc(size + 1);

    for (size_t i = 0; i < size; i++)
        buffer[i] = (char)at(i, seed);
    return buffer;
}

static void same(const char *buffer, size_t size, int seed)
{
    for (size_t i = 0; i < size; i++)
        IS((unsigned char)buffer[i], at(i, seed));
}

static const size_t sizes[] = { 0, 1, 8, 100, 192, 256, 1000, 4096, 8192, 8193, 16384, 65536,
                100000, 1 << 20, (4 << 20) + 3 };
#define SIZES (sizeof sizes / sizeof *sizes)

/* Every size, with the receive before the message and after it. */
static void untagged(void)
{
    for (size_t i = 0; i < SIZES; i++) {
        for (int late = 0; late < 2; late++) {
            char *out = make(sizes[i], (int)i), *in = make(sizes[i], 99);
            struct fi_cq_tagged_entry entry;

            if (!late)
                OK(fi_recv(b.ep, in, sizes[i], NULL, FI_ADDR_UNSPEC, &in));
            AGAIN(fi_send(a.ep, out, sizes[i], NULL, a.other, &out));
            if (late) {
                for (int poll = 0; poll < 100; poll++)
                    fi_cq_read(b.cq, NULL, 0);
                OK(fi_recv(b.ep, in, sizes[i], NULL, FI_ADDR_UNSPEC, &in));
            }
            entry = done(&b, &in);
            IS(entry.len, sizes[i]);
            IS(entry.flags, FI_RECV | FI_MSG);
            same(in, sizes[i], (int)i);
            entry = done(&a, &out);
            IS(entry.flags, FI_SEND | FI_MSG);
            free(out);
            free(in);
        }
    }
    quiet();
}

/* Tags decide, bits may be ignored, and untagged receives take no tagged messages. */
static void tagged(void)
{
    char in[4][16];
    struct fi_cq_tagged_entry entry;

    OK(fi_recv(b.ep, in[3], 16, NULL, FI_ADDR_UNSPEC, in[3]));
    OK(fi_trecv(b.ep, in[0], 16, NULL, FI_ADDR_UNSPEC, 7, 0, in[0]));
    OK(fi_trecv(b.ep, in[1], 16, NULL, FI_ADDR_UNSPEC, 0x100, 0xff, in[1]));
    AGAIN(fi_tsend(a.ep, "ignored bits", 12, NULL, a.other, 0x107, "x"));
    AGAIN(fi_tsenddata(a.ep, "seven", 5, NULL, 0xfeedface12345678, a.other, 7, "y"));
    entry = done(&b, in[1]);
    IS(entry.tag, 0x107);
    IS(entry.len, 12);
    IS(entry.flags, FI_RECV | FI_TAGGED);
    OK(memcmp(in[1], "ignored bits", 12));
    entry = done(&b, in[0]);
    IS(entry.tag, 7);
    IS(entry.flags, FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA);
    IS(entry.data, 0xfeedface12345678);
    OK(memcmp(in[0], "seven", 5));
    done(&a, "x");
    done(&a, "y");
    AGAIN(fi_senddata(a.ep, "untagged", 8, NULL, 5, a.other, "z"));
    entry = done(&b, in[3]);
    IS(entry.flags, FI_RECV | FI_MSG | FI_REMOTE_CQ_DATA);
    IS(entry.data, 5);
    done(&a, "z");
    quiet();
}

/* Messages of one pair are received in the order of their sends, short and long ones in turn. */
static void order(void)
{
    enum { COUNT = 40 };
    char *out[COUNT], *in[COUNT];
    struct fi_cq_tagged_entry entry;

    for (int i = 0; i < COUNT; i++) {
        out[i] = make(i % 3 == 0 ? 1 << 18 : 32, i);
        AGAIN(fi_tsend(a.ep, out[i], i % 3 == 0 ? 1 << 18 : 32, NULL, a.other, 1, out[i]));
    }
    for (int i = 0; i < COUNT; i++) {
        in[i] = make(1 << 18, 99);
        OK(fi_trecv(b.ep, in[i], 1 << 18, NULL, FI_ADDR_UNSPEC, 1, 0, in[i]));
    }
    /* Long ones may end later than short ones that came after them. */
    for (int i = 0; i < COUNT; i++)
        IS(next(&b, &entry, NULL), 1);
    for (int i = 0; i < COUNT; i++)
        IS(next(&a, &entry, NULL), 1);
    for (int i = 0; i < COUNT; i++) {
        same(in[i], i % 3 == 0 ? 1 << 18 : 32, i);
        free(out[i]);
        free(in[i]);
    }
    quiet();
}

/* A receive from one source takes no message of another source. */
static void directed(void)
{
    char in[2][8];
    struct fi_cq_tagged_entry entry;
    fi_addr_t from = 0;

    OK(fi_trecv(b.ep, in[0], 8, NULL, b.self, 1, 0, in[0]));
    OK(fi_trecv(b.ep, in[1], 8, NULL, b.other, 1, 0, in[1]));
    IS(fi_trecv(b.ep, in[1], 8, NULL, 77, 1, 0, in[1]), -FI_EINVAL);
    AGAIN(fi_tsend(a.ep, "other", 5, NULL, a.other, 1, "x"));
    IS(next(&b, &entry, &from), 1);
    IS((long)entry.op_context, (long)in[1]);
    IS(from, b.other);
    AGAIN(fi_tsend(b.ep, "self", 4, NULL, b.self, 1, "y"));
    for (int i = 0; i < 2; i++) {
        IS(next(&b, &entry, &from), 1);
        if (entry.flags & FI_RECV) {
            IS((long)entry.op_context, (long)in[0]);
            IS(from, b.self);
        }
    }
    OK(memcmp(in[0], "self", 4));
    done(&a, "x");
    quiet();
}

/* Buffers in pieces, on both sides and of different lengths. */
static void pieces(void)
{
    static const size_t totals[] = { 30, 3000, 300000 };

    for (int i = 0; i < 3; i++) {
        size_t total = totals[i], third = total / 3, half = total / 2;
        char *out = make(total, i), *in = make(total, 99);
        struct iovec from[] = { { out, third }, { out + third, 0 },
                    { out + third, total - third } };
        struct iovec to[] = { { in, half }, { in + half, total - half } };
        struct iovec many[9] = { { 0 } };
        struct fi_msg_tagged message = { .msg_iov = from, .iov_count = 3, .addr = a.other,
                         .tag = 3, .context = out, .data = 8 };

        OK(fi_trecvv(b.ep, to, NULL, 2, FI_ADDR_UNSPEC, 3, 0, in));
        AGAIN(fi_tsendmsg(a.ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION));
        IS(done(&b, in).data, 8);
        done(&a, out);
        same(in, total, i);
        OK(fi_recvv(b.ep, to, NULL, 2, FI_ADDR_UNSPEC, in));
        AGAIN(fi_sendv(a.ep, from, NULL, 3, a.other, out));
        IS(done(&b, in).len, total);
        done(&a, out);
        same(in, total, i);
        IS(fi_sendv(a.ep, many, NULL, 9, a.other, out), -FI_EINVAL);
        IS(fi_recvv(b.ep, many, NULL, 9, FI_ADDR_UNSPEC, in), -FI_EINVAL);
        free(out);
        free(in);
    }
    quiet();
}

/* The buffer of an injected message is free at once, and no completion comes. */
static void inject(void)
{
    size_t most = info->tx_attr->inject_size;
    char *out = make(most + 1, 1), *in = make(most + 1, 2);

    TRUE(most >= 64);
    for (int i = 0; i < 100; i++) {
        size_t size = i % 2 ? most : 8;

        out = make(size + 1, i);
        AGAIN(fi_tinject(a.ep, out, size, a.other, 1));
        memset(out, 0xff, size);
        free(out);
        OK(fi_trecv(b.ep, in, most, NULL, FI_ADDR_UNSPEC, 1, 0, in));
        IS(done(&b, in).len, size);
        same(in, size, i);
    }
    AGAIN(fi_injectdata(a.ep, "x", 1, 9, a.other));
    AGAIN(fi_inject(a.ep, "y", 1, a.other));
    AGAIN(fi_tinjectdata(a.ep, "z", 1, 10, a.other, 5));
    OK(fi_recv(b.ep, in, 1, NULL, FI_ADDR_UNSPEC, in));
    OK(fi_recv(b.ep, in + 1, 1, NULL, FI_ADDR_UNSPEC, in + 1));
    OK(fi_trecv(b.ep, in + 2, 1, NULL, FI_ADDR_UNSPEC, 5, 0, in + 2));
    IS(done(&b, in).data, 9);
    done(&b, in + 1);
    IS(done(&b, in + 2).data, 10);
    OK(memcmp(in, "xyz", 3));
    IS(fi_inject(a.ep, in, most + 1, a.other), -FI_EMSGSIZE);
    quiet();
}

static void truncated(void)
{
    static const size_t lengths[] = { 100, 5000, 200000 };

    for (int i = 0; i < 3; i++) {
        char *out = make(lengths[i], i), in[64];
        struct fi_cq_err_entry error;
        char text[16];

        memset(in, 0x55, sizeof in);
        OK(fi_trecv(b.ep, in, 60, NULL, FI_ADDR_UNSPEC, 1, 0, in));
        AGAIN(fi_tsend(a.ep, out, lengths[i], NULL, a.other, 1, out));
        error = failed(&b, in);
        IS(error.err, FI_ETRUNC);
        IS(error.olen, lengths[i] - 60);
        IS(error.len, 60);
        IS(error.tag, 1);
        IS(error.flags & (FI_RECV | FI_TAGGED), FI_RECV | FI_TAGGED);
        same(in, 60, i);
        IS(in[60], 0x55);
        TRUE(strlen(fi_cq_strerror(b.cq, error.prov_errno, NULL, text, sizeof text)) > 8);
        IS(strlen(text), sizeof text - 1);
        done(&a, out);
        free(out);
    }
    quiet();
}

static void cancelled(void)
{
    char in[2][8];

    OK(fi_trecv(b.ep, in[0], 8, NULL, FI_ADDR_UNSPEC, 1, 0, in[0]));
    OK(fi_recv(b.ep, in[1], 8, NULL, FI_ADDR_UNSPEC, in[1]));
    OK(fi_cancel(&b.ep->fid, in[0]));
    IS(failed(&b, in[0]).err, FI_ECANCELED);
    TRUE(fi_cancel(&b.ep->fid, in[0]) != 0);
    TRUE(fi_cancel(&b.ep->fid, NULL) != 0);
    OK(fi_cancel(&b.ep->fid, in[1]));
    IS(failed(&b, in[1]).err, FI_ECANCELED);
    /* A cancelled receive takes no message, and null is a context like any other. */
    AGAIN(fi_tsend(a.ep, "later", 5, NULL, a.other, 1, NULL));
    OK(fi_trecv(b.ep, in[1], 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
    IS(done(&b, NULL).len, 5);
    done(&a, NULL);
    quiet();
}

static void look(uint64_t tag, uint64_t flags, void *context)
{
    struct fi_msg_tagged message = { .addr = FI_ADDR_UNSPEC, .tag = tag, .context = context };

    OK(fi_trecvmsg(b.ep, &message, flags));
}

/* A peek finds a message that has come, and takes it only if a flag says so. */
static void peeked(void)
{
    static const size_t lengths[] = { 5, 5000, 500000 };
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error;

    look(1, FI_PEEK | FI_COMPLETION, "none");
    error = failed(&b, "none");
    IS(error.err, FI_ENOMSG);
    look(1, FI_PEEK | FI_CLAIM | FI_COMPLETION, "none");
    IS(failed(&b, "none").err, FI_ENOMSG);
    for (int i = 0; i < 3; i++) {
        char *out = make(lengths[i], i), *in = make(lengths[i], 99);
        struct iovec to = { in, lengths[i] };
        struct fi_msg_tagged claim = { .msg_iov = &to, .iov_count = 1, .context = "mine",
                           .addr = FI_ADDR_UNSPEC };

        for (int copy = 0; copy < 5; copy++)
            AGAIN(fi_tsenddata(a.ep, out, lengths[i], NULL, 3, a.other, 1, "sent"));
        look(1, FI_PEEK | FI_COMPLETION, "seen");
        entry = done(&b, "seen");
        IS(entry.len, lengths[i]);
        IS(entry.tag, 1);
        IS(entry.data, 3);
        look(2, FI_PEEK | FI_COMPLETION, "none");
        IS(failed(&b, "none").err, FI_ENOMSG);
        /* The message is still there. */
        OK(fi_trecv(b.ep, in, lengths[i], NULL, FI_ADDR_UNSPEC, 1, 0, in));
        IS(done(&b, in).len, lengths[i]);
        same(in, lengths[i], i);
        /* It is claimed, while other messages are received. */
        look(1, FI_PEEK | FI_CLAIM | FI_COMPLETION, "mine");
        done(&b, "mine");
        memset(in, 0, lengths[i]);
        OK(fi_trecv(b.ep, in, lengths[i], NULL, FI_ADDR_UNSPEC, 1, 0, in));
        IS(done(&b, in).len, lengths[i]);
        memset(in, 0, lengths[i]);
        OK(fi_trecvmsg(b.ep, &claim, FI_CLAIM | FI_COMPLETION));
        entry = done(&b, "mine");
        IS(entry.len, lengths[i]);
        IS(entry.tag, 1);
        same(in, lengths[i], i);
        /* It is discarded, by the peek and later. */
        look(1, FI_PEEK | FI_DISCARD | FI_COMPLETION, "away");
        IS(done(&b, "away").len, lengths[i]);
        look(1, FI_PEEK | FI_CLAIM | FI_COMPLETION, "mine");
        done(&b, "mine");
        /* A peek that finds nothing discards nothing, not even a message claimed by its context. */
        look(2, FI_PEEK | FI_DISCARD | FI_COMPLETION, "mine");
        IS(failed(&b, "mine").err, FI_ENOMSG);
        OK(fi_trecvmsg(b.ep, &claim, FI_CLAIM | FI_DISCARD | FI_COMPLETION));
        done(&b, "mine");
        look(1, FI_PEEK | FI_COMPLETION, "none");
        IS(failed(&b, "none").err, FI_ENOMSG);
        for (int copy = 0; copy < 5; copy++)
            done(&a, "sent");
        free(out);
        free(in);
    }
    quiet();
}

/* A buffer for many messages: one after the other, until there is too little room. */
static void many(void)
{
    enum { ROOM = 16384, LEAST = 2048, SIZE = 1500 };
    char *in = make(ROOM, 99), *out = make(SIZE, 1);
    struct iovec to = { in, ROOM };
    struct fi_msg message = { .msg_iov = &to, .iov_count = 1, .addr = FI_ADDR_UNSPEC,
                  .context = in };
    size_t least = LEAST, length = sizeof least, filled = 0, messages = 0;
    int released = 0;

    OK(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, length));
    least = 0;
    OK(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &length));
    IS(least, LEAST);
    OK(fi_recvmsg(b.ep, &message, FI_MULTI_RECV | FI_COMPLETION));
    while (!released) {
        struct fi_cq_tagged_entry entry;

        if (messages == filled / SIZE && ROOM - filled >= LEAST) {
            AGAIN(fi_send(a.ep, out, SIZE, NULL, a.other, out));
            done(&a, out);
        }
        IS(next(&b, &entry, NULL), 1);
        IS((long)entry.op_context, (long)in);
        if (entry.flags & FI_RECV) {
            IS((long)entry.buf, (long)(in + filled));
            IS(entry.len, SIZE);
            same(entry.buf, SIZE, 1);
            filled += entry.len;
            messages++;
        }
        released = !!(entry.flags & FI_MULTI_RECV);
    }
    TRUE(ROOM - filled < LEAST);
    TRUE(ROOM - filled + SIZE >= LEAST);
    quiet();
}

/* Only operations that ask for it have completions. Counters count all operations. */
static void selective(void)
{
    char in[8];
    struct iovec from = { (char *)"by flag", 7 };
    struct fi_msg_tagged message = { .msg_iov = &from, .iov_count = 1, .addr = a.other, .tag = 1,
                     .context = "told" };

    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    AGAIN(fi_tsend(a.ep, "quiet", 5, NULL, a.other, 1, "not told"));
    OK(fi_cntr_wait(b.received, 1, PATIENCE_S * 1000));
    OK(fi_cntr_wait(a.sent, 1, PATIENCE_S * 1000));
    OK(memcmp(in, "quiet", 5));
    quiet();
    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    AGAIN(fi_tinject(a.ep, "quieter", 7, a.other, 1));
    OK(fi_cntr_wait(b.received, 2, PATIENCE_S * 1000));
    OK(fi_cntr_wait(a.sent, 2, PATIENCE_S * 1000));
    quiet();
    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    AGAIN(fi_tsendmsg(a.ep, &message, FI_COMPLETION));
    done(&a, "told");
    OK(fi_cntr_wait(b.received, 3, PATIENCE_S * 1000));
    IS(fi_cntr_read(a.sent), 3);
    /* A failure has a completion all the same, with the operation's context. */
    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    OK(fi_cancel(&b.ep->fid, in));
    IS(failed(&b, in).err, FI_ECANCELED);
    IS(fi_cntr_readerr(b.received), 1);
    IS(fi_cntr_read(b.received), 3);
    OK(fi_cntr_set(b.received, 10));
    OK(fi_cntr_add(b.received, 5));
    IS(fi_cntr_read(b.received), 15);
    IS(fi_cntr_wait(b.received, 16, 20), -FI_ETIMEDOUT);
    quiet();
}

/* Like `selective`, but the endpoint's own flags ask for completions, as in MPI. */
static void by_default(void)
{
    char in[8];
    uint64_t flags = FI_TRANSMIT;

    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    AGAIN(fi_tsend(a.ep, "told", 4, NULL, a.other, 1, "x"));
    done(&b, in);
    done(&a, "x");
    OK(fi_control(&a.ep->fid, FI_GETOPSFLAG, &flags));
    IS(flags, FI_COMPLETION);
    flags = FI_TRANSMIT;
    OK(fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags));
    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    AGAIN(fi_tsend(a.ep, "quiet", 5, NULL, a.other, 1, "x"));
    done(&b, in);
    quiet();
}

/* Operations that are not offered fail with the right error. */
static void refused(void)
{
    struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_MUTEX_COND };
    struct fi_cntr_attr cntr = { .wait_obj = FI_WAIT_MUTEX_COND };
    struct fi_eq_attr eq = { .wait_obj = FI_WAIT_UNSPEC };
    struct fid_cq *queue;
    struct fid_cntr *counter;
    struct fid_eq *events;
    struct fid_ep *ep;
    struct fid_mr *mr;
    struct fi_cq_tagged_entry entry;
    char name[64] = { 0 }, text[8];
    size_t length = sizeof text;
    fi_addr_t none = 0;
    uint32_t event;
    struct fi_eq_entry happened;

    IS(fi_cq_open(domain, &cq, &queue, NULL), -FI_ENOSYS);
    IS(fi_cntr_open(domain, &cntr, &counter, NULL), -FI_ENOSYS);
    OK(fi_eq_open(fabric, &eq, &events, NULL));
    OK(fi_ep_bind(a.ep, &events->fid, 0));
    IS(fi_eq_read(events, &event, &happened, sizeof happened, 0), -FI_EAGAIN);
    IS(fi_eq_sread(events, &event, &happened, sizeof happened, 5, 0), -FI_EAGAIN);
    OK(fi_close(&events->fid));
    IS(fi_scalable_ep(domain, info, &ep, NULL), -FI_ENOSYS);
    IS(fi_tx_context(a.ep, 0, NULL, &ep, NULL), -FI_ENOSYS);
    IS(fi_write(a.ep, name, 8, NULL, a.other, 0, 0, NULL), -FI_EOPNOTSUPP);
    IS(fi_inject_write(a.ep, name, 8, a.other, 0, 0), -FI_EOPNOTSUPP);
    IS(fi_atomic(a.ep, name, 1, NULL, a.other, 0, 0, FI_INT32, FI_SUM, NULL), -FI_EOPNOTSUPP);
    IS(fi_barrier(a.ep, 0, NULL), -FI_EOPNOTSUPP);
    IS(fi_connect(a.ep, name, NULL, 0), -FI_ENOSYS);
    OK(fi_mr_reg(domain, name, 8, FI_SEND, 0, 42, 0, &mr, NULL));
    IS(fi_mr_key(mr), 42);
    OK(fi_close(&mr->fid));
    /* Zeroes are no address. */
    IS(fi_av_insert(a.av, name, 1, &none, 0, NULL), 0);
    IS(none, FI_ADDR_NOTAVAIL);
    IS(fi_send(a.ep, name, 1, NULL, 99, NULL), -FI_EINVAL);
    IS(fi_av_remove(a.av, &a.self, 1, 0), 0);
    IS(fi_send(a.ep, name, 1, NULL, a.self, NULL), -FI_EINVAL);
    OK(fi_av_lookup(a.av, a.other, name, &length) == 0 && length > 8 ? 0 : 1);
    length = sizeof text;
    TRUE(!strncmp(fi_av_straddr(a.av, name, text, &length), "vrio", 4));
    TRUE(length > sizeof text && strlen(text) == sizeof text - 1);
    IS(fi_cq_sread(a.cq, &entry, 1, NULL, 5),
       wait_object == FI_WAIT_NONE ? -FI_EINVAL : -FI_EAGAIN);
    quiet();
}

static volatile int over;

static void *signal_until_over(void *queue)
{
    while (!over)
        OK(fi_cq_signal(queue));
    return NULL;
}

/* A call that waits ends with a completion, in time, or by a signal of another thread, also in a
 * program that promised to use one thread for all other calls. */
static void waiting(void)
{
    pthread_t other;
    struct fi_cq_tagged_entry entry;
    char in[8];

    IS(fi_cq_sread(b.cq, &entry, 1, NULL, 10), -FI_EAGAIN);
    OK(fi_recv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, in));
    AGAIN(fi_send(a.ep, "x", 1, NULL, a.other, "x"));
    IS(fi_cq_sread(b.cq, &entry, 1, NULL, PATIENCE_S * 1000), 1);
    IS((long)entry.op_context, (long)in);
    done(&a, "x");
    OK(fi_cq_signal(b.cq));
    IS(fi_cq_sread(b.cq, &entry, 1, NULL, -1), -FI_EAGAIN);
    OK(pthread_create(&other, NULL, signal_until_over, b.cq));
    for (int i = 0; i < 20000; i++)
        IS(fi_cq_sread(b.cq, &entry, 1, NULL, -1), -FI_EAGAIN);
    over = 1;
    OK(pthread_join(other, NULL));
    refused();
}

/* The shorter formats of completions, one after the other. */
static void contexts(void)
{
    struct fi_cq_entry entries[4];
    char in[3][8];
    int got = 0;
    time_t end = time(NULL) + PATIENCE_S;

    for (int i = 0; i < 3; i++)
        OK(fi_recv(b.ep, in[i], 8, NULL, FI_ADDR_UNSPEC, in[i]));
    for (int i = 0; i < 3; i++)
        AGAIN(fi_inject(a.ep, "x", 1, a.other));
    memset(entries, 0x77, sizeof entries);
    while (got < 3 && time(NULL) < end) {
        ssize_t more = fi_cq_read(b.cq, entries + got, 3 - got);

        if (more != -FI_EAGAIN) {
            TRUE(more > 0);
            got += (int)more;
        }
    }
    IS(got, 3);
    for (int i = 0; i < 3; i++)
        IS((long)entries[i].op_context, (long)in[i]);
    IS((long)entries[3].op_context, 0x7777777777777777);
}

enum { THREADS = 3, EACH = 2000 };

static void *send_some(void *first)
{
    for (int i = 0; i < EACH; i++)
        AGAIN(fi_tinject(a.ep, &i, sizeof i, a.other, (uint64_t)(size_t)first));
    return NULL;
}

/* Several threads send at once, and other threads receive. */
static void threads(void)
{
    pthread_t thread[THREADS];
    int next_of[THREADS] = { 0 }, value;
    struct fi_cq_tagged_entry entry;

    for (size_t i = 0; i < THREADS; i++)
        OK(pthread_create(&thread[i], NULL, send_some, (void *)i));
    for (int i = 0; i < THREADS * EACH; i++) {
        OK(fi_trecv(b.ep, &value, sizeof value, NULL, FI_ADDR_UNSPEC, 0, ~0ull, &value));
        IS(next(&b, &entry, NULL), 1);
        TRUE(entry.tag < THREADS);
        IS(value, next_of[entry.tag]++);
    }
    for (int i = 0; i < THREADS; i++)
        OK(pthread_join(thread[i], NULL));
    quiet();
}

/* More messages than a ring has room for come while the receiver does not look. None is lost. */
static void flood(void)
{
    enum { COUNT = 20000 };
    struct fi_cq_tagged_entry entry;
    int value;

    for (int sent = 0; sent < COUNT; sent++)
        OK(fi_tinject(a.ep, &sent, sizeof sent, a.other, 1));
    for (int i = 0; i < COUNT; i++) {
        OK(fi_trecv(b.ep, &value, sizeof value, NULL, FI_ADDR_UNSPEC, 1, 0, &value));
        IS(next(&b, &entry, NULL), 1);
        IS(value, i);
    }
    quiet();
}

/* A message that completes at its match does not complete before, however short it is. */
static void matched(void)
{
    static const size_t lengths[] = { 0, 8, 5000, 100000 };

    for (int i = 0; i < 4; i++) {
        char *out = make(lengths[i], i), *in = make(lengths[i], 99);
        struct iovec from = { out, lengths[i] };
        struct fi_msg_tagged message = { .msg_iov = &from, .iov_count = 1, .addr = a.other,
                         .tag = 1, .context = out };

        OK(fi_tsendmsg(a.ep, &message, FI_MATCH_COMPLETE | FI_COMPLETION));
        quiet();
        OK(fi_trecv(b.ep, in, lengths[i], NULL, FI_ADDR_UNSPEC, 1, 0, in));
        done(&b, in);
        done(&a, out);
        same(in, lengths[i], i);
        free(out);
        free(in);
    }
    quiet();
}

/* Reads of registered memory, which get all that they ask for or nothing, while untagged messages
 * are sent as well. */
static void remote(void)
{
    enum { LENGTH = 1 << 20, MANY = 100 };
    static const size_t lengths[] = { 0, 1, 100, 4096, 16384, 65536, LENGTH - 4711 };
    char *there = make(LENGTH, 3), *here = make(LENGTH, 0), secret[8] = "secret", message[8];
    struct fid_mr *open, *closed, *none;
    struct fi_cq_tagged_entry entry;
    uint64_t reads = 0;

    OK(fi_mr_reg(domain, there, LENGTH, FI_REMOTE_READ, 0, 7, 0, &open, NULL));
    OK(fi_mr_reg(domain, secret, 8, FI_REMOTE_WRITE, 0, 8, 0, &closed, NULL));
    IS(fi_mr_reg(domain, secret, 8, FI_REMOTE_READ, 0, 7, 0, &none, NULL), -FI_ENOKEY);
    OK(fi_recv(b.ep, message, 8, NULL, FI_ADDR_UNSPEC, message));
    OK(fi_recv(a.ep, message, 8, NULL, FI_ADDR_UNSPEC, secret));
    for (int i = 0; i < 7; i++, reads++) {
        size_t length = lengths[i];

        memset(here, 0, LENGTH);
        OK(fi_read(a.ep, here, length, NULL, a.other, 4711, 7, &length));
        entry = done(&a, &length);
        IS(entry.flags, FI_RMA | FI_READ);
        for (size_t n = 0; n < length; n++)
            IS((unsigned char)here[n], at(n + 4711, 3));
        IS(fi_cntr_read(a.received), reads + 1);
    }
    /* More reads than there is room for requests, in pieces, by all three calls. */
    for (size_t i = 0; i < MANY; i++, reads++) {
        struct iovec to[2] = { { here + i * 100, 30 }, { here + i * 100 + 30, 70 } };
        struct fi_rma_iov from = { .addr = i * 100, .len = 100, .key = 7 };
        struct fi_msg_rma how = { .msg_iov = to, .iov_count = 2, .addr = a.other,
                      .rma_iov = &from, .rma_iov_count = 1, .context = to[0].iov_base };

        if (i % 2)
            OK(fi_readv(a.ep, to, NULL, 2, a.other, i * 100, 7, to[0].iov_base));
        else
            OK(fi_readmsg(a.ep, &how, FI_COMPLETION));
        how.rma_iov_count = 2;
        IS(fi_readmsg(a.ep, &how, 0), -FI_EINVAL);
        how.rma_iov_count = 1;
        IS(fi_readmsg(a.ep, &how, FI_PEEK), -FI_EBADFLAGS);
    }
    for (size_t i = 0; i < MANY; i++)
        done(&a, here + i * 100);
    same(here, MANY * 100, 3);
    /* Memory that is not registered, not for reading, or too short. */
    OK(fi_read(a.ep, here, 8, NULL, a.other, 0, 9, here));
    IS(failed(&a, here).err, FI_EACCES);
    OK(fi_read(a.ep, here, 8, NULL, a.other, 0, 8, here));
    IS(failed(&a, here).err, FI_EACCES);
    OK(fi_read(a.ep, here, 8, NULL, a.other, LENGTH - 7, 7, here));
    IS(failed(&a, here).err, FI_EACCES);
    OK(fi_read(a.ep, here, 8, NULL, a.other, UINT64_MAX, 7, here));
    IS(failed(&a, here).err, FI_EACCES);
    IS(fi_cntr_readerr(a.received), 4);
    IS(fi_cntr_read(a.received), reads);
    OK(fi_close(&open->fid));
    OK(fi_read(a.ep, here, 8, NULL, a.other, 0, 7, here));
    IS(failed(&a, here).err, FI_EACCES);
    OK(fi_close(&closed->fid));
    /* The receives of messages have met none of the reads. */
    OK(fi_inject(a.ep, "as ever", 8, a.other));
    done(&b, message);
    OK(strcmp(message, "as ever"));
    OK(fi_cancel(&a.ep->fid, secret));
    IS(failed(&a, secret).err, FI_ECANCELED);
    quiet();
    free(here);
    free(there);
}

/* The other process dies: sends to it and receives from it fail with the right error. */
static void gone(void)
{
    int pipe_[2];
    char name[64], *out = make(1 << 20, 1), in[8];
    size_t length = 0;
    fi_addr_t dead;
    pid_t child;
    ssize_t r;
    time_t end = time(NULL) + PATIENCE_S;
    struct fi_cq_err_entry error;

    OK(pipe(pipe_));
    child = fork();
    if (child == 0) {
        /* The child opens its own objects, and uses none of its parent's. */
        length = sizeof name;
        with_counters = 0;
        OK(fi_fabric(info->fabric_attr, &fabric, NULL));
        OK(fi_domain(fabric, info, &domain, NULL));
        open_side(&b);
        OK(fi_getname(&b.ep->fid, name, &length));
        IS(write(pipe_[1], name, length), length);
        pause();
    }
    while (length == 0)
        length = (size_t)read(pipe_[0], name, sizeof name);
    IS(fi_av_insert(a.av, name, 1, &dead, 0, NULL), 1);
    /* A message that waits for the receiver to take it. */
    AGAIN(fi_tsend(a.ep, out, 1 << 20, NULL, dead, 1, out));
    OK(kill(child, 9));
    waitpid(child, NULL, 0);
    error = failed(&a, out);
    IS(error.err, FI_ECONNRESET);
    do {
        r = fi_tsend(a.ep, "x", 1, NULL, dead, 1, "x");
        TRUE(time(NULL) < end);
        if (r == 0) {
            struct fi_cq_tagged_entry entry;

            if (next(&a, &entry, NULL) == -FI_EAVAIL)
                fi_cq_readerr(a.cq, &error, 0);
        }
    } while (r == 0 || r == -FI_EAGAIN);
    IS(r, -FI_ECONNRESET);
    /* Other endpoints do not notice. */
    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    AGAIN(fi_tinject(a.ep, "alive", 5, a.other, 1));
    done(&b, in);
    free(out);
}

static void map(void) { kind = FI_AV_MAP; }
static void select_(void) { bind_flags = FI_SELECTIVE_COMPLETION; }
static void count(void) { with_counters = 1; select_(); }
static void count_all(void) { with_counters = 1; }
static void ask(void) { select_(); op_flags = FI_COMPLETION; }
static void safe(void) { threading = FI_THREAD_SAFE; }
static void waits(void) { wait_object = FI_WAIT_UNSPEC; }
static void short_(void) { format = FI_CQ_FORMAT_CONTEXT; }

static const struct {
    const char *name;
    void (*how)(void);
    void (*what)(void);
} cases[] = {
    { "untagged", NULL, untagged },      { "tagged", map, tagged },
    { "order", NULL, order },      { "directed", map, directed },
    { "pieces", NULL, pieces },      { "inject", NULL, inject },
    { "truncated", NULL, truncated }, { "cancelled", ask, cancelled },
    { "peeked", ask, peeked },      { "many", NULL, many },
    { "selective", count, selective },{ "by_default", ask, by_default },
    { "refused", NULL, refused },      { "waiting", waits, waiting },
    { "contexts", short_, contexts }, { "threads", safe, threads },
    { "flood", NULL, flood },      { "gone", NULL, gone },
    { "matched", NULL, matched },      { "remote", count_all, remote },
};

int main(int count_, char **arguments)
{
    for (size_t i = 0; count_ == 2 && i < sizeof cases / sizeof *cases; i++) {
        if (!strcmp(cases[i].name, arguments[1])) {
            if (cases[i].how)
                cases[i].how();
            begin();
            cases[i].what();
            end();
            return 0;
        }
    }
    fprintf(stderr, "talk: about what?\n");
    return 2;
}
