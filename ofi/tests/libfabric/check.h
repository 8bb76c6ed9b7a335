/* The checks of the programs here. A check that fails prints its line and ends the program. */
#include <stdio.h>
#include <stdlib.h>
#include <rdma/fi_errno.h>

#define PATIENCE_S 30

static void fail(int line, const char *what, long got, long want)
{
    fprintf(stderr, "%s:%d: %s is %ld (%s), not %ld\n", __BASE_FILE__, line, what, got,
        got < 0 ? fi_strerror((int)-got) : "", want);
    exit(1);
}

#define IS(what, wanted) \
    do { \
        long got_ = (long)(what), want_ = (long)(wanted); \
        if (got_ != want_) \
            fail(__LINE__, #what, got_, want_); \
    } while (0)
#define TRUE(what) IS(!!(what), 1)
#define OK(what) IS(what, 0)
