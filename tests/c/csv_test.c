/* csv_test.c: tables of numbers, and what is refused with its line and column. */
#include "test.h"

#include <locale.h>

#include "files.h"
#include "fuzz.h"

static cfx_device *cpu(void) { return cfx_device_at(test_context(), 0); }

static cfx_status read_text(const char *text, int separator, int skip, int dtype, cfx_tensor *out) {
    return cfx_csv_read(cpu(), test_file("data.csv", text, strlen(text), 0), separator, skip, dtype, out);
}

/* Reads `text` as float64 and compares all values. */
static void check_table(const char *text, int separator, int skip, int64_t rows, int64_t columns,
                        const double *expected) {
    cfx_tensor x = {0};
    double got[64];
    if (!CHECK_STATUS(read_text(text, separator, skip, CFX_FLOAT64, &x), CFX_OK)) return;
    CHECK_EQ(x._ndim, 2);
    CHECK_EQ(x._shape[0], rows);
    CHECK_EQ(x._shape[1], columns);
    CHECK_STATUS(cfx_read(&x, got, (size_t)(rows * columns) * sizeof *got), CFX_OK);
    for (int64_t i = 0; i < rows * columns; i++) CHECK_NEAR(got[i], expected[i], 0);
    cfx_release(&x);
}

static void check_refused(const char *text, int separator, int skip, int dtype, const char *message) {
    cfx_tensor x = {0};
    CHECK_STATUS(read_text(text, separator, skip, dtype, &x), CFX_EIO);
    CHECK(test_says(message));
    CHECK(test_says("data.csv"));
    CHECK(!x._buffer);
}

static const double one_to_six[] = {1, 2, 3, 4, 5, 6};

TEST(rows_become_a_table) { check_table("1,2,3\n4,5,6\n", ',', 0, 2, 3, one_to_six); }
TEST(the_last_line_needs_no_end) { check_table("1,2,3\n4,5,6", ',', 0, 2, 3, one_to_six); }
TEST(windows_line_ends_are_taken) { check_table("1,2,3\r\n4,5,6\r\n", ',', 0, 2, 3, one_to_six); }
TEST(spaces_around_numbers_do_not_count) { check_table(" 1 ,\t2, 3\n4 , 5,6  \n", ',', 0, 2, 3, one_to_six); }
TEST(empty_lines_at_the_end_do_not_count) { check_table("1,2,3\n4,5,6\n\n  \r\n", ',', 0, 2, 3, one_to_six); }
TEST(header_lines_are_skipped) { check_table("a,b,c\n\"units\"\n1,2,3\n4,5,6\n", ',', 2, 2, 3, one_to_six); }
TEST(a_byte_order_mark_is_skipped) {
    check_table("\xEF\xBB\xBF"
                "1,2,3\n4,5,6\n",
                ',', 0, 2, 3, one_to_six);
}
TEST(tabs_and_semicolons_separate) {
    check_table("1\t2\t3\n4\t 5\t6\n", '\t', 0, 2, 3, one_to_six);
    check_table("1;2;3\n4;5;6\n", ';', 0, 2, 3, one_to_six);
}
TEST(a_run_of_spaces_separates_once) { check_table("  1  2 3\n4 5    6 \n", ' ', 0, 2, 3, one_to_six); }

TEST(numbers_are_read_to_the_last_bit) {
    const double expected[] = {0.1,    -0.0, 1e-5,    123456789012345678.0,   1.7976931348623157e308,
                               5e-324, 1e22, 1e23,    0.30000000000000004,    9007199254740993.0,
                               -.5,    5.,   -1.5e-3, 3.14159265358979323846, 2.5e+3};
    check_table("0.1,-0,1e-5,123456789012345678,1.7976931348623157e308,5e-324,1e22,1e23,0.30000000000000004,"
                "9007199254740993,-.5,5.,-1.5E-3,3.14159265358979323846,+2.5e+3\n",
                ',', 0, 1, 15, expected);
}

TEST(nan_and_infinity_are_numbers) {
    const double inf = (double)INFINITY, expected[] = {(double)NAN, inf, -inf, inf, -inf, (double)NAN};
    check_table("nan,inf,-inf,Infinity,-INFINITY,NaN\n", ',', 0, 1, 6, expected);
}

TEST(float32_is_rounded_from_the_number) {
    cfx_tensor x = {0};
    float got[3];
    CHECK_STATUS(read_text("0.1,-inf,16777217\n", ',', 0, CFX_FLOAT32, &x), CFX_OK);
    CHECK_EQ(x._dtype, CFX_FLOAT32);
    CHECK_STATUS(cfx_read(&x, got, sizeof got), CFX_OK);
    CHECK(got[0] == 0.1f && isinf(got[1]) && got[2] == 16777216.0f);
    cfx_release(&x);
}

/* With a locale whose decimal point is a comma, where the machine has one. */
TEST(the_locale_changes_nothing) {
    const char *names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    for (size_t i = 0; i < sizeof names / sizeof *names && !setlocale(LC_ALL, names[i]); i++) continue;
    const double expected[] = {1.5, 0.30000000000000000001};
    check_table("1.5,0.30000000000000000001\n", ',', 0, 1, 2, expected);
    setlocale(LC_ALL, "C");
}

/* Longer than any buffer to begin with: one line of 30,000 columns, then 30,000 lines of one. */
TEST(long_lines_and_long_files_are_read) {
    enum { N = 30000 };
    char *text = malloc(N * 8 + 1);
    double *got = malloc(N * sizeof *got);
    for (int rows = 0; rows < 2; rows++) {
        size_t at = 0;
        for (int i = 0; i < N; i++) at += (size_t)sprintf(text + at, "%d%c", i, rows || i == N - 1 ? '\n' : ',');
        cfx_tensor x = {0};
        const char *path = test_file("data.csv", text, at, rows); /* the second one in gzip */
        CHECK_STATUS(cfx_csv_read(cpu(), path, ',', 0, CFX_FLOAT64, &x), CFX_OK);
        CHECK_EQ(x._shape[0], rows ? N : 1);
        CHECK_EQ(x._shape[1], rows ? 1 : N);
        CHECK_STATUS(cfx_read(&x, got, N * sizeof *got), CFX_OK);
        int wrong = 0;
        for (int i = 0; i < N; i++) wrong += got[i] != i;
        CHECK_EQ(wrong, 0);
        cfx_release(&x);
    }
    free(text);
    free(got);
}

TEST(what_is_no_number_is_named_with_its_place) {
    check_refused("1,2\n3,abc\n", ',', 0, CFX_FLOAT64, "line 2, column 2: expected a number, found 'abc'");
    check_refused("x,y\n1,2\n3,\"4\"\n", ',', 1, CFX_FLOAT64, "line 3, column 2: expected a number, found '\"4\"'");
    check_refused("1,,3\n", ',', 0, CFX_FLOAT64, "line 1, column 2: expected a number, found ''");
    check_refused("1,2,\n", ',', 0, CFX_FLOAT64, "line 1, column 3: expected a number, found ''");
    check_refused("0x10\n", ',', 0, CFX_FLOAT64, "found '0x10'");
    check_refused("nan(1)\n", ',', 0, CFX_FLOAT64, "found 'nan(1)'");
    check_refused("1 2\n", ',', 0, CFX_FLOAT64, "found '1 2'");
    check_refused("1e\n", ',', 0, CFX_FLOAT64, "found '1e'");
    check_refused("--1\n", ',', 0, CFX_FLOAT64, "found '--1'");
    check_refused("1.2.3\n", ',', 0, CFX_FLOAT64, "found '1.2.3'");
    check_refused(".\n", ',', 0, CFX_FLOAT64, "found '.'");
    check_refused("1\v\n", ',', 0, CFX_FLOAT64, "found '1?'");
    check_refused("aaaaaaaaaabbbbbbbbbbccccccccccddddd\n", ',', 0, CFX_FLOAT64, "ccccccccccdd...'");
}

TEST(a_nul_byte_is_no_end_of_a_number) {
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_csv_read(cpu(), test_file("data.csv", "1\0002,3\n", 6, 0), ',', 0, CFX_FLOAT64, &x), CFX_EIO);
    CHECK(test_says("found '1?2'"));
}

TEST(a_number_beyond_the_type_is_refused) {
    check_refused("1\n1e39\n", ',', 0, CFX_FLOAT32, "line 2, column 1: expected a number in the range of float32");
    check_refused("1e999\n", ',', 0, CFX_FLOAT64, "expected a number in the range of float64, found '1e999'");
}

TEST(ragged_rows_are_refused) {
    check_refused("1,2,3\n4,5\n", ',', 0, CFX_FLOAT64, "line 2: 2 columns, but 3 in the rows before");
    check_refused("1,2\n4,5,6\n", ',', 0, CFX_FLOAT64, "line 2: 3 columns, but 2 in the rows before");
    check_refused("1,2\n\n3,4\n", ',', 0, CFX_FLOAT64, "line 2: an empty line between rows");
}

TEST(a_file_without_rows_is_refused) {
    check_refused("", ',', 0, CFX_FLOAT64, "no rows in 0 lines");
    check_refused("\n\n", ',', 0, CFX_FLOAT64, "no rows in 2 lines");
    check_refused("a,b\n", ',', 3, CFX_FLOAT64, "no rows in 1 lines, of which 3 are to be skipped");
}

TEST(missing_and_damaged_files_are_refused) {
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_csv_read(cpu(), test_path("absent"), ',', 0, CFX_FLOAT64, &x), CFX_EIO);
    CHECK(test_says("absent: No such file or directory"));
    size_t n;
    char *bytes = test_bytes(test_file("whole", "1,2,3\n4,5,6\n", 12, 1), &n);
    CHECK_STATUS(cfx_csv_read(cpu(), test_file("data.csv", bytes, n - 9, 0), ',', 0, CFX_FLOAT64, &x), CFX_EIO);
    CHECK(test_says("truncated gzip data"));
    bytes[n - 8] ^= 1;
    CHECK_STATUS(cfx_csv_read(cpu(), test_file("data.csv", bytes, n, 0), ',', 0, CFX_FLOAT64, &x), CFX_EIO);
    CHECK(test_says("corrupt gzip data"));
    free(bytes);
}

TEST(wrong_arguments_are_refused) {
    cfx_tensor x = {0};
    const int separators[] = {0, 'e', '1', '.', '-', '\n', 200};
    for (size_t i = 0; i < sizeof separators / sizeof *separators; i++)
        CHECK_STATUS(read_text("1\n", separators[i], 0, CFX_FLOAT64, &x), CFX_EARG);
    CHECK_STATUS(read_text("1\n", ',', -1, CFX_FLOAT64, &x), CFX_EARG);
    CHECK_STATUS(read_text("1\n", ',', 0, CFX_INT32, &x), CFX_EARG);
    CHECK_STATUS(read_text("1\n", ',', 0, -1, &x), CFX_EARG);
    CHECK_STATUS(cfx_csv_read(NULL, "x", ',', 0, CFX_FLOAT64, &x), CFX_EARG);
    CHECK_STATUS(cfx_csv_read(cpu(), NULL, ',', 0, CFX_FLOAT64, &x), CFX_EARG);
    CHECK_STATUS(cfx_csv_read(cpu(), "x", ',', 0, CFX_FLOAT64, NULL), CFX_EARG);
}

/* ---- any bytes ------------------------------------------------------------------------------------- */

enum { FUZZ_ROOM = 4096 };

/* Numbers as programs write them; of four rounds one damages the compressed file. */
static size_t damaged_table(int k, const char *packed, size_t packed_bytes, unsigned char *data) {
    static const char *const tables[] = {
        "1,2,3\n4,5,6\n7,8,9\n",
        "label,x,y\r\n1,0.5,-1e-5\r\n0,123456789012345678,1.7976931348623157e308\r\n",
        "0.1 -2.25 nan\n5e-324 inf 1e22\n\n",
    };
    if (k % 4 == 3) {
        memcpy(data, packed, packed_bytes);
        return mutate(data, packed_bytes, FUZZ_ROOM);
    }
    const size_t n = strlen(tables[k % 4]);
    memcpy(data, tables[k % 4], n);
    return mutate_text(data, n, FUZZ_ROOM);
}

/* What was read has as many values as its shape says, of which the last one can be read, too. */
static void check_values(const cfx_tensor *x) {
    const size_t bytes = (size_t)(x->_shape[0] * x->_shape[1]) * (size_t)cfx_dtype_size(x->_dtype);
    void *values = malloc(bytes);
    CHECK(x->_ndim == 2 && bytes > 0);
    CHECK_STATUS(cfx_read(x, values, bytes), CFX_OK);
    free(values);
}

TEST(any_bytes_are_numbers_or_refused) {
    unsigned char data[FUZZ_ROOM];
    size_t packed_bytes;
    int read = 0, refused = 0;
    const int rounds = fuzz_rounds(SANITIZED ? 300 : 600);
    char *packed = test_bytes(test_file("whole", "1,2,3\n4,5,6\n", 12, 1), &packed_bytes);
    for (int k = 0; k < rounds; k++) {
        static const char separators[] = ",, ,";
        cfx_tensor x = {0};
        state = (uint64_t)k;
        const size_t n = damaged_table(k, packed, packed_bytes, data);
        const char *path = test_file("data.csv", data, n, 0);
        const int dtype = k % 8 < 4 ? CFX_FLOAT32 : CFX_FLOAT64;
        const cfx_status status = cfx_csv_read(cpu(), path, separators[k % 4], k % 4 == 1, dtype, &x);
        if (status == CFX_OK) check_values(&x);
        read += status == CFX_OK;
        refused += status == CFX_EIO;
        cfx_release(&x);
    }
    CHECK_EQ(read + refused, rounds);
    CHECK(read > rounds / 20 && refused > rounds / 4);
    free(packed);
}
