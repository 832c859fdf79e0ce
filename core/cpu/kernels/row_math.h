/* row_math.h: what softmax.c and norm.c do to one row, for T float and double.  Included once for each, with
 * ROW(name) giving names, ROW_COMPUTE the type's cf_compute and ROW_EXP its exponential.
 *
 * Sums are taken in ROW_LANES partial sums that are merged in order, so that they vectorise and stay the same.
 */
#ifndef ROW_LANES
#define ROW_LANES 16
#endif

/* -inf for an empty row; a NaN may be passed over. */
static inline T ROW(largest)(const T *x, int64_t n) {
    T lane[ROW_LANES], most = -(T)INFINITY;
    int64_t i = 0;
    for (int k = 0; k < ROW_LANES; k++) lane[k] = most;
    for (; i + ROW_LANES <= n; i += ROW_LANES)
        for (int k = 0; k < ROW_LANES; k++) lane[k] = x[i + k] > lane[k] ? x[i + k] : lane[k];
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    for (int k = 0; k < ROW_LANES; k++) most = lane[k] > most ? lane[k] : most;
    return most;
}

static inline double ROW(dot)(const T *restrict a, const T *restrict b, int64_t n) {
    T lane[ROW_LANES] = {0}, rest = 0;
    int64_t i = 0;
    for (; i + ROW_LANES <= n; i += ROW_LANES)
        for (int k = 0; k < ROW_LANES; k++) lane[k] += a[i + k] * b[i + k];
    for (; i < n; i++) rest += a[i] * b[i];
    double sum = rest;
    for (int k = 0; k < ROW_LANES; k++) sum += lane[k];
    return sum;
}

/* y = e^(x - most), and the sum of it. */
static inline double ROW(exponentials)(const T *x, T most, int64_t n, T *y) {
    CF_VECTOR
    for (int64_t i = 0; i < n; i++) y[i] = ROW_EXP(x[i] - most);
    return CF_K(block_sum)(ROW_COMPUTE, y, n);
}

/* log of the sum of e^(x - most). */
static inline double ROW(log_sum)(const T *x, T most, int64_t n) {
    T block[CF_BLOCK];
    double sum = 0;
    for (int64_t i = 0; i < n; i += CF_BLOCK) sum += ROW(exponentials)(x + i, most, cf_least(CF_BLOCK, n - i), block);
    return log(sum);
}

static inline void ROW(softmax)(const T *x, int64_t n, T *y) {
    const T scale = (T)(1 / ROW(exponentials)(x, ROW(largest)(x, n), n, y));
    for (int64_t i = 0; i < n; i++) y[i] *= scale;
}

static inline void ROW(logsoftmax)(const T *x, int64_t n, T *y) {
    const T most = ROW(largest)(x, n), rest = (T)ROW(log_sum)(x, most, n);
    CF_VECTOR
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - most - rest;
}

static inline void ROW(softmax_bw)(const T *dy, const T *y, int64_t n, T *dx) {
    const T sum = (T)ROW(dot)(dy, y, n);
    CF_VECTOR
    for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - sum);
}

static inline void ROW(logsoftmax_bw)(const T *dy, const T *y, int64_t n, T *dx) {
    const T sum = (T)CF_K(block_sum)(ROW_COMPUTE, dy, n);
    CF_VECTOR
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - ROW_EXP(y[i]) * sum;
}

/* -sum over classes of t (x - lse), where t is one at `id` or, without one, the row p; smoothed as PyTorch
 * does: (1 - s) t + s / n. */
static inline double ROW(crossentropy)(const T *x, const T *p, int64_t id, int64_t n, double smoothing, double *lse) {
    const T most = ROW(largest)(x, n);
    const double rest = ROW(log_sum)(x, most, n);
    *lse = (double)most + rest;
    if (!p) {
        const double loss = rest + ((double)most - (double)x[id]);
        if (smoothing == 0) return loss;
        const double mean = CF_K(block_sum)(ROW_COMPUTE, x, n) / (double)n;
        return (1 - smoothing) * loss + smoothing * (rest + ((double)most - mean));
    }
    T block[CF_BLOCK];
    const T keep = (T)(1 - smoothing), share = (T)(smoothing / (double)n);
    double below = 0, sum = 0; /* of t (most - x), and of t */
    for (int64_t i = 0; i < n; i += CF_BLOCK) {
        const int64_t m = cf_least(CF_BLOCK, n - i);
        for (int64_t k = 0; k < m; k++) block[k] = p[i + k] * keep + share;
        sum += CF_K(block_sum)(ROW_COMPUTE, block, m);
        for (int64_t k = 0; k < m; k++) block[k] *= most - x[i + k];
        below += CF_K(block_sum)(ROW_COMPUTE, block, m);
    }
    return below + rest * sum;
}

/* dx = g (softmax(x) sum(t) - t). */
static inline void ROW(crossentropy_bw)(const T *x, const T *p, int64_t id, int64_t n, double smoothing, double lse,
                                        double g, T *dx) {
    const T keep = (T)(1 - smoothing), share = (T)(smoothing / (double)n), all = (T)lse, scale = (T)g;
    if (p) {
        const T sum = (T)((1 - smoothing) * CF_K(block_sum)(ROW_COMPUTE, p, n) + smoothing);
        CF_VECTOR
        for (int64_t i = 0; i < n; i++) dx[i] = scale * (ROW_EXP(x[i] - all) * sum - (p[i] * keep + share));
        return;
    }
    /* dx may be the buffer of x, never of another row. */
    CF_VECTOR
    for (int64_t i = 0; i < n; i++) dx[i] = scale * (ROW_EXP(x[i] - all) - share);
    dx[id] -= scale * keep;
}

/* y = (x - mean) rstd gamma + beta; gamma and beta may be NULL, together. */
static inline void ROW(layernorm)(const T *x, const T *gamma, const T *beta, int64_t n, double eps, T *y, double *mean,
                                  double *rstd) {
    *mean = CF_K(block_sum)(ROW_COMPUTE, x, n) / (double)n;
    const T middle = (T)*mean;
    CF_VECTOR
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - middle;
    *rstd = 1 / sqrt(CF_K(block_sumsq)(ROW_COMPUTE, y, n) / (double)n + eps);
    const T scale = (T)*rstd;
    if (gamma) {
        CF_VECTOR
        for (int64_t i = 0; i < n; i++) y[i] = y[i] * scale * gamma[i] + beta[i];
    } else {
        for (int64_t i = 0; i < n; i++) y[i] *= scale;
    }
}

/* dx = rstd (h - mean(h) - xhat mean(h xhat)) with h = dy gamma; and, unless NULL, dgamma += dy xhat, dbeta += dy.
 * xhat [n] is a temporary. */
static inline void ROW(layernorm_bw)(const T *dy, const T *x, const T *gamma, double mean, double rstd, int64_t n,
                                     T *restrict xhat, T *dx, T *restrict dgamma, T *restrict dbeta) {
    const T middle = (T)mean, scale = (T)rstd;
    for (int64_t i = 0; i < n; i++) xhat[i] = (x[i] - middle) * scale;
    if (dgamma) {
        for (int64_t i = 0; i < n; i++) {
            dgamma[i] += dy[i] * xhat[i];
            dbeta[i] += dy[i];
        }
    }
    T h[ROW_LANES] = {0}, hx[ROW_LANES] = {0};
    double sum = 0, sumx = 0;
    int64_t i = 0;
    for (; i + ROW_LANES <= n; i += ROW_LANES)
        for (int k = 0; k < ROW_LANES; k++) {
            const T v = gamma ? dy[i + k] * gamma[i + k] : dy[i + k];
            h[k] += v;
            hx[k] += v * xhat[i + k];
        }
    for (; i < n; i++) {
        const T v = gamma ? dy[i] * gamma[i] : dy[i];
        sum += v;
        sumx += v * xhat[i];
    }
    for (int k = 0; k < ROW_LANES; k++) sum += h[k], sumx += hx[k];
    const T mean_h = (T)(sum / (double)n), mean_hx = (T)(sumx / (double)n);
    if (gamma) {
        CF_VECTOR
        for (int64_t j = 0; j < n; j++) dx[j] = scale * (dy[j] * gamma[j] - mean_h - xhat[j] * mean_hx);
    } else {
        CF_VECTOR
        for (int64_t j = 0; j < n; j++) dx[j] = scale * (dy[j] - mean_h - xhat[j] * mean_hx);
    }
}
#undef T
#undef ROW
#undef ROW_COMPUTE
#undef ROW_EXP
