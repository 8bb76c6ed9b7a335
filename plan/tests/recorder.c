/* Messages with known numbers, by C and by the names that Fortran calls, for three ranks. */
#include <mpi.h>

enum { ROUNDS = 30, MANY = 1000, EACH = 300 };

typedef MPI_Fint F;
void mpi_allreduce_(void *, void *, F *, F *, F *, F *, F *);
void mpi_sendrecv_(void *, F *, F *, F *, F *, void *, F *, F *, F *, F *, F *, F *, F *);

static double out[2 * MANY], in[2 * MANY];
static F status[sizeof(MPI_Status)];

/* Rank 0 alone and the other ranks as two groups: a message, and an uneven gathering. */
static void two_groups(int rank) {
    MPI_Comm own, both;
    MPI_Status none;
    MPI_Comm_split(MPI_COMM_WORLD, rank > 0, rank, &own);
    MPI_Intercomm_create(own, 0, MPI_COMM_WORLD, rank ? 0 : 1, 7, &both);
    /* Rank 0 sends to the last of two other ranks, which is not in its own group. */
    if (rank == 0)
        MPI_Send(out, 4, MPI_DOUBLE, 1, 0, both);
    if (rank == 2)
        MPI_Recv(in, 4, MPI_DOUBLE, 0, 0, both, &none);
    /* A count for each rank of the other group; the number behind them is of nothing. */
    int counts[3] = { 16, rank ? 1 << 20 : 16, 1 << 20 }, places[3] = { 0, rank ? 0 : 16, 0 };
    MPI_Allgatherv(out, 16, MPI_DOUBLE, in, counts, places, MPI_DOUBLE, both);
    MPI_Comm_free(&both);
    MPI_Comm_free(&own);
}

/* Calls that fail, a type of 8 GiB, messages to oneself, ranks that do not follow one another. */
static void odd_calls(int rank, MPI_Comm alone) {
    MPI_Datatype huge;
    MPI_Comm apart;
    MPI_Type_contiguous(1 << 30, MPI_DOUBLE, &huge);
    MPI_Type_commit(&huge);
    MPI_Bcast(in, 1, huge, 0, alone);
    MPI_Type_free(&huge);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Send(out, -1, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Sendrecv(out, 1, MPI_DOUBLE, rank, 3, in, 1, MPI_DOUBLE, rank, 3, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 1, rank, &apart);
    if (rank != 1)
        MPI_Allreduce(out, in, 64, MPI_DOUBLE, MPI_SUM, apart);
    MPI_Comm_free(&apart);
    /* Nothing takes it before the end: the recorder's own messages must not. */
    if (rank == 1)
        MPI_Send(out, 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    int rank = 0, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm alone;
    MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &alone);
    F one = 1, tag = 5, code, up = (rank + 1) % ranks, down = (rank + ranks - 1) % ranks;
    F world = MPI_Comm_c2f(MPI_COMM_WORLD), real = MPI_Type_c2f(MPI_DOUBLE);
    F sum = MPI_Op_c2f(MPI_SUM);
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Request requests[4];
        for (int at = 0; at < 2; at++) {
            MPI_Irecv(in + at * MANY, MANY, MPI_DOUBLE, down, 0, MPI_COMM_WORLD, &requests[at]);
            MPI_Isend(out, MANY, MPI_DOUBLE, up, 0, MPI_COMM_WORLD, &requests[2 + at]);
        }
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        mpi_sendrecv_(out, &one, &real, &up, &tag, in, &one, &real, &down, &tag, &world, status,
                      &code);
        mpi_allreduce_(out, in, &one, &real, &sum, &world, &code);
        MPI_Allreduce(MPI_IN_PLACE, in, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Bcast(in, 1, MPI_DOUBLE, 0, alone);
        if (round % 10 == 0)
            MPI_Alltoall(out, EACH, MPI_DOUBLE, in, EACH, MPI_DOUBLE, MPI_COMM_WORLD);
        MPI_Gather(out, 1, MPI_DOUBLE, in, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    }
    two_groups(rank);
    odd_calls(rank, alone);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
