/* csv.c: tables of numbers, one row a line.
 *
 * Numbers only: no quotes, no text; what is no number is refused with its line and column, because a silent
 * NaN would be found hours later.  Parsing does not depend on the locale.
 */
#include "data/lines.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"

enum { FIRST_VALUES = 4096, SHOWN = 32 /* characters of a bad field in a message */ };

typedef struct table {
    const char *path;
    int32_t dtype;
    char separator;
    locale_t c_locale;
    unsigned char *values;
    size_t count, room; /* in values */
    int64_t rows, columns;
    int64_t line;  /* being parsed */
    int64_t blank; /* the first empty line, 0: none yet; only more empty lines may follow */
} table;

/* ---- numbers --------------------------------------------------------------------------------------- */

static int is_digit(char c) { return c >= '0' && c <= '9'; }

/* Decimal numbers of up to 18 digits whose digits and power of ten are exact in a double: one rounding, so the
 * result is strtod's (Clinger 1990), at a fifth of its time.  0: not such a number, or not a number. */
static int parse_fast(const char *p, const char *end, double *out) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    if (end - p > 40) return 0;
    const int negative = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) p++;
    uint64_t digits = 0;
    int seen = 0, scale = 0;
    for (; p < end && is_digit(*p); p++, seen++) digits = digits * 10 + (uint64_t)(*p - '0');
    if (p < end && *p == '.')
        for (p++; p < end && is_digit(*p); p++, seen++, scale--) digits = digits * 10 + (uint64_t)(*p - '0');
    if (seen < 1 || seen > 18 || digits > (UINT64_C(1) << 53)) return 0;
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        const int down = p < end && *p == '-';
        if (p < end && (*p == '-' || *p == '+')) p++;
        int exponent = 0;
        const char *first = p;
        for (; p < end && is_digit(*p) && p - first < 3; p++) exponent = exponent * 10 + (*p - '0');
        if (p == first) return 0;
        scale += down ? -exponent : exponent;
    }
    if (p != end || scale < -22 || scale > 22) return 0;
    const double value = scale < 0 ? (double)digits / powers[-scale] : (double)digits * powers[scale];
    *out = negative ? -value : value;
    return 1;
}

/* nan, inf and infinity in any case, with or without a sign. */
static int parse_word(const char *p, const char *end, double *out) {
    const int negative = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) p++;
    char word[9] = "";
    if (end - p > 8) return 0;
    for (int i = 0; p + i < end; i++) word[i] = (char)(p[i] | 0x20);
    if (strcmp(word, "nan") == 0) *out = (double)NAN;
    else if (strcmp(word, "inf") == 0 || strcmp(word, "infinity") == 0)
        *out = negative ? -(double)INFINITY : (double)INFINITY;
    else return 0;
    return 1;
}

/* Refuses what strtod would take beyond decimal numbers: hexadecimal, nan(...), spaces. */
static int parse_number(const table *t, const char *p, const char *end, double *out) {
    if (parse_fast(p, end, out)) return 1;
    for (const char *c = p; c < end; c++)
        if (!is_digit(*c) && !strchr("+-.eE", *c)) return parse_word(p, end, out);
    char *stop;
    *out = strtod_l(p, &stop, t->c_locale);
    return stop == end && p < end;
}

/* ---- fields ---------------------------------------------------------------------------------------- */

static cfx_status bad_field(const table *t, int64_t column, const char *what, const char *p, const char *end) {
    char shown[SHOWN + 4];
    size_t n = (size_t)(end - p);
    if (n > SHOWN) n = SHOWN;
    for (size_t i = 0; i < n; i++) shown[i] = p[i] >= ' ' && p[i] <= '~' ? p[i] : '?';
    strcpy(shown + n, (size_t)(end - p) > n ? "..." : "");
    return cf_fail(CFX_EIO, "%s: line %" PRId64 ", column %" PRId64 ": expected a number%s, found '%s'", t->path,
                   t->line, column, what, shown);
}

static cfx_status push(table *t, double value, int64_t column, const char *p, const char *end) {
    const size_t size = (size_t)cfx_dtype_size(t->dtype);
    if (t->count == t->room) {
        const size_t room = t->room ? t->room * 2 : FIRST_VALUES;
        size_t bytes;
        void *grown = t->values;
        if (!cf_mul_size(room, size, &bytes)) bytes = SIZE_MAX; /* more than there can be */
        if (cf_realloc(&grown, bytes) != CFX_OK) return cf_fail_in(CFX_EMEMORY, t->path);
        t->values = grown;
        t->room = room;
    }
    /* A number that overflows is an error; "inf" is not. */
    const double rounded = t->dtype == CFX_FLOAT32 ? (double)(float)value : value;
    double word;
    if (isinf(rounded) && !parse_word(p, end, &word))
        return bad_field(t, column, t->dtype == CFX_FLOAT32 ? " in the range of float32" : " in the range of float64",
                         p, end);
    if (t->dtype == CFX_FLOAT32) ((float *)t->values)[t->count++] = (float)value;
    else ((double *)t->values)[t->count++] = value;
    return CFX_OK;
}

static cfx_status parse_field(table *t, int64_t column, const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\t')) p++;
    while (p < end && (end[-1] == ' ' || end[-1] == '\t')) end--;
    double value;
    if (!parse_number(t, p, end, &value)) return bad_field(t, column, "", p, end);
    return push(t, value, column, p, end);
}

/* A separator stands between two fields; of spaces, a run counts as one and those around the line as none. */
static cfx_status parse_line(table *t, const char *p, const char *end) {
    while (p < end && *p == ' ') p++;
    while (p < end && end[-1] == ' ') end--;
    if (p == end) {
        if (!t->blank) t->blank = t->line;
        return CFX_OK;
    }
    if (t->blank) return cf_fail(CFX_EIO, "%s: line %" PRId64 ": an empty line between rows", t->path, t->blank);
    int64_t column = 0;
    for (const char *stop;; p = stop + 1) {
        if (t->separator == ' ')
            while (*p == ' ') p++;
        stop = memchr(p, t->separator, (size_t)(end - p));
        CF_TRY(parse_field(t, ++column, p, stop ? stop : end));
        if (!stop) break;
    }
    if (t->rows && column != t->columns)
        return cf_fail(CFX_EIO, "%s: line %" PRId64 ": %" PRId64 " columns, but %" PRId64 " in the rows before",
                       t->path, t->line, column, t->columns);
    t->columns = column;
    t->rows++;
    return CFX_OK;
}

/* ---- files ----------------------------------------------------------------------------------------- */

static cfx_status read_table(cf_lines *l, table *t, int32_t skip) {
    for (;;) {
        char *line;
        size_t length;
        CF_TRY(cf_lines_next(l, &line, &length));
        if (!line) break;
        if (l->number <= skip) continue;
        t->line = l->number;
        CF_TRY(parse_line(t, line, line + length));
    }
    if (!t->rows)
        return cf_fail(CFX_EIO, "%s: no rows in %" PRId64 " lines, of which %" PRId32 " are to be skipped", t->path,
                       l->number, skip);
    return CFX_OK;
}

static cfx_status check_arguments(const cfx_device *device, const char *path, int32_t separator, int32_t skip,
                                  int32_t dtype, const cfx_tensor *out) {
    if (!device || !path || !out) return cf_fail(CFX_EARG, "csv_read: device, path or out is NULL");
    if (separator != '\t' && (separator < ' ' || separator > '~' || isalnum(separator) || strchr("+-.", separator)))
        return cf_fail(CFX_EARG, "csv_read: separator %" PRId32 " is no tab, space or punctuation", separator);
    if (skip < 0) return cf_fail(CFX_EARG, "csv_read: skip is %" PRId32, skip);
    if (dtype != CFX_FLOAT32 && dtype != CFX_FLOAT64)
        return cf_fail(CFX_EARG, "csv_read: dtype must be float32 or float64");
    return CFX_OK;
}

CFX_API cfx_status cfx_csv_read(cfx_device *device, const char *path, int32_t separator, int32_t skip, int32_t dtype,
                                cfx_tensor *out) {
    CF_TRY(check_arguments(device, path, separator, skip, dtype, out));
    table t = {.path = path, .dtype = dtype, .separator = (char)separator, .c_locale = cf_locale_c()};
    cf_lines lines;
    cfx_status status = cf_lines_open(cfx_device_context(device), path, &lines);
    if (status == CFX_OK) status = read_table(&lines, &t, skip);
    cf_lines_close(&lines);
    if (status == CFX_OK) {
        const int64_t shape[2] = {t.rows, t.columns};
        status = cfx_from_host(device, dtype, 2, shape, t.values, out);
    }
    free(t.values);
    return status == CFX_OK ? CFX_OK : cf_fail_in(status, "csv_read");
}
