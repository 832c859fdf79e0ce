/* gemm.h: our own matrix product, for what oneDNN does not have.  Included once for each element type T, with
 * GEMM(name) giving names; integers are unsigned, so that they wrap.
 *
 * Goto and van de Geijn ("Anatomy of high-performance matrix multiplication", 2008): blocks of a and b are
 * copied into panels, which a small kernel multiplies in registers.  Blocks of k are added in order and the
 * other two dimensions are only cut, so every element of y is summed in one order, whatever the team.
 */

typedef T GEMM(vec) __attribute__((vector_size(GEMM_BYTES), aligned(sizeof(T)), may_alias));
enum {
    GEMM(LANES) = GEMM_BYTES / sizeof(T),
    GEMM(NR) = 2 * GEMM(LANES) /* columns of the small kernel: two vectors */
};

/* Room for the panels of one product, in elements. */
static int64_t GEMM(room)(const cf_product *p) {
    const int64_t n = p->n < GEMM_MC ? p->n : GEMM_MC, m = p->m < GEMM_NC ? p->m : GEMM_NC;
    const int64_t k = p->k < GEMM_KC ? p->k : GEMM_KC;
    return (cf_round_up(n, GEMM_MR) + cf_round_up(m, GEMM(NR))) * k;
}

/* Panels [from, to) of `width` rows of x [rows, k] -> [panel][k][width], with zeros below the last row. */
static void GEMM(pack)(const T *x, int64_t rows, int64_t row, int64_t k, int64_t col, int64_t width, int64_t from,
                       int64_t to, T *out) {
    for (int64_t panel = from; panel < to; panel++) {
        T *restrict o = out + panel * width * k;
        const T *restrict s = x + panel * width * row;
        const int64_t have = rows - panel * width < width ? rows - panel * width : width;
        if (have < width) memset(o, 0, (size_t)(width * k) * sizeof(T));
        if (row == 1) {
            for (int64_t l = 0; l < k; l++)
                for (int64_t i = 0; i < have; i++) o[l * width + i] = s[l * col + i];
        } else {
            for (int64_t i = 0; i < have; i++)
                for (int64_t l = 0; l < k; l++) o[l * width + i] = s[i * row + l * col];
        }
    }
}

/* y [rows, cols] (+)= a panel times b panel; rows and cols may be fewer than a full tile's. */
static void GEMM(tile)(int64_t k, const T *restrict a /* [k, MR] */, const T *restrict b /* [k, NR] */, T *y,
                       int64_t y_row, int64_t rows, int64_t cols, int add) {
    GEMM(vec) sum[GEMM_MR][2];
    for (int i = 0; i < GEMM_MR; i++) sum[i][0] = sum[i][1] = (GEMM(vec)){0};
    for (int64_t l = 0; l < k; l++, a += GEMM_MR, b += GEMM(NR)) {
        const GEMM(vec) b0 = *(const GEMM(vec) *)b, b1 = *(const GEMM(vec) *)(b + GEMM(LANES));
#pragma GCC unroll 16
        for (int i = 0; i < GEMM_MR; i++) {
            sum[i][0] += a[i] * b0;
            sum[i][1] += a[i] * b1;
        }
    }
    if (rows == GEMM_MR && cols == GEMM(NR)) {
        for (int i = 0; i < GEMM_MR; i++) {
            GEMM(vec) *y0 = (GEMM(vec) *)(y + i * y_row), *y1 = (GEMM(vec) *)(y + i * y_row + GEMM(LANES));
            if (add) sum[i][0] += *y0, sum[i][1] += *y1;
            *y0 = sum[i][0];
            *y1 = sum[i][1];
        }
        return;
    }
    T edge[GEMM_MR][GEMM(NR)];
    memcpy(edge, sum, sizeof edge);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) y[i * y_row + j] = add ? y[i * y_row + j] + edge[i][j] : edge[i][j];
}

/* Thread t's part of one product, by a team that is in this function together. */
static void GEMM(share)(const cf_product *p, const T *a, const T *b, T *y, T *room, int team, int t) {
    T *const a_panels = room;
    for (int64_t j = 0; j < p->m; j += GEMM_NC) {
        const int64_t m = p->m - j < GEMM_NC ? p->m - j : GEMM_NC, m_panels = (m + GEMM(NR) - 1) / GEMM(NR);
        for (int64_t l = 0; l < p->k; l += GEMM_KC) {
            const int64_t k = p->k - l < GEMM_KC ? p->k - l : GEMM_KC;
            for (int64_t i = 0; i < p->n; i += GEMM_MC) {
                const int64_t n = p->n - i < GEMM_MC ? p->n - i : GEMM_MC, n_panels = (n + GEMM_MR - 1) / GEMM_MR;
                T *const b_panels =
                    room + cf_round_up(p->n < GEMM_MC ? p->n : GEMM_MC, GEMM_MR) * (p->k < GEMM_KC ? p->k : GEMM_KC);
                int64_t from, to;
                cf_cpu_share(n_panels, 1, team, t, &from, &to);
                GEMM(pack)(a + i * p->a_row + l * p->a_col, n, p->a_row, k, p->a_col, GEMM_MR, from, to, a_panels);
                if (i == 0) {
                    cf_cpu_share(m_panels, 1, team, t, &from, &to);
                    GEMM(pack)(b + l * p->b_row + j * p->b_col, m, p->b_col, k, p->b_row, GEMM(NR), from, to, b_panels);
                }
                if (team > 1) {
#pragma omp barrier
                }
                cf_cpu_share(n_panels * m_panels, 1, team, t, &from, &to);
                for (int64_t tile = from; tile < to; tile++) {
                    const int64_t r = tile % n_panels, c = tile / n_panels; /* b's panel stays in the cache */
                    GEMM(tile)
                    (k, a_panels + r * GEMM_MR * k, b_panels + c * GEMM(NR) * k,
                     y + (i + r * GEMM_MR) * p->y_row + j + c * GEMM(NR), p->y_row,
                     n - r * GEMM_MR < GEMM_MR ? n - r * GEMM_MR : GEMM_MR,
                     m - c * GEMM(NR) < GEMM(NR) ? m - c * GEMM(NR) : GEMM(NR), p->add || l > 0);
                }
                if (team > 1) {
#pragma omp barrier
                }
            }
        }
    }
}

/* The whole of p; bias and activation are the caller's.  room: [team][GEMM(room)]. */
static void GEMM(product)(cf_worker *worker, const cf_product *p, T *room) {
    const int64_t steps = p->n * p->m * p->k / GEMM(LANES);
    const int team = cf_cpu_team(worker, p->batch * steps);
    /* Small products of a batch are dealt out whole; a large one is made by all. */
    const int whole = team > 1 && p->batch >= team && steps < 16 * CF_GRAIN;
    const int64_t size = GEMM(room)(p);
    const T *a = p->a, *b = p->b;
    T *y = p->y;
#pragma omp parallel num_threads(team) if (team > 1)
    {
        const int t = omp_get_thread_num(), threads = whole ? 1 : team, thread = whole ? 0 : t;
        T *own = whole ? room + t * size : room;
        int64_t from = 0, to = p->batch;
        if (whole) cf_cpu_share(p->batch, 1, team, t, &from, &to);
        for (int64_t i = from; i < to; i++)
            GEMM(share)(p, a + i * p->a_batch, b + i * p->b_batch, y + i * p->y_batch, own, threads, thread);
    }
}
#undef T
#undef GEMM
