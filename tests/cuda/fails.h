/* fails.h: calls that fail.  CONFLUX_EMULATED_FAIL="cudaEventRecord:3" makes that function of the stand-ins fail from its
 * third call on, "cudaEventRecord:3-5" in its third to fifth; "launch" is the launch of a kernel. */
#ifndef CF_FAKE_FAILS_H
#define CF_FAKE_FAILS_H

#include <stdlib.h>
#include <string.h>

#include <atomic>

/* Whether this call of a function fails. */
inline bool cf_emulated_fails(const char *function) {
    static const char *const which = getenv("CONFLUX_EMULATED_FAIL");
    static std::atomic<long> calls;
    const size_t n = strlen(function);
    if (!which || strncmp(which, function, n) != 0 || which[n] != ':') return false;
    char *end;
    const long call = ++calls, first = strtol(which + n + 1, &end, 10);
    return call >= first && (*end != '-' || call <= atol(end + 1));
}

#endif
