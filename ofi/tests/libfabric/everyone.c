/* Everything to everyone, by every kind of call that ends in another of a provider's: plain and
 * synchronous sends, receives from anyone, probes, derived types, cancelled and truncated receives,
 * and collective operations. Every byte is looked at. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void is(int line, const char *what, int good)
{
    if (!good) {
        fprintf(stderr, "everyone.c:%d: rank %d: not so: %s\n", line, rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}
#define TRUE(what) is(__LINE__, #what, !!(what))

static unsigned char at(int from, int to, size_t place)
{
    return (unsigned char)(place * 7 + place / 253 + (size_t)from * 31 + (size_t)to * 5);
}

static void fill(unsigned char *buffer, int from, int to, size_t size)
{
    for (size_t i = 0; i < size; i++)
        buffer[i] = at(from, to, i);
}

static void same(const unsigned char *buffer, int from, int to, size_t size)
{
    for (size_t i = 0; i < size; i++)
        TRUE(buffer[i] == at(from, to, i));
}

/* All-to-all, from a byte to a megabyte for each pair. */
static void all_to_all(void)
{
    static const size_t sizes[] = { 1, 8, 200, 4096, 8192, 20000, 65536, 1 << 20 };

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t size = sizes[s];
        unsigned char *out = malloc(size * (size_t)ranks), *in = malloc(size * (size_t)ranks);

        for (int other = 0; other < ranks; other++)
            fill(out + (size_t)other * size, rank, other, size);
        memset(in, 0xee, size * (size_t)ranks);
        MPI_Alltoall(out, (int)size, MPI_BYTE, in, (int)size, MPI_BYTE, MPI_COMM_WORLD);
        for (int other = 0; other < ranks; other++)
            same(in + (size_t)other * size, other, rank, size);
        free(out);
        free(in);
    }
}

/* Rank by rank round the ring: sizes that nobody knows before a probe. */
static void probes(void)
{
    int to = (rank + 1) % ranks, size;
    unsigned char *out = malloc(300000), *in;
    MPI_Request request;
    MPI_Status status;
    MPI_Message message;

    for (int round = 0; round < 60; round++) {
        size = 1 + (round * 4999) % 299999;
        fill(out, rank, to, (size_t)size);
        /* Open MPI 4.1 never says to a synchronous sender that a matched probe took its message. */
        if (round % 4 == 1)
            MPI_Issend(out, size, MPI_BYTE, to, round, MPI_COMM_WORLD, &request);
        else
            MPI_Isend(out, size, MPI_BYTE, to, round, MPI_COMM_WORLD, &request);
        if (round % 2) {
            MPI_Probe(MPI_ANY_SOURCE, round, MPI_COMM_WORLD, &status);
        } else {
            MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
            TRUE(status.MPI_TAG == round);
        }
        MPI_Get_count(&status, MPI_BYTE, &size);
        TRUE(size == 1 + (round * 4999) % 299999);
        in = malloc((size_t)size);
        if (round % 2)
            MPI_Recv(in, size, MPI_BYTE, status.MPI_SOURCE, round, MPI_COMM_WORLD, &status);
        else
            MPI_Mrecv(in, size, MPI_BYTE, &message, &status);
        same(in, status.MPI_SOURCE, rank, (size_t)size);
        free(in);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Iprobe(MPI_ANY_SOURCE, 12345, MPI_COMM_WORLD, &size, MPI_STATUS_IGNORE);
    TRUE(!size);
    free(out);
}

/* Many at once to everyone, small and long, and received in the order that they were sent in. */
static void order(void)
{
    enum { COUNT = 100, LONGEST = 40000 };
    MPI_Request *requests = malloc(sizeof(MPI_Request) * (size_t)(COUNT * ranks));
    unsigned char *out = malloc((size_t)COUNT * LONGEST), *in = malloc(LONGEST);
    MPI_Status status;

    for (int i = 0; i < COUNT; i++) {
        size_t size = i % 10 == 9 ? LONGEST : 16;
        unsigned char *buffer = out + (size_t)i * LONGEST;

        memset(buffer, i, size);
        for (int other = 0; other < ranks; other++)
            MPI_Isend(buffer, (int)size, MPI_BYTE, other, 1, MPI_COMM_WORLD,
                      &requests[i * ranks + other]);
    }
    for (int other = 0; other < ranks; other++) {
        for (int i = 0; i < COUNT; i++) {
            int size;

            MPI_Recv(in, LONGEST, MPI_BYTE, other, 1, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &size);
            TRUE(size == (i % 10 == 9 ? LONGEST : 16));
            TRUE(in[0] == i && in[size - 1] == i);
        }
    }
    MPI_Waitall(COUNT * ranks, requests, MPI_STATUSES_IGNORE);
    free(requests);
    free(out);
    free(in);
}

/* A matrix's column; a receive that is taken back; a message longer than its buffer. */
static void odd_ones(void)
{
    int matrix[64][64], column[64], cancelled, truncated, other = rank ^ 1;
    MPI_Datatype type;
    MPI_Request request;
    MPI_Status status;

    MPI_Irecv(column, 1, MPI_INT, MPI_ANY_SOURCE, 777, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    TRUE(cancelled);
    if (other >= ranks)
        return;
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < 64; j++)
            matrix[i][j] = rank * 10000 + i * 64 + j;
    MPI_Type_vector(64, 1, 64, MPI_INT, &type);
    MPI_Type_commit(&type);
    MPI_Sendrecv(&matrix[0][5], 1, type, other, 3, column, 64, MPI_INT, other, 3, MPI_COMM_WORLD,
                 &status);
    for (int i = 0; i < 64; i++)
        TRUE(column[i] == other * 10000 + i * 64 + 5);
    MPI_Type_free(&type);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Isend(matrix, 64, MPI_INT, other, 4, MPI_COMM_WORLD, &request);
    truncated = MPI_Recv(column, 4, MPI_INT, other, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Error_class(truncated, &truncated);
    TRUE(truncated == MPI_ERR_TRUNCATE);
    TRUE(column[3] == other * 10000 + 3);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

static void collective(void)
{
    long sum, mine = rank + 1, *all = malloc(sizeof(long) * (size_t)ranks);
    double *many = malloc(100000 * sizeof *many);

    for (int round = 0; round < 200; round++) {
        MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        TRUE(sum == (long)ranks * (ranks + 1) / 2);
    }
    MPI_Allgather(&mine, 1, MPI_LONG, all, 1, MPI_LONG, MPI_COMM_WORLD);
    for (int i = 0; i < ranks; i++)
        TRUE(all[i] == i + 1);
    for (int i = 0; i < 100000; i++)
        many[i] = rank + i;
    MPI_Allreduce(MPI_IN_PLACE, many, 100000, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    for (int i = 0; i < 100000; i++)
        TRUE(many[i] == ranks - 1 + i);
    for (int root = 0; root < ranks; root++) {
        many[0] = rank;
        MPI_Bcast(many, 100000, MPI_DOUBLE, root, MPI_COMM_WORLD);
        TRUE(many[0] == root);
    }
    free(all);
    free(many);
}

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    all_to_all();
    probes();
    order();
    odd_ones();
    collective();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks: all as it was sent\n", ranks);
    MPI_Finalize();
    return 0;
}
