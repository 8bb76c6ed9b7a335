/*
 * What MPI's messages take, in the manner of the OSU micro-benchmarks: `vrio bench mpi` builds this
 * with each MPI's own compiler and runs it by each way.
 *
 *     messages SECONDS CHECKED PROCESSES OPERATION:BYTES...
 *
 * Rank 0 says "begin RANKS", then a line for each operation when it is done:
 *
 *     OPERATION BYTES MESSAGES SECONDS P50_US P99_US CPU_SECONDS
 *
 * Messages are those of all ranks, both ways where they go both ways; of an operation of everybody
 * (alltoall, allreduce) the line counts operations. P50 and P99 are of what rank 0 saw: half a round
 * trip of latency, a window of the three that have windows, else an operation. With CHECKED, every
 * operation is done some times first with every byte looked at, which is not in the time. Times end
 * with their round: what is measured goes on for SECONDS, about. CPU is the processor time of all
 * threads of all ranks in that time, and of other PROCESSES that carry messages: numbers with commas
 * between them, or "none".
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Messages under way at once, as OSU has it. */
enum { WINDOW = 64 };
/* Rounds that are timed one by one, at most: the memory for their times. */
enum { ROUNDS_MAX = 4 << 20 };
/* Rounds before anything is timed. */
enum { FIRST_ROUNDS = 2 };
/* Rounds with every byte looked at. */
enum { CHECKED_ROUNDS = 2 };
/* Larger than any message that a bench asks for; a window of them has to fit into memory. */
enum { BYTES_MAX = 4 << 20 };
/* Other processes whose time is counted: a node on each host. */
enum { CARRIERS_MAX = 8 };
enum { TAG = 7, ANSWER_TAG = 8, ANSWER_BYTES = 4 };

static int rank, ranks;
static unsigned char *out, *in;
static char answer[ANSWER_BYTES];
static MPI_Request requests[2 * WINDOW];

static void fail(const char *what) {
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static double read_clock(clockid_t clock) {
    struct timespec at;
    if (clock_gettime(clock, &at)) fail("a process that carries messages is gone");
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static double now(void) { return read_clock(CLOCK_MONOTONIC); }

/* The clocks of other processes; rank 0 alone has them. */
static clockid_t carriers[CARRIERS_MAX];
static int carrier_count;

static void name_carriers(const char *words) {
    while (rank == 0 && *words >= '0' && *words <= '9') {
        char *end;
        pid_t process = (pid_t)strtol(words, &end, 10);
        if (carrier_count == CARRIERS_MAX) fail("too many processes that carry messages");
        clockid_t *clock = &carriers[carrier_count++];
        if (clock_getcpuclockid(process, clock)) fail("a process to be counted is not there");
        words = *end == ',' ? end + 1 : end;
    }
}

/* Processor time of this rank's threads, and for rank 0 of the carriers. */
static double cpu(void) {
    double all = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    for (int at = 0; at < carrier_count; at++) all += read_clock(carriers[at]);
    return all;
}

/* Bytes that are the same nowhere else: who sent them, in which round, in which place of it. */
static unsigned char byte_of(int from, unsigned round, size_t at) {
    unsigned x = (from + 1) * 2654435761u + round * 97u + (unsigned)at * 40503u;
    return (unsigned char)(x >> 13 ^ x >> 5);
}

static void fill(unsigned char *bytes, size_t count, unsigned round) {
    for (size_t at = 0; at < count; at++) bytes[at] = byte_of(rank, round, at);
}

/* What `from` filled from its place `first` on is here; then it is wiped. */
static void check(unsigned char *bytes, size_t count, int from, unsigned round, size_t first) {
    for (size_t at = 0; at < count; at++) {
        if (bytes[at] != byte_of(from, round, first + at)) fail("a byte is not what was sent");
    }
    memset(bytes, 0x5a, count);
}

/* Of a round: how long its messages are, and whether they are looked at. */
struct round {
    int bytes, checked;
    unsigned number;
};

static int partner(void) { return (rank + ranks / 2) % ranks; }
static int is_first(void) { return rank < ranks / 2; }

static void latency(const struct round *round) {
    int other = partner(), bytes = round->bytes;
    if (round->checked) fill(out, bytes, round->number);
    if (is_first()) {
        MPI_Send(out, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
        MPI_Recv(in, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(in, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(out, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
    }
    if (round->checked) check(in, bytes, other, round->number, 0);
}

/* A window of messages one way or both ways, and an answer. Messages share their memory unless they
 * are looked at. */
static void window(const struct round *round, int both) {
    int other = partner(), count = 0, receives = both || !is_first(), sends = both || is_first();
    size_t bytes = round->bytes, step = round->checked ? bytes : 0;
    if (round->checked) fill(out, WINDOW * bytes, round->number);
    for (size_t at = 0; receives && at < WINDOW; at++) {
        MPI_Irecv(in + at * step, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[count++]);
    }
    for (size_t at = 0; sends && at < WINDOW; at++) {
        MPI_Isend(out + at * step, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &requests[count++]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    if (is_first()) {
        MPI_Recv(answer, ANSWER_BYTES, MPI_BYTE, other, ANSWER_TAG, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    } else {
        MPI_Send(answer, ANSWER_BYTES, MPI_BYTE, other, ANSWER_TAG, MPI_COMM_WORLD);
    }
    if (round->checked && receives) check(in, WINDOW * bytes, other, round->number, 0);
}

static void bandwidth(const struct round *round) { window(round, 0); }
static void both_ways(const struct round *round) { window(round, 1); }

static void all_to_all(const struct round *round) {
    size_t bytes = round->bytes;
    if (round->checked) fill(out, ranks * bytes, round->number);
    MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD);
    for (int from = 0; round->checked && from < ranks; from++) {
        check(in + from * bytes, bytes, from, round->number, rank * bytes);
    }
}

/* Sums of whole numbers, so that their order is all the same. */
static void all_reduce(const struct round *round) {
    int count = round->bytes / (int)sizeof(double);
    double *give = (double *)out, *take = (double *)in;
    for (int at = 0; round->checked && at < count; at++) {
        give[at] = (rank + 1) * (at % 1000 + (int)round->number);
    }
    MPI_Allreduce(give, take, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    double everybody = ranks * (ranks + 1) / 2.0;
    for (int at = 0; round->checked && at < count; at++) {
        if (take[at] != everybody * (at % 1000 + (int)round->number)) fail("a sum is wrong");
    }
}

static int one(void) { return 1; }
static int two(void) { return 2; }
static int windows(void) { return WINDOW * ranks / 2; }
static int windows_both_ways(void) { return WINDOW * ranks; }

static const struct operation {
    const char *name;
    void (*round)(const struct round *);
    /* Messages of all ranks in a round. */
    int (*messages)(void);
    /* What part of a round P50 and P99 are of. */
    double share;
} OPERATIONS[] = {
    {"latency", latency, two, 0.5},       {"bandwidth", bandwidth, windows, 1},
    {"both", both_ways, windows_both_ways, 1}, {"alltoall", all_to_all, one, 1},
    {"allreduce", all_reduce, one, 1},
};

/* So many rounds; with `times`, how long each took. The time of the slowest rank; `used` is the
 * processor time of all, at rank 0. */
static double rounds(const struct operation *op, int bytes, int count, float *times, double *used) {
    struct round round = {bytes, 0, 0};
    MPI_Barrier(MPI_COMM_WORLD);
    double before = cpu(), began = now(), last = began;
    for (int at = 0; at < count; at++) {
        op->round(&round);
        if (times) {
            double after = now();
            times[at] = (float)(after - last);
            last = after;
        }
    }
    double took = now() - began, own = cpu() - before, longest;
    MPI_Reduce(&own, used, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Allreduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return longest;
}

static int compare(const void *one, const void *other) {
    float a = *(const float *)one, b = *(const float *)other;
    return (a > b) - (a < b);
}

static void measure(const struct operation *op, int bytes, double seconds, int checked) {
    for (unsigned at = 0; checked && at < CHECKED_ROUNDS; at++) {
        struct round round = {bytes, 1, at};
        op->round(&round);
    }
    /* The first ones make connections. Then how long a round takes: everybody has the same times,
     * and so the same counts. */
    int count = 1;
    double took, used;
    rounds(op, bytes, FIRST_ROUNDS, NULL, &used);
    while ((took = rounds(op, bytes, count, NULL, &used)) < seconds / 8 && count < ROUNDS_MAX) {
        count *= 2;
    }
    double wanted = count * seconds / took;
    count = wanted < 2 ? 2 : wanted > ROUNDS_MAX ? ROUNDS_MAX : (int)wanted;
    float *times = malloc(count * sizeof *times);
    if (!times) fail("no memory for times");
    took = rounds(op, bytes, count, times, &used);
    if (rank == 0) {
        qsort(times, count, sizeof *times, compare);
        double us = 1e6 * op->share;
        printf("%s %d %.0f %.9f %.4f %.4f %.9f\n", op->name, bytes, (double)count * op->messages(),
               took, times[count / 2] * us, times[(size_t)(count * 0.99)] * us, used);
        fflush(stdout);
    }
    free(times);
}

static void named(const char *words, double seconds, int checked) {
    const char *colon = strchr(words, ':');
    int bytes = colon ? atoi(colon + 1) : -1;
    if (bytes < (int)sizeof(double) || bytes > BYTES_MAX) fail("OPERATION:BYTES, from 8 to 4 MiB");
    for (size_t at = 0; at < sizeof OPERATIONS / sizeof *OPERATIONS; at++) {
        const struct operation *op = &OPERATIONS[at];
        if (strlen(op->name) == (size_t)(colon - words) &&
            !strncmp(op->name, words, colon - words)) {
            measure(op, bytes, seconds, checked);
            return;
        }
    }
    fail("there is no such operation");
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count < 5 || ranks < 2 || ranks % 2) {
        fail("SECONDS CHECKED PROCESSES OPERATION:BYTES.., even ranks");
    }
    name_carriers(words[3]);
    size_t most = (size_t)BYTES_MAX * (ranks > WINDOW ? ranks : WINDOW);
    out = calloc(most, 1);
    in = calloc(most, 1);
    if (!out || !in) fail("no memory for messages");
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("begin %d\n", ranks);
    fflush(stdout);
    for (int at = 4; at < count; at++) named(words[at], atof(words[1]), atoi(words[2]));
    MPI_Finalize();
    return 0;
}
