/* idx_test.c: IDX files of every type, and every way in which one can be wrong. */
#include "test.h"

#include "files.h"

static cfx_device *cpu(void) { return cfx_device_at(test_context(), 0); }

/* Reads a file of these bytes, plain or gzip. */
#define READ(bytes, gzip, out) cfx_idx_read(cpu(), test_file("data.idx", bytes, sizeof bytes, gzip), out)
#define REFUSED(bytes, gzip, message)                        \
    do {                                                     \
        cfx_tensor refused_ = {0};                           \
        CHECK_STATUS(READ(bytes, gzip, &refused_), CFX_EIO); \
        CHECK(test_says(message));                           \
        CHECK(test_says("data.idx"));                        \
        CHECK(!refused_._buffer);                            \
    } while (0)

static const unsigned char bytes_2x3[] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255};

static void check_2x3(int gzip) {
    cfx_tensor x = {0};
    if (!CHECK_STATUS(READ(bytes_2x3, gzip, &x), CFX_OK)) return;
    unsigned char got[6];
    CHECK_EQ(x._dtype, CFX_UINT8);
    CHECK_EQ(x._ndim, 2);
    CHECK_EQ(x._shape[0], 2);
    CHECK_EQ(x._shape[1], 3);
    CHECK_STATUS(cfx_read(&x, got, sizeof got), CFX_OK);
    CHECK(memcmp(got, bytes_2x3 + 12, 6) == 0);
    cfx_release(&x);
}

TEST(unsigned_bytes_are_read_from_a_plain_file) { check_2x3(0); }
TEST(unsigned_bytes_are_read_from_a_gzip_file) { check_2x3(1); }

static void check_int32(const unsigned char *bytes, size_t n) {
    cfx_tensor x = {0};
    int32_t got[2] = {0};
    if (!CHECK_STATUS(cfx_idx_read(cpu(), test_file("data.idx", bytes, n, 0), &x), CFX_OK)) return;
    CHECK_EQ(x._dtype, CFX_INT32);
    CHECK_STATUS(cfx_read(&x, got, sizeof got), CFX_OK);
    CHECK_EQ(got[0], -2);
    CHECK_EQ(got[1], 100);
    cfx_release(&x);
}

TEST(signed_bytes_shorts_and_ints_become_int32) {
    static const unsigned char b[] = {0, 0, 9, 1, 0, 0, 0, 2, 0xFE, 100};
    static const unsigned char h[] = {0, 0, 0xB, 1, 0, 0, 0, 2, 0xFF, 0xFE, 0, 100};
    static const unsigned char w[] = {0, 0, 0xC, 1, 0, 0, 0, 2, 0xFF, 0xFF, 0xFF, 0xFE, 0, 0, 0, 100};
    check_int32(b, sizeof b);
    check_int32(h, sizeof h);
    check_int32(w, sizeof w);
}

TEST(floats_and_doubles_keep_their_values) {
    static const unsigned char f[] = {0, 0, 0xD, 1, 0, 0, 0, 2, 0x3F, 0xC0, 0, 0, 0xC0, 0, 0, 0};
    static const unsigned char d[] = {0, 0, 0xE, 1, 0, 0, 0, 1, 0x3F, 0xF8, 0, 0, 0, 0, 0, 1};
    cfx_tensor x = {0};
    float single[2] = {0};
    double wide = 0;
    CHECK_STATUS(READ(f, 0, &x), CFX_OK);
    CHECK_EQ(x._dtype, CFX_FLOAT32);
    CHECK_STATUS(cfx_read(&x, single, sizeof single), CFX_OK);
    CHECK(single[0] == 1.5f && single[1] == -2.0f);
    cfx_release(&x);
    CHECK_STATUS(READ(d, 0, &x), CFX_OK);
    CHECK_EQ(x._dtype, CFX_FLOAT64);
    CHECK_STATUS(cfx_read(&x, &wide, sizeof wide), CFX_OK);
    CHECK(wide == 0x1.8000000000001p0);
    cfx_release(&x);
}

/* More than the first read of a gzip file takes, so that its buffer grows. */
TEST(a_large_gzip_file_is_read_whole) {
    enum { N = 3 * 1024 * 1024 + 5 };
    unsigned char *bytes = malloc(8 + N), *got = malloc(N);
    const unsigned char header[] = {0, 0, 8, 1, N >> 24, N >> 16 & 255, N >> 8 & 255, N & 255};
    memcpy(bytes, header, 8);
    for (int i = 0; i < N; i++) bytes[8 + i] = (unsigned char)(i * 7 + i / 251);
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_idx_read(cpu(), test_file("data.idx", bytes, 8 + N, 1), &x), CFX_OK);
    if (CHECK_STATUS(cfx_read(&x, got, N), CFX_OK)) CHECK(memcmp(got, bytes + 8, N) == 0);
    cfx_release(&x);
    free(bytes);
    free(got);
}

TEST(a_dimension_of_zero_gives_an_empty_tensor) {
    static const unsigned char bytes[] = {0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 3};
    cfx_tensor x = {0};
    CHECK_STATUS(READ(bytes, 0, &x), CFX_OK);
    CHECK_EQ(x._shape[0], 0);
    CHECK_EQ(x._shape[1], 3);
    cfx_release(&x);
}

TEST(a_file_that_cannot_be_read_is_named_with_the_reason) {
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_idx_read(cpu(), test_path("absent"), &x), CFX_EIO);
    CHECK(test_says("absent: No such file or directory"));
    CHECK_STATUS(cfx_idx_read(cpu(), "/tmp", &x), CFX_EIO);
    CHECK(test_says("/tmp: not a regular file"));
}

TEST(what_is_no_idx_file_is_refused) {
    static const unsigned char text[] = "hello, world";
    static const unsigned char type[] = {0, 0, 0xA, 1, 0, 0, 0, 1, 7};
    static const unsigned char none[] = {0, 0, 8, 0, 7};
    static const unsigned char nine[4 + 9 * 4 + 1] = {0, 0, 8, 9};
    REFUSED(text, 0, "not an IDX file: it starts with 68 65 6c 6c");
    REFUSED(text, 1, "not an IDX file");
    REFUSED(type, 0, "not an IDX file: it starts with 00 00 0a 01");
    REFUSED(none, 0, "0 dimensions");
    REFUSED(nine, 0, "9 dimensions; expected 1 to 8");
}

TEST(a_file_that_is_too_short_is_refused_with_both_sizes) {
    static const unsigned char empty[1] = {0};
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_idx_read(cpu(), test_file("data.idx", empty, 0, 0), &x), CFX_EIO);
    CHECK(test_says("truncated: expected 4 bytes, got 0"));
    static const unsigned char header[] = {0, 0, 8, 2, 0, 0, 0, 2};
    REFUSED(header, 0, "truncated: expected 12 bytes, got 8");
    REFUSED(header, 1, "truncated: expected 12 bytes, got 8");
    static const unsigned char values[] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4};
    REFUSED(values, 0, "truncated: expected 18 bytes, got 16");
    REFUSED(values, 1, "truncated: expected 18 bytes, got 16");
}

TEST(bytes_after_the_last_value_are_refused) {
    static const unsigned char bytes[] = {0, 0, 8, 1, 0, 0, 0, 2, 1, 2, 3};
    REFUSED(bytes, 0, "1 bytes after the last value (expected 10 bytes, got 11)");
    REFUSED(bytes, 1, "data after the last value (expected 10 bytes)");
}

/* A header may ask for any amount of memory; none of it is taken. */
TEST(absurd_dimensions_are_refused_before_memory_is_taken) {
    static const unsigned char overflow[] = {0,    0,    0xE,  3,    0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
                                             0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1,    2,    3};
    static const unsigned char huge[] = {0, 0, 8, 2, 0, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0xFF, 1, 2, 3};
    REFUSED(overflow, 0, "the dimensions are larger than any file");
    REFUSED(overflow, 1, "the dimensions are larger than any file");
    REFUSED(huge, 0, "truncated: expected 281474943156237 bytes, got 15");
    REFUSED(huge, 1, "truncated: expected 281474943156237 bytes, got 15");
}

/* Changes the gzip file of bytes_2x3 and reads it. */
static void check_damaged(size_t keep, size_t flip, const char *message) {
    size_t n;
    char *bytes = test_bytes(test_file("whole", bytes_2x3, sizeof bytes_2x3, 1), &n);
    if (flip) bytes[n - flip] ^= 0x55;
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_idx_read(cpu(), test_file("data.idx", bytes, n - keep, 0), &x), CFX_EIO);
    CHECK(test_says(message));
    free(bytes);
}

TEST(a_damaged_gzip_file_is_refused) {
    check_damaged(0, 8, "corrupt gzip data");       /* the checksum */
    check_damaged(0, 4, "corrupt gzip data");       /* the length */
    check_damaged(4, 0, "truncated gzip data");     /* cut in the trailer */
    check_damaged(14, 0, "(the gzip data is cut)"); /* cut in the values */
}

TEST(null_arguments_are_refused) {
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_idx_read(NULL, "x", &x), CFX_EARG);
    CHECK_STATUS(cfx_idx_read(cpu(), NULL, &x), CFX_EARG);
    CHECK_STATUS(cfx_idx_read(cpu(), "x", NULL), CFX_EARG);
}

TEST(an_interrupt_stops_a_read) {
    cfx_tensor x = {0};
    const char *path = test_file("data.idx", bytes_2x3, sizeof bytes_2x3, 0);
    cfx_interrupt(test_context());
    CHECK_STATUS(cfx_idx_read(cpu(), path, &x), CFX_EINTERRUPT);
    CHECK_STATUS(cfx_idx_read(cpu(), path, &x), CFX_OK);
    cfx_release(&x);
}
