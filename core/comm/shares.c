/* shares.c: see shares.h. */
#include "comm/shares.h"

#include <math.h>
#include <stdbool.h>

cf_shares cf_shares_of(int32_t n, const double *weights, double *out) {
    double most = 0, total = 0;
    int exponent = 0;
    bool even = true;
    for (int32_t r = 0; r < n; r++) {
        even = even && weights[r] == weights[0];
        most = fmax(most, weights[r]);
    }
    if (most == 0) return CF_SHARES_NONE;
    frexp(most, &exponent); /* scaled by a power of two the sum stays finite, and counts stay exact */
    for (int32_t r = 0; r < n; r++) total += out[r] = ldexp(weights[r], -exponent);
    for (int32_t r = 0; r < n; r++) out[r] /= total;
    return even ? CF_SHARES_EVEN : CF_SHARES_UNEVEN;
}
