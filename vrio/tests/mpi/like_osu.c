/*
 * Not one of OSU's programs: it prints what they print, with numbers that are made up, so that what
 * reads them can be tried. Its name says which one it is to be like; of "-m LEAST:MOST" it prints
 * all powers of two.
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    int rank, least = 8, most = 8, is_checked = 0;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *name = strrchr(words[0], '/') ? strrchr(words[0], '/') + 1 : words[0];
    for (int at = 1; at < count; at++) {
        if (!strcmp(words[at], "-m") && at + 1 < count) {
            sscanf(words[at + 1], "%d:%d", &least, &most);
        }
        is_checked |= !strcmp(words[at], "-c");
    }
    int is_pairs = !strcmp(name, "osu_mbw_mr");
    int is_bandwidth = !strcmp(name, "osu_bw") || !strcmp(name, "osu_bibw");
    if (rank == 0) {
        printf("\n# OSU MPI %s Test v0.0 (not OSU's: a stand-in of vrio's tests)\n", name);
        const char *columns = is_pairs       ? "MB/s        Messages/s"
                              : is_bandwidth ? "Bandwidth (MB/s)"
                                             : "Avg Latency(us)  P50 Tail Lat(us)  P99 Tail Lat(us)";
        printf("# Size       %s%s\n", columns, is_checked ? "        Validation" : "");
        for (int size = least; size <= most; size *= 2) {
            if (is_pairs) {
                printf("%-10d %12.2f %12.2f", size, (double)size, 10.0 * size);
            } else if (is_bandwidth) {
                printf("%-10d %12.2f", size, (double)size);
            } else {
                printf("%-10d %12.2f %12.2f %12.2f", size, (double)size, (double)size, 2.0 * size);
            }
            printf("%s\n", is_checked ? "              Pass" : "");
        }
    }
    /* Theirs take seconds; whoever wants to see the ranks at work has some time. */
    usleep(200 * 1000);
    MPI_Finalize();
    return 0;
}
