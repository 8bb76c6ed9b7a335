/* Four ranks on two hosts, as the recorder is told: calls for which the places of ranks matter. */
#include <mpi.h>

enum { ROUNDS = 10, MANY = 1000, POLLED = 4 };

static double out[MANY], in[POLLED * MANY];

/* The hosts of the recorder: ranks 0 and 1, and ranks 2 and 3. */
int PMPI_Comm_split_type(MPI_Comm comm, int type, int at, MPI_Info info, MPI_Comm *host) {
    int rank = 0;
    (void)type, (void)info;
    MPI_Comm_rank(comm, &rank);
    return PMPI_Comm_split(comm, rank / 2, at, host);
}

/* Messages that are waited for by asking again and again: a window of four each. */
static void polled(int rank) {
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Request requests[2 * POLLED];
        for (int at = 0; at < POLLED; at++) {
            MPI_Irecv(in + at * MANY, MANY, MPI_DOUBLE, rank ^ 1, 0, MPI_COMM_WORLD, &requests[at]);
            MPI_Isend(out, MANY, MPI_DOUBLE, rank ^ 1, 0, MPI_COMM_WORLD, &requests[POLLED + at]);
        }
        for (int done = 0; !done;)
            MPI_Testall(2 * POLLED, requests, &done, MPI_STATUSES_IGNORE);
    }
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Request requests[2];
        /* Of no request at all a test has found MPI_UNDEFINED. */
        int found = 0, at[1];
        MPI_Isend(out, 1, MPI_DOUBLE, rank ^ 1, 1, MPI_COMM_WORLD, &requests[0]);
        MPI_Testsome(0, requests, &found, at, MPI_STATUSES_IGNORE);
        MPI_Isend(out, 1, MPI_DOUBLE, rank ^ 1, 1, MPI_COMM_WORLD, &requests[1]);
        for (int got = 0; got < 2; got++)
            MPI_Recv(in, 1, MPI_DOUBLE, rank ^ 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    }
}

/* Calls that have no pattern: three of each rank. */
static void passed_by(int rank) {
    MPI_Request request;
    double own = 1, sum = 0;
    MPI_Iallreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Request both[2];
    MPI_Send_init(&own, 1, MPI_DOUBLE, rank ^ 1, 2, MPI_COMM_WORLD, &both[0]);
    MPI_Recv_init(&sum, 1, MPI_DOUBLE, rank ^ 1, 2, MPI_COMM_WORLD, &both[1]);
    MPI_Startall(2, both);
    MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    MPI_Request_free(&both[0]);
    MPI_Request_free(&both[1]);
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm neighbours, leaders;
    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &neighbours);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &leaders);
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Allreduce(out, in, 1, MPI_DOUBLE, MPI_SUM, neighbours);
        MPI_Allreduce(out, in, 1, MPI_DOUBLE, MPI_SUM, leaders);
    }
    polled(rank);
    passed_by(rank);
    /* All messages here are of rank 0. */
    for (int round = 0; round < 10 * ROUNDS; round++) {
        if (rank == 0)
            MPI_Send(out, 2, MPI_DOUBLE, 2, 3, MPI_COMM_WORLD);
        if (rank == 2)
            MPI_Recv(in, 2, MPI_DOUBLE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Finalize();
    return 0;
}
