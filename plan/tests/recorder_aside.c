/* A program with an MPI_Init that passes by no recorder, as of mpi_f08, and a library in C. */
#include <mpi.h>

int main(int count, char **words) {
    PMPI_Init(&count, &words);
    double own = 1, sum = 0;
    MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return sum != 3;
}
