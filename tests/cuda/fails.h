/* fails.h: calls that fail.  CONFLUX_EMULATED_FAIL="cudaEventRecord:3" makes that function of the stand-ins fail from its
 * third call on; "launch" is the launch of a kernel. */
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
    return which && strncmp(which, function, n) == 0 && which[n] == ':' && ++calls >= atol(which + n + 1);
}

#endif
