/*
 * Records the profile of an MPI application for `vrio plan application`.
 *
 *     vrio plan example pmpi > profile.c
 *     mpicc -O2 -shared -fPIC -o libprofile.so profile.c
 *     mpirun -x LD_PRELOAD=$PWD/libprofile.so ./application      Open MPI
 *     mpirun -env LD_PRELOAD $PWD/libprofile.so ./application    MPICH
 *
 * The application is not built again. Rank 0 writes profile.toml, or the file that VRIO_PROFILE
 * names, in MPI_Finalize; a file that is there is kept, and the next free name with a number is
 * taken. Messages are counted by pattern, by size in powers of two, and by the ranks of the
 * communicator; a rank's messages to itself are left out.
 *
 * Time outside of the calls below is computation. Time in calls of C that have no pattern in a
 * profile (gather, scatter, scan and such) is other_s. Time in calls with a pattern is a comment of
 * the profile, since the platform's curve takes its place; so waits for persistent requests and for
 * collectives that do not block are in neither. The messages of both are not counted: a comment of
 * the profile says how many calls began them. All calls that are not below count as computation:
 * one-sided ones, MPI_File_*, MPI_Mprobe, neighbourhoods.
 *
 * Programs in C, C++ and Fortran (mpif.h and `use mpi`; not mpi_f08) are recorded. A program with
 * an MPI_Init that does not pass by here, as of mpi_f08, runs as without the recorder, and has no
 * profile.
 * Where several threads call MPI at once their times overlap, and computation is too short.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum pattern { PAIR, ALLREDUCE, ALLTOALL, ALLGATHER, BCAST, REDUCE, BARRIER };
static const char *const names[] = {
    "point-to-point", "allreduce", "alltoall", "allgather", "bcast", "reduce", "barrier",
};

/*
 * Sizes by their number of bits, of which a TiB, the most that a profile may have, has 41; rows of
 * one rank, of which further ones are counted alone; files of the same name.
 */
enum { PATTERNS = BARRIER + 1, CLASSES = 42, ROWS_MAX = 1024, FILES_MAX = 1000 };
/* A rank with so many times the calls of a rank on average is worth a line. */
enum { BUSY = 2 };
static const double bytes_max = 1099511627776.0;

/*
 * `per_host` is the most ranks of the communicator on a host, or 0 if it is not known. `scattered`
 * calls were of ranks of a host that do not follow one another. `busiest` has the calls of the rank
 * that has most, at the end.
 */
struct row {
    int pattern, class, ranks, per_host, next;
    double calls, bytes, near, scattered, busiest;
};

/* The rows of a pattern and class are a list: `first` and `next` count from 1. */
static struct row rows[ROWS_MAX];
static int first[PATTERNS][CLASSES];
static int row_count, world_rank, world_ranks = 1, per_host = 1;
/* The recorder's own work is in no other time. */
static double lost, begun, in_patterns, in_others, in_recorder;
/* Calls that began messages without a pattern here. */
static double passed_by;
/* Not before MPI_Init: a program with an MPI_Init that does not pass by here is left alone. */
static int started;
/* Calls under way: some MPIs' Fortran calls C by names that are here as well. The outer counts. */
static _Thread_local int inside;
/* Held while something is counted, for applications with several threads. */
static char counting;
/* The host of each rank, as the first rank there. */
static int *host_of;
/* The recorder's own messages never meet the application's. */
static MPI_Comm own_comm = MPI_COMM_NULL;
/* The attribute of communicators with their places. */
static int place_key = MPI_KEYVAL_INVALID;
/* Messages that were begun and not waited for, and the windows that were closed, by size. */
static double open_sends[CLASSES], windows[CLASSES], window_sends[CLASSES];

static int class_of(double bytes) {
    int class = 0;
    for (unsigned long long rest = (unsigned long long)bytes; rest; rest >>= 1)
        class++;
    return class;
}

static struct row *row_of(int pattern, double bytes, int ranks, int on_host) {
    int class = class_of(bytes);
    for (int at = first[pattern][class]; at; at = rows[at - 1].next) {
        if (rows[at - 1].ranks == ranks && rows[at - 1].per_host == on_host)
            return &rows[at - 1];
    }
    if (row_count == ROWS_MAX)
        return NULL;
    struct row *row = &rows[row_count++];
    *row = (struct row){ .pattern = pattern, .class = class, .ranks = ranks, .per_host = on_host };
    row->next = first[pattern][class];
    first[pattern][class] = row_count;
    return row;
}

static void merge(const struct row *more) {
    if (more->pattern < 0 || more->pattern >= PATTERNS || !(more->calls > 0))
        return;
    double bytes = more->bytes / more->calls;
    struct row *row = row_of(more->pattern, bytes, more->ranks, more->per_host);
    if (!row) {
        lost += more->calls;
        return;
    }
    row->calls += more->calls;
    row->bytes += more->bytes;
    row->near += more->near;
    row->scattered += more->scattered;
    if (row->busiest < more->busiest)
        row->busiest = more->busiest;
}

/* Types of more than 2 GiB have a size by this call alone. */
static double bytes_of(int count, MPI_Datatype type) {
    MPI_Count size = 0;
    if (PMPI_Type_size_x(type, &size) != MPI_SUCCESS || size <= 0 || count <= 0)
        return 0;
    double bytes = (double)count * (double)size;
    return bytes < bytes_max ? bytes : bytes_max;
}

/*
 * The places of a communicator's ranks, kept with it: of the other group's, if it has two, since
 * its messages go there.
 */
struct place {
    /* `self` is this rank, or negative with two groups. */
    int ranks, receivers, self, per_host, is_scattered;
    char near[];
};

static int forget(MPI_Comm comm, int key, void *place, void *extra) {
    (void)comm, (void)key, (void)extra;
    free(place);
    return MPI_SUCCESS;
}

/* Finds the receivers on this host. Ranks that are not in the world have a negative number. */
static void find(struct place *place, const int *in_world) {
    for (int at = 0; at < place->receivers; at++) {
        int rank = in_world[at] >= 0 && in_world[at] < world_ranks ? in_world[at] : -1;
        place->near[at] = rank >= 0 && host_of && host_of[rank] == host_of[world_rank];
    }
}

/* Counts the ranks of each host, and whether a host comes again after another host. */
static void count(struct place *place, const int *in_world, int ranks, int *on_host) {
    for (int at = 0, last = -1; host_of && at < ranks; at++) {
        if (in_world[at] < 0 || in_world[at] >= world_ranks)
            continue;
        int host = host_of[in_world[at]];
        if (host != last && on_host[host])
            place->is_scattered = 1;
        last = host;
        if (++on_host[host] > place->per_host)
            place->per_host = on_host[host];
    }
}

/* The numbers that the ranks of a group have in the world. `ranks` has place for two of each. */
static const int *in_world_of(MPI_Group group, int number, int *ranks) {
    MPI_Group world;
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    for (int at = 0; at < number; at++)
        ranks[at] = at;
    PMPI_Group_translate_ranks(group, number, ranks, world, ranks + number);
    PMPI_Group_free(&world);
    return ranks + number;
}

/* None without memory. */
static const struct place *place_of(MPI_Comm comm) {
    struct place *place = NULL;
    int is_known = 0, has_two = 0, here = 0, there = 0;
    PMPI_Comm_get_attr(comm, place_key, &place, &is_known);
    if (is_known)
        return place;
    PMPI_Comm_size(comm, &here);
    PMPI_Comm_test_inter(comm, &has_two);
    if (has_two)
        PMPI_Comm_remote_size(comm, &there);
    int receivers = has_two ? there : here;
    place = calloc(1, sizeof *place + (size_t)receivers);
    int *ranks = calloc(2 * (size_t)(here > there ? here : there) + 1, sizeof *ranks);
    int *on_host = calloc((size_t)world_ranks, sizeof *on_host);
    if (!place || !ranks || !on_host) {
        free(place);
        free(ranks);
        free(on_host);
        return NULL;
    }
    /* Spawned ranks are not in this world, which has the most that a profile may name. */
    place->ranks = here + there < world_ranks ? here + there : world_ranks;
    place->receivers = receivers;
    PMPI_Comm_rank(comm, &place->self);
    MPI_Group group;
    PMPI_Comm_group(comm, &group);
    const int *in_world = in_world_of(group, here, ranks);
    count(place, in_world, here, on_host);
    PMPI_Group_free(&group);
    if (has_two) {
        place->self = -1;
        PMPI_Comm_remote_group(comm, &group);
        in_world = in_world_of(group, there, ranks);
        count(place, in_world, there, on_host);
        PMPI_Group_free(&group);
    }
    find(place, in_world);
    free(ranks);
    free(on_host);
    if (PMPI_Comm_set_attr(comm, place_key, place) != MPI_SUCCESS) {
        free(place);
        return NULL;
    }
    return place;
}

static void close_windows(void) {
    for (int class = 0; class < CLASSES; class++) {
        if (open_sends[class] > 0) {
            windows[class]++;
            window_sends[class] += open_sends[class];
            open_sends[class] = 0;
        }
    }
}

static void send(int count, MPI_Datatype type, int to, MPI_Comm comm) {
    const struct place *place = place_of(comm);
    if (to == MPI_PROC_NULL || (place && to == place->self))
        return;
    int is_near = place && to >= 0 && to < place->receivers && place->near[to];
    double bytes = bytes_of(count, type);
    struct row one = { .pattern = PAIR, .ranks = world_ranks, .calls = 1, .bytes = bytes,
                       .near = is_near };
    open_sends[class_of(bytes)]++;
    merge(&one);
}

static void together(int pattern, double bytes, MPI_Comm comm) {
    const struct place *place = place_of(comm);
    int ranks = place ? place->ranks : world_ranks;
    struct row one = { .pattern = pattern, .ranks = ranks, .calls = 1, .bytes = bytes };
    if (place) {
        one.per_host = place->per_host;
        one.scattered = place->is_scattered;
    }
    merge(&one);
}

static void start(void) {
    MPI_Comm host;
    PMPI_Comm_dup(MPI_COMM_WORLD, &own_comm);
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &place_key, NULL);
    PMPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &world_ranks);
    PMPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    int lowest = world_rank, on_host = 1;
    PMPI_Comm_size(host, &on_host);
    PMPI_Bcast(&lowest, 1, MPI_INT, 0, host);
    PMPI_Comm_free(&host);
    PMPI_Allreduce(&on_host, &per_host, 1, MPI_INT, MPI_MAX, own_comm);
    host_of = malloc(sizeof *host_of * (size_t)world_ranks);
    int failed = !host_of, any = 0;
    PMPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, own_comm);
    if (any) {
        free(host_of);
        host_of = NULL;
    } else {
        PMPI_Allgather(&lowest, 1, MPI_INT, host_of, 1, MPI_INT, own_comm);
    }
    PMPI_Barrier(own_comm);
    begun = PMPI_Wtime();
    started = 1;
}

/* A number with so many decimals; printf's own point depends on the locale. */
static void number(FILE *out, const char *key, double value, int decimals) {
    long long unit = 1;
    for (int at = 0; at < decimals; at++)
        unit *= 10;
    long long all = (long long)(value * (double)unit + 0.5);
    fprintf(out, "%s = %lld.%0*lld\n", key, all / unit, decimals, all % unit);
}

static void write_rows(FILE *out, const double *all_windows, const double *all_sends) {
    for (int at = 0; at < row_count; at++) {
        const struct row *row = &rows[at];
        int class = class_of(row->bytes / row->calls);
        fprintf(out, "\n[[messages]]\npattern = \"%s\"\n", names[row->pattern]);
        if (row->scattered > 0)
            fprintf(out, "# ranks of a host do not follow one another in %.0f %% of the calls\n",
                    100 * row->scattered / row->calls);
        if (row->pattern != BARRIER)
            fprintf(out, "bytes = %.0f\n", row->bytes / row->calls);
        number(out, "count", row->calls / world_ranks, 3);
        if (row->busiest * world_ranks > BUSY * row->calls)
            fprintf(out, "# the busiest rank has %.0f; a prediction has the mean\n", row->busiest);
        if (row->pattern == PAIR) {
            double window = all_windows[class] > 0 ? all_sends[class] / all_windows[class] : 1;
            fprintf(out, "window = %.0f\n", window < 1 ? 1 : window > 65536 ? 65536 : window);
            if (per_host > 1)
                number(out, "local", row->near / row->calls, 6);
        } else {
            fprintf(out, "ranks = %d\n", row->ranks);
            if (row->per_host > 0 && row->ranks < world_ranks)
                fprintf(out, "ranks_per_host = %d\n", row->per_host);
        }
    }
}

/* A new file: a profile that is there may have taken days. */
static FILE *new_file(void) {
    const char *wanted = getenv("VRIO_PROFILE");
    char path[4096];
    if (!wanted || !*wanted)
        wanted = "profile.toml";
    for (int at = 1; at <= FILES_MAX; at++) {
        const char *form = at > 1 ? "%s.%d" : "%s";
        int length = snprintf(path, sizeof path, form, wanted, at);
        if (length < 0 || length >= (int)sizeof path) {
            errno = ENAMETOOLONG;
            break;
        }
        FILE *out = fopen(path, "wx");
        if (out && at > 1)
            fprintf(stderr, "profile: %s is there already; this one is %s\n", wanted, path);
        if (out || errno != EEXIST)
            return out;
    }
    return NULL;
}

/* The sums of all ranks. */
enum { COMPUTATION, OTHERS, PATTERN_TIME, LOST, PASSED_BY, SUMS };

/* Ranks of a host follow one another, if no host comes again after another host. */
static int hosts_are_in_order(void) {
    for (int at = 1; host_of && at < world_ranks; at++) {
        if (host_of[at] != host_of[at - 1] && host_of[at] != at)
            return 0;
    }
    return 1;
}

static void write_profile(double whole_s, double most_s, const double *sums,
                          const double *all_windows, const double *all_sends) {
    FILE *out = new_file();
    if (!out) {
        fprintf(stderr, "profile: no file could be made: %s\n", strerror(errno));
        return;
    }
    fprintf(out, "title = \"");
    const char *name = program_invocation_short_name;
    for (int at = 0; name[at] && at < 60; at++)
        fputc(name[at] > ' ' && name[at] < 127 && !strchr("\"\\", name[at]) ? name[at] : '_', out);
    fprintf(out, "\"\nranks = %d\nranks_per_host = %d", world_ranks, per_host);
    fprintf(out, "    # with another number here leave out each `local` and the rows' own\n");
    if (!hosts_are_in_order())
        fprintf(out, "# ranks of a host do not follow one another here, as a prediction has it\n");
    fprintf(out, "# processor_mhz = 2200    the clock here, if other platforms have another one\n");
    number(out, "computation_s", most_s, 6);
    number(out, "computation_mean_s", sums[COMPUTATION] / world_ranks, 6);
    number(out, "other_s", sums[OTHERS] / world_ranks, 6);
    number(out, "# messages_s", sums[PATTERN_TIME] / world_ranks, 6);
    number(out, "recorded_s", whole_s, 6);
    fprintf(out, "# recorded_on = \"own.json\"    the name of the platform\n");
    if (sums[LOST] > 0)
        fprintf(out, "# %.0f messages are not here: they were of too many kinds\n", sums[LOST]);
    if (sums[PASSED_BY] > 0) {
        const char *form = "%s%.0f calls are not here: persistent requests and collectives that do "
                           "not block have no pattern\n";
        fprintf(out, form, "# ", sums[PASSED_BY]);
        fprintf(stderr, form, "profile: ", sums[PASSED_BY]);
    }
    write_rows(out, all_windows, all_sends);
    int failed = ferror(out);
    if (fclose(out) || failed)
        fprintf(stderr, "profile: it could not be written: %s\n", strerror(errno));
}

static void finish(void) {
    if (!started)
        return;
    started = 0;
    close_windows();
    double whole = PMPI_Wtime() - begun, own = whole - in_patterns - in_others - in_recorder;
    if (own < 0)
        own = 0;
    double most[2] = { whole, own }, sums[SUMS] = { own, in_others, in_patterns, lost, passed_by };
    double all_most[2], all_sums[SUMS], all_windows[CLASSES], all_sends[CLASSES];
    MPI_Comm all = own_comm;
    PMPI_Reduce(most, all_most, 2, MPI_DOUBLE, MPI_MAX, 0, all);
    PMPI_Reduce(sums, all_sums, SUMS, MPI_DOUBLE, MPI_SUM, 0, all);
    PMPI_Reduce(windows, all_windows, CLASSES, MPI_DOUBLE, MPI_SUM, 0, all);
    PMPI_Reduce(window_sends, all_sends, CLASSES, MPI_DOUBLE, MPI_SUM, 0, all);
    for (int at = 0; at < row_count; at++)
        rows[at].busiest = rows[at].calls;
    if (world_rank) {
        PMPI_Send(rows, (int)(sizeof *rows) * row_count, MPI_BYTE, 0, 0, all);
        PMPI_Comm_free(&own_comm);
        return;
    }
    static struct row others[ROWS_MAX];
    /* Rows of other ranks that find no place here come on top of the ranks' own. */
    lost = 0;
    for (int from = 1; from < world_ranks; from++) {
        MPI_Status status;
        int bytes = 0;
        PMPI_Recv(others, sizeof others, MPI_BYTE, from, 0, all, &status);
        PMPI_Get_count(&status, MPI_BYTE, &bytes);
        for (int at = 0; at < bytes / (int)sizeof *others; at++)
            merge(&others[at]);
    }
    all_sums[LOST] += lost;
    write_profile(all_most[0], all_most[1], all_sums, all_windows, all_sends);
    PMPI_Comm_free(&own_comm);
}

static void warn_of_threads(int given) {
    if (given == MPI_THREAD_MULTIPLE && !world_rank)
        fprintf(stderr, "profile: with MPI_THREAD_MULTIPLE, times of threads that call MPI at once "
                        "overlap: computation is too short\n");
}

int MPI_Init(int *argc, char ***argv) {
    int code = PMPI_Init(argc, argv);
    if (!inside && code == MPI_SUCCESS)
        start();
    return code;
}

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *given) {
    int code = PMPI_Init_thread(argc, argv, wanted, given);
    if (!inside && code == MPI_SUCCESS) {
        start();
        warn_of_threads(*given);
    }
    return code;
}

int MPI_Finalize(void) {
    if (!inside)
        finish();
    return PMPI_Finalize();
}

static double enter(void) { return inside++ || !started ? 0 : PMPI_Wtime(); }

/* Whether the call that ends is the outer one. Then counting begins. */
static int leave(double *sum, double from, double *to) {
    if (--inside || !started)
        return 0;
    while (__atomic_test_and_set(&counting, __ATOMIC_ACQUIRE))
        ;
    *to = PMPI_Wtime();
    *sum += *to - from;
    return 1;
}

static void counted(double from) {
    in_recorder += PMPI_Wtime() - from;
    __atomic_clear(&counting, __ATOMIC_RELEASE);
}

/* A call in the middle: its time counts as time of patterns or of other calls. */
#define TIMED(sum, note, name, formal, actual) \
    int MPI_##name formal { \
        double from = enter(), left = 0; \
        int code = PMPI_##name actual; \
        if (leave(&sum, from, &left)) { \
            if (code == MPI_SUCCESS) { \
                note; \
            } \
            counted(left); \
        } \
        return code; \
    }

#define SEND(name) \
    TIMED(in_patterns, (send(n, type, to, comm), close_windows()), name, \
          (const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm), \
          (data, n, type, to, tag, comm))
SEND(Send)
SEND(Ssend)
SEND(Rsend)
SEND(Bsend)

#define ISEND(name) \
    TIMED(in_patterns, send(n, type, to, comm), name, \
          (const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, \
           MPI_Request *request), \
          (data, n, type, to, tag, comm, request))
ISEND(Isend)
ISEND(Issend)
ISEND(Irsend)
ISEND(Ibsend)

TIMED(in_patterns, close_windows(), Recv,
      (void *data, int n, MPI_Datatype type, int from_rank, int tag, MPI_Comm comm, MPI_Status *s),
      (data, n, type, from_rank, tag, comm, s))
TIMED(in_patterns, , Irecv,
      (void *data, int n, MPI_Datatype type, int from_rank, int tag, MPI_Comm comm, MPI_Request *r),
      (data, n, type, from_rank, tag, comm, r))
TIMED(in_patterns, (send(n, type, to, comm), close_windows()), Sendrecv,
      (const void *data, int n, MPI_Datatype type, int to, int tag, void *into, int m,
       MPI_Datatype other, int from_rank, int other_tag, MPI_Comm comm, MPI_Status *s),
      (data, n, type, to, tag, into, m, other, from_rank, other_tag, comm, s))
TIMED(in_patterns, (send(n, type, to, comm), close_windows()), Sendrecv_replace,
      (void *data, int n, MPI_Datatype type, int to, int tag, int from_rank, int other_tag,
       MPI_Comm comm, MPI_Status *s),
      (data, n, type, to, tag, from_rank, other_tag, comm, s))
TIMED(in_patterns, close_windows(), Wait, (MPI_Request *r, MPI_Status *s), (r, s))
TIMED(in_patterns, close_windows(), Waitall, (int n, MPI_Request r[], MPI_Status s[]), (n, r, s))
TIMED(in_patterns, close_windows(), Waitany, (int n, MPI_Request r[], int *at, MPI_Status *s),
      (n, r, at, s))
TIMED(in_patterns, close_windows(), Waitsome,
      (int n, MPI_Request r[], int *done, int at[], MPI_Status s[]), (n, r, done, at, s))
/* A test that has found nothing ends no wait. MPI_UNDEFINED is negative in Open MPI and MPICH. */
#define TESTED(done) do { if ((done) > 0) close_windows(); } while (0)
TIMED(in_patterns, TESTED(*done), Test, (MPI_Request *r, int *done, MPI_Status *s), (r, done, s))
TIMED(in_patterns, TESTED(*done), Testany,
      (int n, MPI_Request r[], int *at, int *done, MPI_Status *s), (n, r, at, done, s))
TIMED(in_patterns, TESTED(*done), Testsome,
      (int n, MPI_Request r[], int *done, int at[], MPI_Status s[]), (n, r, done, at, s))
TIMED(in_patterns, TESTED(*done), Testall, (int n, MPI_Request r[], int *done, MPI_Status s[]),
      (n, r, done, s))
TIMED(in_patterns, , Probe, (int from_rank, int tag, MPI_Comm comm, MPI_Status *s),
      (from_rank, tag, comm, s))
TIMED(in_patterns, , Iprobe, (int from_rank, int tag, MPI_Comm comm, int *is, MPI_Status *s),
      (from_rank, tag, comm, is, s))

TIMED(in_patterns, together(BARRIER, 0, comm), Barrier, (MPI_Comm comm), (comm))
TIMED(in_patterns, together(BCAST, bytes_of(n, type), comm), Bcast,
      (void *data, int n, MPI_Datatype type, int root, MPI_Comm comm), (data, n, type, root, comm))
TIMED(in_patterns, together(REDUCE, bytes_of(n, type), comm), Reduce,
      (const void *data, void *into, int n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),
      (data, into, n, type, op, root, comm))
TIMED(in_patterns, together(ALLREDUCE, bytes_of(n, type), comm), Allreduce,
      (const void *data, void *into, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
      (data, into, n, type, op, comm))
/* By what is received, since the data may be in place. */
#define GATHERED(pattern, name) \
    TIMED(in_patterns, together(pattern, bytes_of(m, other), comm), name, \
          (const void *data, int n, MPI_Datatype type, void *into, int m, MPI_Datatype other, \
           MPI_Comm comm), \
          (data, n, type, into, m, other, comm))
GATHERED(ALLTOALL, Alltoall)
GATHERED(ALLGATHER, Allgather)

/* With sizes of their own: the mean of what a rank receives from each. */
static void uneven(int pattern, const int counts[], MPI_Datatype type, MPI_Comm comm) {
    const struct place *place = place_of(comm);
    double bytes = 0;
    for (int at = 0; place && at < place->receivers; at++)
        bytes += bytes_of(counts[at], type);
    together(pattern, place ? bytes / place->receivers : 0, comm);
}
TIMED(in_patterns, uneven(ALLTOALL, m, other, comm), Alltoallv,
      (const void *data, const int n[], const int at[], MPI_Datatype type, void *into,
       const int m[], const int to[], MPI_Datatype other, MPI_Comm comm),
      (data, n, at, type, into, m, to, other, comm))
TIMED(in_patterns, uneven(ALLGATHER, m, other, comm), Allgatherv,
      (const void *data, int n, MPI_Datatype type, void *into, const int m[], const int to[],
       MPI_Datatype other, MPI_Comm comm),
      (data, n, type, into, m, to, other, comm))

#define ROOTED(name) \
    TIMED(in_others, , name, \
          (const void *data, int n, MPI_Datatype type, void *into, int m, MPI_Datatype other, \
           int root, MPI_Comm comm), \
          (data, n, type, into, m, other, root, comm))
ROOTED(Gather)
ROOTED(Scatter)
TIMED(in_others, , Gatherv,
      (const void *data, int n, MPI_Datatype type, void *into, const int m[], const int to[],
       MPI_Datatype other, int root, MPI_Comm comm),
      (data, n, type, into, m, to, other, root, comm))
TIMED(in_others, , Scatterv,
      (const void *data, const int n[], const int at[], MPI_Datatype type, void *into, int m,
       MPI_Datatype other, int root, MPI_Comm comm),
      (data, n, at, type, into, m, other, root, comm))
TIMED(in_others, , Scan,
      (const void *data, void *into, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
      (data, into, n, type, op, comm))
TIMED(in_others, , Exscan,
      (const void *data, void *into, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
      (data, into, n, type, op, comm))
TIMED(in_others, , Reduce_scatter_block,
      (const void *data, void *into, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
      (data, into, n, type, op, comm))
TIMED(in_others, , Alltoallw,
      (const void *data, const int n[], const int at[], const MPI_Datatype types[], void *into,
       const int m[], const int to[], const MPI_Datatype others[], MPI_Comm comm),
      (data, n, at, types, into, m, to, others, comm))
TIMED(in_others, , Reduce_scatter,
      (const void *data, void *into, const int n[], MPI_Datatype type, MPI_Op op, MPI_Comm comm),
      (data, into, n, type, op, comm))

/* Calls that begin messages without a pattern here: how many they are is told at the end. */
TIMED(in_patterns, passed_by++, Start, (MPI_Request *r), (r))
TIMED(in_patterns, passed_by += n, Startall, (int n, MPI_Request r[]), (n, r))
#define PASSED(name, formal, actual) TIMED(in_patterns, passed_by++, name, formal, actual)
PASSED(Ibarrier, (MPI_Comm comm, MPI_Request *r), (comm, r))
PASSED(Ibcast, (void *data, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *r),
       (data, n, type, root, comm, r))
PASSED(Ireduce,
       (const void *data, void *into, int n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
        MPI_Request *r),
       (data, into, n, type, op, root, comm, r))
#define SUMMED(name) \
    PASSED(name, \
           (const void *data, void *into, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm, \
            MPI_Request *r), \
           (data, into, n, type, op, comm, r))
SUMMED(Iallreduce)
SUMMED(Iscan)
SUMMED(Iexscan)
SUMMED(Ireduce_scatter_block)
PASSED(Ireduce_scatter,
       (const void *data, void *into, const int n[], MPI_Datatype type, MPI_Op op, MPI_Comm comm,
        MPI_Request *r),
       (data, into, n, type, op, comm, r))
#define PASSED_ALL(name) \
    PASSED(name, \
           (const void *data, int n, MPI_Datatype type, void *into, int m, MPI_Datatype other, \
            MPI_Comm comm, MPI_Request *r), \
           (data, n, type, into, m, other, comm, r))
PASSED_ALL(Ialltoall)
PASSED_ALL(Iallgather)
#define PASSED_ROOTED(name) \
    PASSED(name, \
           (const void *data, int n, MPI_Datatype type, void *into, int m, MPI_Datatype other, \
            int root, MPI_Comm comm, MPI_Request *r), \
           (data, n, type, into, m, other, root, comm, r))
PASSED_ROOTED(Igather)
PASSED_ROOTED(Iscatter)
PASSED(Igatherv,
       (const void *data, int n, MPI_Datatype type, void *into, const int m[], const int to[],
        MPI_Datatype other, int root, MPI_Comm comm, MPI_Request *r),
       (data, n, type, into, m, to, other, root, comm, r))
PASSED(Iscatterv,
       (const void *data, const int n[], const int at[], MPI_Datatype type, void *into, int m,
        MPI_Datatype other, int root, MPI_Comm comm, MPI_Request *r),
       (data, n, at, type, into, m, other, root, comm, r))
PASSED(Iallgatherv,
       (const void *data, int n, MPI_Datatype type, void *into, const int m[], const int to[],
        MPI_Datatype other, MPI_Comm comm, MPI_Request *r),
       (data, n, type, into, m, to, other, comm, r))
PASSED(Ialltoallv,
       (const void *data, const int n[], const int at[], MPI_Datatype type, void *into,
        const int m[], const int to[], MPI_Datatype other, MPI_Comm comm, MPI_Request *r),
       (data, n, at, type, into, m, to, other, comm, r))
PASSED(Ialltoallw,
       (const void *data, const int n[], const int at[], const MPI_Datatype types[], void *into,
        const int m[], const int to[], const MPI_Datatype others[], MPI_Comm comm, MPI_Request *r),
       (data, n, at, types, into, m, to, others, comm, r))

/*
 * Fortran. Its own PMPI functions do the work, so that MPI_IN_PLACE and MPI_BOTTOM stay theirs; a
 * program without Fortran has none, and calls none.
 */
typedef MPI_Fint F;

#define FORTRAN(sum, note, name, formal, actual) \
    void p##name formal __attribute__((weak)); \
    void name formal { \
        double from = enter(), left = 0; \
        p##name actual; \
        if (leave(&sum, from, &left)) { \
            if (*code == MPI_SUCCESS) { \
                note; \
            } \
            counted(left); \
        } \
    }

void pmpi_init_(F *code) __attribute__((weak));
void mpi_init_(F *code) {
    inside++;
    pmpi_init_(code);
    inside--;
    if (*code == MPI_SUCCESS)
        start();
}

void pmpi_init_thread_(F *wanted, F *given, F *code) __attribute__((weak));
void mpi_init_thread_(F *wanted, F *given, F *code) {
    inside++;
    pmpi_init_thread_(wanted, given, code);
    inside--;
    if (*code == MPI_SUCCESS) {
        start();
        warn_of_threads(*given);
    }
}

void pmpi_finalize_(F *code) __attribute__((weak));
void mpi_finalize_(F *code) {
    finish();
    inside++;
    pmpi_finalize_(code);
    inside--;
}

#define C_TYPE(type) PMPI_Type_f2c(*type)
#define C_COMM(comm) PMPI_Comm_f2c(*comm)

#define F_SEND(name) \
    FORTRAN(in_patterns, (send(*n, C_TYPE(type), *to, C_COMM(comm)), close_windows()), name, \
            (void *data, F *n, F *type, F *to, F *tag, F *comm, F *code), \
            (data, n, type, to, tag, comm, code))
F_SEND(mpi_send_)
F_SEND(mpi_ssend_)
F_SEND(mpi_rsend_)
F_SEND(mpi_bsend_)

#define F_ISEND(name) \
    FORTRAN(in_patterns, send(*n, C_TYPE(type), *to, C_COMM(comm)), name, \
            (void *data, F *n, F *type, F *to, F *tag, F *comm, F *request, F *code), \
            (data, n, type, to, tag, comm, request, code))
F_ISEND(mpi_isend_)
F_ISEND(mpi_issend_)
F_ISEND(mpi_irsend_)
F_ISEND(mpi_ibsend_)

FORTRAN(in_patterns, close_windows(), mpi_recv_,
        (void *data, F *n, F *type, F *rank, F *tag, F *comm, F *s, F *code),
        (data, n, type, rank, tag, comm, s, code))
FORTRAN(in_patterns, , mpi_irecv_,
        (void *data, F *n, F *type, F *rank, F *tag, F *comm, F *r, F *code),
        (data, n, type, rank, tag, comm, r, code))
FORTRAN(in_patterns, (send(*n, C_TYPE(type), *to, C_COMM(comm)), close_windows()), mpi_sendrecv_,
        (void *data, F *n, F *type, F *to, F *tag, void *into, F *m, F *other, F *rank,
         F *other_tag, F *comm, F *s, F *code),
        (data, n, type, to, tag, into, m, other, rank, other_tag, comm, s, code))
FORTRAN(in_patterns, close_windows(), mpi_wait_, (F *r, F *s, F *code), (r, s, code))
FORTRAN(in_patterns, close_windows(), mpi_waitall_, (F *n, F *r, F *s, F *code), (n, r, s, code))
FORTRAN(in_patterns, close_windows(), mpi_waitany_, (F *n, F *r, F *at, F *s, F *code),
        (n, r, at, s, code))
FORTRAN(in_patterns, close_windows(), mpi_waitsome_, (F *n, F *r, F *done, F *at, F *s, F *code),
        (n, r, done, at, s, code))
FORTRAN(in_patterns, (send(*n, C_TYPE(type), *to, C_COMM(comm)), close_windows()),
        mpi_sendrecv_replace_,
        (void *data, F *n, F *type, F *to, F *tag, F *rank, F *other_tag, F *comm, F *s, F *code),
        (data, n, type, to, tag, rank, other_tag, comm, s, code))
/* A compiler's .TRUE. is 1 or -1. */
FORTRAN(in_patterns, TESTED(*done != 0), mpi_testany_, (F *n, F *r, F *at, F *done, F *s, F *code),
        (n, r, at, done, s, code))
FORTRAN(in_patterns, TESTED(*done), mpi_testsome_, (F *n, F *r, F *done, F *at, F *s, F *code),
        (n, r, done, at, s, code))
FORTRAN(in_patterns, TESTED(*done != 0), mpi_test_, (F *r, F *done, F *s, F *code),
        (r, done, s, code))
FORTRAN(in_patterns, TESTED(*done != 0), mpi_testall_, (F *n, F *r, F *done, F *s, F *code),
        (n, r, done, s, code))
FORTRAN(in_patterns, , mpi_probe_, (F *rank, F *tag, F *comm, F *s, F *code),
        (rank, tag, comm, s, code))
FORTRAN(in_patterns, , mpi_iprobe_, (F *rank, F *tag, F *comm, F *is, F *s, F *code),
        (rank, tag, comm, is, s, code))

FORTRAN(in_patterns, together(BARRIER, 0, C_COMM(comm)), mpi_barrier_, (F *comm, F *code),
        (comm, code))
FORTRAN(in_patterns, together(BCAST, bytes_of(*n, C_TYPE(type)), C_COMM(comm)), mpi_bcast_,
        (void *data, F *n, F *type, F *root, F *comm, F *code), (data, n, type, root, comm, code))
FORTRAN(in_patterns, together(REDUCE, bytes_of(*n, C_TYPE(type)), C_COMM(comm)), mpi_reduce_,
        (void *data, void *into, F *n, F *type, F *op, F *root, F *comm, F *code),
        (data, into, n, type, op, root, comm, code))
FORTRAN(in_patterns, together(ALLREDUCE, bytes_of(*n, C_TYPE(type)), C_COMM(comm)), mpi_allreduce_,
        (void *data, void *into, F *n, F *type, F *op, F *comm, F *code),
        (data, into, n, type, op, comm, code))
#define F_GATHERED(pattern, name) \
    FORTRAN(in_patterns, together(pattern, bytes_of(*m, C_TYPE(other)), C_COMM(comm)), name, \
            (void *data, F *n, F *type, void *into, F *m, F *other, F *comm, F *code), \
            (data, n, type, into, m, other, comm, code))
F_GATHERED(ALLTOALL, mpi_alltoall_)
F_GATHERED(ALLGATHER, mpi_allgather_)
FORTRAN(in_patterns, uneven(ALLTOALL, m, C_TYPE(other), C_COMM(comm)), mpi_alltoallv_,
        (void *data, F *n, F *at, F *type, void *into, F *m, F *to, F *other, F *comm, F *code),
        (data, n, at, type, into, m, to, other, comm, code))
FORTRAN(in_patterns, uneven(ALLGATHER, m, C_TYPE(other), C_COMM(comm)), mpi_allgatherv_,
        (void *data, F *n, F *type, void *into, F *m, F *to, F *other, F *comm, F *code),
        (data, n, type, into, m, to, other, comm, code))

/* Without a pattern, as in C. */
FORTRAN(in_patterns, passed_by++, mpi_start_, (F *r, F *code), (r, code))
FORTRAN(in_patterns, passed_by += *n, mpi_startall_, (F *n, F *r, F *code), (n, r, code))
#define F_PASSED(name, formal, actual) FORTRAN(in_patterns, passed_by++, name, formal, actual)
F_PASSED(mpi_ibarrier_, (F *comm, F *r, F *code), (comm, r, code))
F_PASSED(mpi_ibcast_, (void *data, F *n, F *type, F *root, F *comm, F *r, F *code),
         (data, n, type, root, comm, r, code))
F_PASSED(mpi_ireduce_,
         (void *data, void *into, F *n, F *type, F *op, F *root, F *comm, F *r, F *code),
         (data, into, n, type, op, root, comm, r, code))
#define F_SUMMED(name) \
    F_PASSED(name, (void *data, void *into, F *n, F *type, F *op, F *comm, F *r, F *code), \
             (data, into, n, type, op, comm, r, code))
F_SUMMED(mpi_iallreduce_)
F_SUMMED(mpi_iscan_)
F_SUMMED(mpi_iexscan_)
F_SUMMED(mpi_ireduce_scatter_)
F_SUMMED(mpi_ireduce_scatter_block_)
#define F_PASSED_ALL(name) \
    F_PASSED(name, \
             (void *data, F *n, F *type, void *into, F *m, F *other, F *comm, F *r, F *code), \
             (data, n, type, into, m, other, comm, r, code))
F_PASSED_ALL(mpi_ialltoall_)
F_PASSED_ALL(mpi_iallgather_)
#define F_PASSED_ROOTED(name) \
    F_PASSED(name, \
             (void *data, F *n, F *type, void *into, F *m, F *other, F *root, F *comm, F *r, \
              F *code), \
             (data, n, type, into, m, other, root, comm, r, code))
F_PASSED_ROOTED(mpi_igather_)
F_PASSED_ROOTED(mpi_iscatter_)
F_PASSED(mpi_igatherv_,
         (void *data, F *n, F *type, void *into, F *m, F *to, F *other, F *root, F *comm, F *r,
          F *code),
         (data, n, type, into, m, to, other, root, comm, r, code))
F_PASSED(mpi_iscatterv_,
         (void *data, F *n, F *at, F *type, void *into, F *m, F *other, F *root, F *comm, F *r,
          F *code),
         (data, n, at, type, into, m, other, root, comm, r, code))
F_PASSED(mpi_iallgatherv_,
         (void *data, F *n, F *type, void *into, F *m, F *to, F *other, F *comm, F *r, F *code),
         (data, n, type, into, m, to, other, comm, r, code))
F_PASSED(mpi_ialltoallv_,
         (void *data, F *n, F *at, F *type, void *into, F *m, F *to, F *other, F *comm, F *r,
          F *code),
         (data, n, at, type, into, m, to, other, comm, r, code))
F_PASSED(mpi_ialltoallw_,
         (void *data, F *n, F *at, F *types, void *into, F *m, F *to, F *others, F *comm, F *r,
          F *code),
         (data, n, at, types, into, m, to, others, comm, r, code))
