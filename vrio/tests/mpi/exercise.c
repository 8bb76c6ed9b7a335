/*
 * What MPI promises, one thing after the other, with every byte looked at. `exercise NAME` does one
 * of them and says "ok NAME" once, or ends with what was wrong.
 */
#include <mpi.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank, ranks;

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "rank %d, line %d: not so: %s\n", rank, __LINE__, #what);              \
            MPI_Abort(MPI_COMM_WORLD, 3);                                                          \
        }                                                                                          \
    } while (0)

static void *memory(size_t bytes) {
    void *found = malloc(bytes ? bytes : 1);
    CHECK(found);
    return found;
}

/* Bytes that are the same nowhere else: of this message, of this place in it. */
static unsigned char byte_of(unsigned seed, size_t at) {
    unsigned x = seed * 2654435761u + (unsigned)at * 40503u;
    return (unsigned char)(x >> 13 ^ x >> 5);
}

static void fill(unsigned char *bytes, size_t count, unsigned seed) {
    for (size_t at = 0; at < count; at++) bytes[at] = byte_of(seed, at);
}

static void check(const unsigned char *bytes, size_t count, unsigned seed) {
    for (size_t at = 0; at < count; at++) {
        if (bytes[at] != byte_of(seed, at)) {
            fprintf(stderr, "rank %d: byte %zu of %zu of message %u is wrong\n", rank, at, count,
                    seed);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
    }
}

/* Around every limit of the way: in a cell, in a buffer, by rendezvous. */
static const int SIZES[] = {0,     1,     8,     64,     191,    192,    193,     208,    256,
                            1000,  4095,  4096,  8192,   16383,  16384,  16385,   65536,  100001,
                            262144, 1 << 20, (1 << 20) + 1, 4 << 20};
enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES, SIZE_MAX_BYTES = 4 << 20 };

static void ping_pong(void) {
    unsigned char *bytes = memory(SIZE_MAX_BYTES);
    int other = rank ^ 1;
    for (int s = 0; s < SIZE_COUNT && other < ranks; s++) {
        int size = SIZES[s], rounds = size > 65536 ? 3 : 12;
        for (int round = 0; round < rounds; round++) {
            unsigned seed = s * 1000 + round;
            if (rank % 2 == 0) {
                fill(bytes, size, seed);
                MPI_Send(bytes, size, MPI_BYTE, other, round, MPI_COMM_WORLD);
                memset(bytes, 0, size);
                MPI_Recv(bytes, size, MPI_BYTE, other, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                check(bytes, size, seed + 7);
            } else {
                MPI_Status status;
                int count;
                memset(bytes, 0, size);
                MPI_Recv(bytes, SIZE_MAX_BYTES, MPI_BYTE, other, round, MPI_COMM_WORLD, &status);
                MPI_Get_count(&status, MPI_BYTE, &count);
                CHECK(count == size && status.MPI_SOURCE == other && status.MPI_TAG == round);
                check(bytes, size, seed);
                fill(bytes, size, seed + 7);
                MPI_Send(bytes, size, MPI_BYTE, other, round, MPI_COMM_WORLD);
            }
        }
    }
    free(bytes);
}

/* Many at once, more than a ring has cells, and none is taken before the last is sent. */
static void unexpected(void) {
    enum { MANY = 5000, SIZE = 300 };
    int other = rank ^ 1;
    if (other >= ranks) return;
    if (rank % 2 == 0) {
        unsigned char *bytes = memory((size_t)MANY * SIZE);
        MPI_Request *requests = memory(MANY * sizeof *requests);
        for (int n = 0; n < MANY; n++) {
            fill(bytes + (size_t)n * SIZE, SIZE, n);
            MPI_Isend(bytes + (size_t)n * SIZE, SIZE, MPI_BYTE, other, n, MPI_COMM_WORLD,
                      &requests[n]);
        }
        MPI_Waitall(MANY, requests, MPI_STATUSES_IGNORE);
        free(requests);
        free(bytes);
    } else {
        unsigned char bytes[SIZE];
        /* The newest first: nothing of it may cost a search of all the others. */
        for (int n = MANY - 1; n >= 0; n--) {
            MPI_Recv(bytes, SIZE, MPI_BYTE, other, n, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(bytes, SIZE, n);
        }
    }
}

static void all_to_all(void) {
    const int counts[] = {1, 100, 5000, 40000, 300000};
    for (int c = 0; c < 5; c++) {
        size_t each = counts[c];
        unsigned char *out = memory(each * ranks), *in = memory(each * ranks);
        for (int round = 0; round < 4; round++) {
            for (int to = 0; to < ranks; to++)
                fill(out + to * each, each, round * 10000 + rank * 100 + to);
            memset(in, 0, each * ranks);
            MPI_Alltoall(out, each, MPI_BYTE, in, each, MPI_BYTE, MPI_COMM_WORLD);
            for (int from = 0; from < ranks; from++)
                check(in + from * each, each, round * 10000 + from * 100 + rank);
        }
        free(out);
        free(in);
    }
    double mine = rank + 1, sum = 0;
    for (int round = 0; round < 50; round++) {
        MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        CHECK(sum == ranks * (ranks + 1) / 2.0);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* Everybody sends to the first; what comes of one source comes in its order. */
static void any_source(void) {
    enum { MANY = 400 };
    int numbers[64] = {0}, message[300];
    CHECK(ranks <= 64);
    for (int n = 0; rank != 0 && n < MANY; n++) {
        int length = 2 + n % 298;
        for (int i = 0; i < length; i++) message[i] = rank * 100000 + n;
        MPI_Send(message, length, MPI_INT, 0, n % 3, MPI_COMM_WORLD);
    }
    for (int n = 0; rank == 0 && n < (ranks - 1) * MANY; n++) {
        MPI_Status status;
        int length;
        MPI_Recv(message, 300, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_INT, &length);
        int from = status.MPI_SOURCE, number = numbers[from]++;
        CHECK(length == 2 + number % 298 && status.MPI_TAG == number % 3);
        for (int i = 0; i < length; i++) CHECK(message[i] == from * 100000 + number);
    }
}

static void probe(void) {
    int other = rank ^ 1, flag = 1, count;
    MPI_Status status;
    if (other >= ranks) return;
    MPI_Iprobe(MPI_ANY_SOURCE, 4711, MPI_COMM_WORLD, &flag, &status);
    CHECK(!flag);
    for (int s = 0; s < SIZE_COUNT; s++) {
        unsigned char *bytes = memory(SIZES[s]);
        if (rank % 2 == 0) {
            fill(bytes, SIZES[s], s);
            MPI_Send(bytes, SIZES[s], MPI_BYTE, other, s, MPI_COMM_WORLD);
            MPI_Recv(bytes, 0, MPI_BYTE, other, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (s % 2 == 0) {
            MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &count);
            CHECK(count == SIZES[s] && status.MPI_TAG == s && status.MPI_SOURCE == other);
            MPI_Recv(bytes, count, MPI_BYTE, other, s, MPI_COMM_WORLD, &status);
            check(bytes, count, s);
            MPI_Send(bytes, 0, MPI_BYTE, other, 99, MPI_COMM_WORLD);
        } else {
            MPI_Message message;
            flag = 0;
            while (!flag) MPI_Improbe(other, s, MPI_COMM_WORLD, &flag, &message, &status);
            MPI_Get_count(&status, MPI_BYTE, &count);
            CHECK(count == SIZES[s]);
            MPI_Iprobe(other, s, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
            CHECK(!flag);
            MPI_Mrecv(bytes, count, MPI_BYTE, &message, &status);
            check(bytes, count, s);
            MPI_Send(bytes, 0, MPI_BYTE, other, 99, MPI_COMM_WORLD);
        }
        free(bytes);
    }
}

static void cancel(void) {
    int other = rank ^ 1, value = rank, got = -1, cancelled;
    if (other >= ranks) return;
    MPI_Request request;
    MPI_Status status;
    for (int round = 0; round < 50; round++) {
        MPI_Irecv(&got, 1, MPI_INT, round % 2 ? other : MPI_ANY_SOURCE, 5, MPI_COMM_WORLD,
                  &request);
        MPI_Cancel(&request);
        MPI_Wait(&request, &status);
        MPI_Test_cancelled(&status, &cancelled);
        CHECK(cancelled && got == -1);
    }
    /* What comes now is for the receive that is there, not for one that was taken back. */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Sendrecv(&value, 1, MPI_INT, other, 5, &got, 1, MPI_INT, other, 5, MPI_COMM_WORLD, &status);
    CHECK(got == other);
}

static void truncate_long(void) {
    int other = rank ^ 1;
    if (other >= ranks) return;
    const int sizes[] = {100, 3000, 50000, 2 << 20};
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int s = 0; s < 4; s++) {
        int size = sizes[s], half = size / 2, class, value = s;
        unsigned char *bytes = memory(size);
        if (rank % 2 == 0) {
            fill(bytes, size, s);
            CHECK(MPI_Send(bytes, size, MPI_BYTE, other, 1, MPI_COMM_WORLD) == MPI_SUCCESS);
            CHECK(MPI_Send(&value, 1, MPI_INT, other, 2, MPI_COMM_WORLD) == MPI_SUCCESS);
        } else {
            memset(bytes, 0xee, size);
            MPI_Status status;
            int error = MPI_Recv(bytes, half, MPI_BYTE, other, 1, MPI_COMM_WORLD, &status);
            MPI_Error_class(error, &class);
            CHECK(class == MPI_ERR_TRUNCATE);
            for (int at = half; at < size; at++) CHECK(bytes[at] == 0xee);
            /* And the next one is as it was sent. */
            error = MPI_Recv(&value, 1, MPI_INT, other, 2, MPI_COMM_WORLD, &status);
            CHECK(error == MPI_SUCCESS && value == s);
        }
        free(bytes);
    }
}

/* Pieces that do not lie together. */
static void strided(void) {
    enum { ROWS = 200, COLUMNS = 300 };
    int other = rank ^ 1;
    if (other >= ranks) return;
    static int out[ROWS][COLUMNS], in[ROWS][COLUMNS];
    MPI_Datatype column;
    MPI_Type_vector(ROWS, 3, COLUMNS, MPI_INT, &column);
    MPI_Type_commit(&column);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) out[r][c] = rank * 1000000 + r * 1000 + c;
    for (int c = 0; c + 3 <= COLUMNS; c += 30) {
        MPI_Sendrecv(&out[0][c], 1, column, other, 0, &in[0][c], 1, column, other, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < 3; i++) CHECK(in[r][c + i] == other * 1000000 + r * 1000 + c + i);
    }
    MPI_Type_free(&column);
}

/* Long and short ones to everybody, each received in the order in which it was sent. */
static void order(void) {
    enum { MANY = 100, LONG = 40000 };
    MPI_Request *requests = memory(sizeof *requests * MANY * ranks);
    unsigned char *out = memory((size_t)MANY * LONG), *in = memory(LONG);
    for (int n = 0; n < MANY; n++) {
        unsigned char *bytes = out + (size_t)n * LONG;
        int size = n % 10 == 9 ? LONG : 16;
        fill(bytes, size, rank * 1000 + n);
        for (int to = 0; to < ranks; to++)
            MPI_Isend(bytes, size, MPI_BYTE, to, 1, MPI_COMM_WORLD, &requests[n * ranks + to]);
    }
    for (int from = 0; from < ranks; from++) {
        for (int n = 0; n < MANY; n++) {
            MPI_Status status;
            int size;
            MPI_Recv(in, LONG, MPI_BYTE, from, 1, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &size);
            CHECK(size == (n % 10 == 9 ? LONG : 16));
            check(in, size, from * 1000 + n);
        }
    }
    MPI_Waitall(MANY * ranks, requests, MPI_STATUSES_IGNORE);
    free(requests);
    free(out);
    free(in);
}

/* Round the ring, of sizes that nobody knows before a probe; some senders want to hear that theirs
 * was taken. */
static void synchronous(void) {
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    unsigned char *out = memory(300000);
    for (int round = 0; round < 60; round++) {
        int size = 1 + round * 4999 % 299999;
        MPI_Request request;
        MPI_Status status;
        MPI_Message message;
        fill(out, size, rank * 100 + round);
        /* Open MPI 4.1 never says to such a sender that a matched probe took its message. */
        if (round % 4 == 1)
            MPI_Issend(out, size, MPI_BYTE, to, round, MPI_COMM_WORLD, &request);
        else
            MPI_Isend(out, size, MPI_BYTE, to, round, MPI_COMM_WORLD, &request);
        if (round % 2)
            MPI_Probe(MPI_ANY_SOURCE, round, MPI_COMM_WORLD, &status);
        else
            MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
        int count;
        MPI_Get_count(&status, MPI_BYTE, &count);
        CHECK(count == size && status.MPI_TAG == round && status.MPI_SOURCE == from);
        unsigned char *in = memory(size);
        if (round % 2)
            MPI_Recv(in, size, MPI_BYTE, from, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Mrecv(in, size, MPI_BYTE, &message, MPI_STATUS_IGNORE);
        check(in, size, from * 100 + round);
        free(in);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    free(out);
}

static void collective(void) {
    enum { MANY = 100000 };
    long mine = rank + 1, *all = memory(sizeof *all * ranks);
    double *many = memory(MANY * sizeof *many);
    MPI_Allgather(&mine, 1, MPI_LONG, all, 1, MPI_LONG, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++) CHECK(all[from] == from + 1);
    for (int at = 0; at < MANY; at++) many[at] = rank + at;
    MPI_Allreduce(MPI_IN_PLACE, many, MANY, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    for (int at = 0; at < MANY; at++) CHECK(many[at] == ranks - 1 + at);
    for (int root = 0; root < ranks; root++) {
        many[0] = rank;
        MPI_Bcast(many, MANY, MPI_DOUBLE, root, MPI_COMM_WORLD);
        CHECK(many[0] == root);
    }
    free(all);
    free(many);
}

/* The last one makes no call of MPI's while the first sends to it, more than a ring has cells; the
 * others do not notice. At last it takes everything. */
static void deaf(void) {
    enum { MANY = 3000, SIZE = 300 };
    unsigned char bytes[SIZE];
    int last = ranks - 1;
    CHECK(ranks >= 2);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == last) {
        sleep(2);
        for (int n = 0; n < MANY; n++) {
            MPI_Recv(bytes, SIZE, MPI_BYTE, 0, n, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(bytes, SIZE, n);
        }
    } else if (rank == 0) {
        for (int n = 0; n < MANY; n++) {
            fill(bytes, SIZE, n);
            MPI_Send(bytes, SIZE, MPI_BYTE, last, n, MPI_COMM_WORLD);
        }
    } else if (ranks >= 4 && rank <= 2) {
        for (int n = 0; n < MANY; n++) {
            fill(bytes, SIZE, n);
            MPI_Sendrecv_replace(bytes, SIZE, MPI_BYTE, 3 - rank, n, 3 - rank, n, MPI_COMM_WORLD,
                                 MPI_STATUS_IGNORE);
            check(bytes, SIZE, n);
        }
    }
}

/* Sends are local: the last one makes no call of MPI's until the first has begun all that it sends,
 * more than a ring has cells and a slab has buffers, of every way that a message goes. It hears so
 * by a file, and finds everything in order. */
static void local(void) {
    static const int sizes[] = {8, 217, 4096, 16384, 65536};
    enum { MANY = 1500, ROUNDS = sizeof sizes / sizeof *sizes, PATIENCE_S = 100 };
    static MPI_Request sends[MANY];
    int last = ranks - 1;
    char name[256] = "";
    CHECK(ranks >= 2);
    if (rank == 0) {
        const char *home = getenv("TMPDIR");
        snprintf(name, sizeof name, "%s/local-XXXXXX", home ? home : "/tmp");
        int file = mkstemp(name);
        CHECK(file >= 0 && close(file) == 0);
    }
    MPI_Bcast(name, sizeof name, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int round = 0; round < ROUNDS; round++) {
        size_t size = sizes[round];
        unsigned char *bytes = memory(size * MANY);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) {
            for (int n = 0; n < MANY; n++) {
                fill(bytes + n * size, size, round * MANY + n);
                MPI_Isend(bytes + n * size, size, MPI_BYTE, last, n % 3, MPI_COMM_WORLD, sends + n);
            }
            CHECK(truncate(name, round + 1) == 0);
            MPI_Waitall(MANY, sends, MPI_STATUSES_IGNORE);
        } else if (rank == last) {
            struct stat told = {0};
            for (int naps = 0; told.st_size <= round; naps++) {
                CHECK(naps < PATIENCE_S * 1000);
                usleep(1000);
                CHECK(stat(name, &told) == 0);
            }
            for (int n = 0; n < MANY; n++) {
                MPI_Recv(bytes, size, MPI_BYTE, 0, n % 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                check(bytes, size, round * MANY + n);
            }
        }
        free(bytes);
    }
    if (rank == 0) CHECK(unlink(name) == 0);
}

/* A receive finds what a look for anyone's message has found, also if a rank sends to itself. */
static void looked(void) {
    enum { MANY = 300 };
    static MPI_Request sends[MANY];
    static int own[MANY];
    int wanted = rank == 0 ? MANY * ranks : 0, value[8];
    for (int n = 0; rank != 0 && n < MANY; n++)
        MPI_Send(own, 1 + (n + rank) % 8, MPI_INT, 0, 1, MPI_COMM_WORLD);
    for (int n = 0; n < wanted; n++) {
        MPI_Status found, got;
        if (n < MANY) MPI_Isend(own, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, sends + n);
        MPI_Probe(MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &found);
        MPI_Recv(value, 8, MPI_INT, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &got);
        CHECK(found.MPI_SOURCE == got.MPI_SOURCE);
    }
    if (rank == 0) MPI_Waitall(MANY, sends, MPI_STATUSES_IGNORE);
}

/* Each writes into the next one's memory and reads from it, of every length; what is long an MPI may
 * have fetched by other calls than its messages. */
static void put(void) {
    unsigned char *shared = memory(2 * SIZE_MAX_BYTES), *bytes = memory(SIZE_MAX_BYTES);
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    MPI_Win window;
    CHECK(ranks >= 2);
    MPI_Win_create(shared, 2 * SIZE_MAX_BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    for (int s = 0; s < SIZE_COUNT; s++) {
        int size = SIZES[s];
        fill(bytes, size, s * 100 + rank);
        MPI_Win_fence(0, window);
        MPI_Put(bytes, size, MPI_BYTE, next, 0, size, MPI_BYTE, window);
        MPI_Win_fence(0, window);
        check(shared, size, s * 100 + before);
        MPI_Get(bytes, size, MPI_BYTE, next, 0, size, MPI_BYTE, window);
        MPI_Win_fence(0, window);
        check(bytes, size, s * 100 + rank);
    }
    MPI_Win_free(&window);
    free(shared);
    free(bytes);
}

/* The last one is killed while the others wait for it. Each of them is told by the call that waits,
 * and by one that sends; not by the launcher, which has to be told to let them live. */
static void killed(void) {
    int value = 0, error, class, tries = 0, last = ranks - 1;
    char text[MPI_MAX_ERROR_STRING];
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == last) raise(SIGKILL);
    error = MPI_Recv(&value, 1, MPI_INT, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(error != MPI_SUCCESS);
    MPI_Error_class(error, &class);
    MPI_Error_string(error, text, &value);
    do
        error = MPI_Send(&value, 1, MPI_INT, last, 0, MPI_COMM_WORLD);
    while (error == MPI_SUCCESS && ++tries < 100);
    CHECK(error != MPI_SUCCESS);
    printf("rank %d was told: class %d, %s\n", rank, class, text);
    fflush(stdout);
    /* Not all are there any more who would have to come to an end together. */
    _exit(0);
}

/* All to all until somebody is lost; says that it goes on. Who is told of that says so itself: of several that are told at once
 * Open MPI's launcher may not be able to read what they have it say. */
static void endless(void) {
    enum { EACH = 1024 };
    int *out = memory(ranks * EACH * sizeof(int)), *in = memory(ranks * EACH * sizeof(int));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int round = 0;; round++) {
        for (int at = 0; at < ranks * EACH; at++) out[at] = rank + at + round;
        int error = MPI_Alltoall(out, EACH, MPI_INT, in, EACH, MPI_INT, MPI_COMM_WORLD);
        if (error != MPI_SUCCESS) {
            int class;
            MPI_Error_class(error, &class);
            printf("rank %d was told: class %d\n", rank, class);
            fflush(stdout);
            _exit(1);
        }
        for (int from = 0; from < ranks; from++)
            for (int at = 0; at < EACH; at++)
                CHECK(in[from * EACH + at] == from + rank * EACH + at + round);
        if (rank == 0 && round % 20 == 0) {
            puts("going");
            fflush(stdout);
        }
    }
}

/* All to all, of all lengths, until it is told to end; says how far it is. */
static void busy(void) {
    const int counts[] = {1, 100, 5000, 40000, 300000};
    for (int round = 0, goes_on = 1; goes_on; round++) {
        size_t each = counts[round % 5];
        unsigned char *out = memory(each * ranks), *in = memory(each * ranks);
        for (int to = 0; to < ranks; to++)
            fill(out + to * each, each, round * 10000 + rank * 100 + to);
        memset(in, 0, each * ranks);
        MPI_Alltoall(out, each, MPI_BYTE, in, each, MPI_BYTE, MPI_COMM_WORLD);
        for (int from = 0; from < ranks; from++)
            check(in + from * each, each, round * 10000 + from * 100 + rank);
        free(out);
        free(in);
        if (rank == 0) {
            struct pollfd told = {.fd = 0, .events = POLLIN};
            goes_on = poll(&told, 1, 0) == 0;
            if (round % 5 == 4) {
                puts("busy");
                fflush(stdout);
            }
        }
        MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
}

/* Says that it is there, and waits to be told that it may end. */
static void wait_for_end(void) {
    char byte;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        puts("waiting");
        fflush(stdout);
        CHECK(read(0, &byte, 1) >= 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {
        {"ping-pong", ping_pong}, {"unexpected", unexpected}, {"all-to-all", all_to_all},
        {"any-source", any_source}, {"probe", probe},         {"cancel", cancel},
        {"truncate", truncate_long}, {"strided", strided},    {"killed", killed},
        {"order", order},         {"synchronous", synchronous}, {"collective", collective}, {"deaf", deaf}, {"local", local}, {"put", put}, {"looked", looked},
        {"wait", wait_for_end},   {"endless", endless},       {"busy", busy},
    };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *name = argc > 1 ? argv[1] : "";
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        if (strcmp(all[n].name, name)) continue;
        all[n].run();
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) printf("ok %s\n", name);
        MPI_Finalize();
        return 0;
    }
    fprintf(stderr, "there is no exercise %s\n", name);
    MPI_Abort(MPI_COMM_WORLD, 2);
}
