/* channel_math.h: the loops over wide rows of channels.h, for floats or doubles: the includer defines T and ROW(name).
 *
 * `step` elements lie between rows.  A loop has what is constant where it is called (how many rows, gate, relu) in its
 * code.
 */
#define ROW_INLINE static inline __attribute__((always_inline))

/* sum += x - shift, square += its square: of so many rows. */
ROW_INLINE void ROW(moments_of)(const int rows, const T *x, int64_t step, int64_t n, const T *restrict shift,
                                T *restrict sum, T *restrict square) {
    CF_VECTOR
    for (int64_t i = 0; i < n; i++) {
        T s = 0, q = 0;
        for (int k = 0; k < rows; k++) {
            const T d = x[k * step + i] - shift[i];
            s += d;
            q += d * d;
        }
        sum[i] += s;
        square[i] += q;
    }
}
static void ROW(moments)(int64_t rows, const T *x, int64_t step, int64_t n, const T *shift, T *sum, T *square) {
    if (rows == CHANNEL_ROWS) ROW(moments_of)(CHANNEL_ROWS, x, step, n, shift, sum, square);
    else
        for (int64_t r = 0; r < rows; r++) ROW(moments_of)(1, x + r * step, step, n, shift, sum, square);
}

/* The gradient past the gate; normal: the normalised x, before relu. */
ROW_INLINE T ROW(past)(const cf_gate gate, T g, T y, T normal) {
    if (gate == CF_GATE_OUTPUT) return y <= 0 ? 0 : g;
    if (gate == CF_GATE_INPUT) return normal <= 0 ? 0 : g;
    return g;
}

/* sum_g += g, sum_gx += g (x - mean). */
ROW_INLINE void ROW(slopes_of)(const int rows, const cf_gate gate, const T *dy, const T *x, const T *y, int64_t step,
                               int64_t n, const T *mean, const T *scale, const T *shift, T *restrict sum_g,
                               T *restrict sum_gx) {
    CF_VECTOR
    for (int64_t i = 0; i < n; i++) {
        T s = 0, sx = 0;
        for (int k = 0; k < rows; k++) {
            const int64_t at = k * step + i;
            const T d = x[at] - mean[i];
            const T g = ROW(past)(gate, dy[at], gate == CF_GATE_OUTPUT ? y[at] : 0,
                                  gate == CF_GATE_INPUT ? d * scale[i] + shift[i] : 0);
            s += g;
            sx += g * d;
        }
        sum_g[i] += s;
        sum_gx[i] += sx;
    }
}
ROW_INLINE void ROW(slopes_gated)(const cf_gate gate, int64_t rows, const T *dy, const T *x, const T *y, int64_t step,
                                  int64_t n, const T *mean, const T *scale, const T *shift, T *sum_g, T *sum_gx) {
    if (rows == CHANNEL_ROWS) {
        ROW(slopes_of)(CHANNEL_ROWS, gate, dy, x, y, step, n, mean, scale, shift, sum_g, sum_gx);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = r * step;
        ROW(slopes_of)(1, gate, dy + at, x + at, y ? y + at : NULL, step, n, mean, scale, shift, sum_g, sum_gx);
    }
}
static void ROW(slopes)(cf_gate gate, int64_t rows, const T *dy, const T *x, const T *y, int64_t step, int64_t n,
                        const T *mean, const T *scale, const T *shift, T *sum_g, T *sum_gx) {
#define GATED(gate) ROW(slopes_gated)(gate, rows, dy, x, y, step, n, mean, scale, shift, sum_g, sum_gx)
    if (gate == CF_GATE_OUTPUT) GATED(CF_GATE_OUTPUT);
    else if (gate == CF_GATE_INPUT) GATED(CF_GATE_INPUT);
    else GATED(CF_GATE_NONE);
#undef GATED
}

ROW_INLINE void ROW(map_of)(const int relu, const T *x, const T *residual, int64_t n, const T *mean, const T *scale,
                            const T *shift, T *y) {
    CF_VECTOR
    for (int64_t i = 0; i < n; i++) {
        const T normal = (x[i] - mean[i]) * scale[i] + shift[i];
        const T v = residual ? normal + residual[i] : normal;
        y[i] = relu && v <= 0 ? 0 : v;
    }
}
static void ROW(map)(int relu, const T *x, const T *residual, int64_t n, const T *mean, const T *scale, const T *shift,
                     T *y) {
    if (relu && residual) ROW(map_of)(1, x, residual, n, mean, scale, shift, y);
    else if (relu) ROW(map_of)(1, x, NULL, n, mean, scale, shift, y);
    else if (residual) ROW(map_of)(0, x, residual, n, mean, scale, shift, y);
    else ROW(map_of)(0, x, NULL, n, mean, scale, shift, y);
}

/* dx, and unless NULL dresidual; slope NULL: dx = scale g. */
ROW_INLINE void ROW(gradient_of)(const cf_gate gate, const T *dy, const T *x, const T *y, int64_t n, const T *mean,
                                 const T *scale, const T *shift, const T *flat, const T *slope, T *dx, T *dresidual) {
    CF_VECTOR
    for (int64_t i = 0; i < n; i++) {
        const T d = slope || gate == CF_GATE_INPUT ? x[i] - mean[i] : 0;
        const T g = ROW(past)(gate, dy[i], gate == CF_GATE_OUTPUT ? y[i] : 0,
                              gate == CF_GATE_INPUT ? d * scale[i] + shift[i] : 0);
        if (dresidual) dresidual[i] = g;
        dx[i] = slope ? scale[i] * g - flat[i] - d * slope[i] : scale[i] * g;
    }
}
ROW_INLINE void ROW(gradient_gated)(const cf_gate gate, const T *dy, const T *x, const T *y, int64_t n, const T *mean,
                                    const T *scale, const T *shift, const T *flat, const T *slope, T *dx,
                                    T *dresidual) {
    if (slope && dresidual) ROW(gradient_of)(gate, dy, x, y, n, mean, scale, shift, flat, slope, dx, dresidual);
    else if (slope) ROW(gradient_of)(gate, dy, x, y, n, mean, scale, shift, flat, slope, dx, NULL);
    else if (dresidual) ROW(gradient_of)(gate, dy, x, y, n, mean, scale, shift, NULL, NULL, dx, dresidual);
    else ROW(gradient_of)(gate, dy, x, y, n, mean, scale, shift, NULL, NULL, dx, NULL);
}
static void ROW(gradient)(cf_gate gate, const T *dy, const T *x, const T *y, int64_t n, const T *mean, const T *scale,
                          const T *shift, const T *flat, const T *slope, T *dx, T *dresidual) {
#define GATED(gate) ROW(gradient_gated)(gate, dy, x, y, n, mean, scale, shift, flat, slope, dx, dresidual)
    if (gate == CF_GATE_OUTPUT) GATED(CF_GATE_OUTPUT);
    else if (gate == CF_GATE_INPUT) GATED(CF_GATE_INPUT);
    else GATED(CF_GATE_NONE);
#undef GATED
}

/* out [lanes, c] <- the number of each channel. */
static void ROW(spread)(int64_t lanes, int64_t c, const double *number, T *out) {
    for (int64_t k = 0; k < lanes; k++)
        for (int64_t i = 0; i < c; i++) out[k * c + i] = (T)number[i];
}

/* The moments of so many rows, given sums of what is left of them without `shift`, join those of `had` others. */
static void ROW(join_moments)(int64_t n, int64_t rows, int64_t had, const T *shift, const T *sum, const T *square,
                              double *restrict mean, double *restrict away) {
    const double count = (double)rows, share = count / (double)(rows + had), weight = share * (double)had;
    for (int64_t i = 0; i < n; i++) {
        const double left = (double)sum[i] / count, apart = (double)shift[i] + left - mean[i];
        mean[i] += apart * share;
        away[i] += (double)square[i] - left * (double)sum[i] + apart * apart * weight;
    }
}
static void ROW(join_sums)(int64_t n, const T *sum, double *restrict into) {
    for (int64_t i = 0; i < n; i++) into[i] += (double)sum[i];
}
#undef ROW_INLINE
#undef T
#undef ROW
