/* safetensors_test.c: files that come back as they were written, and files that are refused. */
#include "test.h"

#include <fcntl.h>

#include "files.h"
#include "io/json.h"

static cfx_device *cpu(void) { return cfx_device_at(test_context(), 0); }

static void make(int32_t dtype, int32_t ndim, const int64_t *shape, const void *values, cfx_tensor *out) {
    CHECK_STATUS(cfx_from_host(cpu(), dtype, ndim, shape, values, out), CFX_OK);
}

/* Writes one float32 tensor of n values under `name`. */
static cfx_status write_one(const char *path, const char *name, const float *values, int64_t n) {
    cfx_tensor x = {0};
    make(CFX_FLOAT32, 1, &n, values, &x);
    const cfx_tensor *tensors[] = {&x};
    const cfx_status status = cfx_safetensors_write(path, 1, tensors, &name, 0, NULL, NULL);
    cfx_release(&x);
    return status;
}

/* Values of the tensor of that name, as bytes. */
static void check_values(const cfx_safetensors *f, const char *name, int32_t dtype, const void *values, size_t bytes) {
    for (int32_t i = 0; i < cfx_safetensors_count(f); i++) {
        if (strcmp(cfx_safetensors_name(f, i), name) != 0) continue;
        cfx_tensor x = {0};
        char got[256];
        CHECK_STATUS(cfx_safetensors_read(f, i, cpu(), &x), CFX_OK);
        CHECK_EQ(x._dtype, dtype);
        CHECK_STATUS(cfx_read(&x, got, bytes), CFX_OK);
        CHECK(memcmp(got, values, bytes) == 0);
        cfx_release(&x);
        return;
    }
    CHECK_STR("absent", name);
}

TEST(every_type_comes_back_as_it_was) {
    static const char *const names[CFX_DTYPES] = {"bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64"};
    static const unsigned char values[64] = {1, 0, 1, 1, 0, 0, 1, 0};
    cfx_tensor tensors[CFX_DTYPES] = {0};
    const cfx_tensor *list[CFX_DTYPES];
    for (int32_t d = 0; d < CFX_DTYPES; d++) {
        make(d, 2, (int64_t[]){4, 2}, values, &tensors[d]);
        list[d] = &tensors[d];
    }
    const char *path = test_path("all");
    CHECK_STATUS(cfx_safetensors_write(path, CFX_DTYPES, list, names, 0, NULL, NULL), CFX_OK);
    cfx_safetensors *f = NULL;
    if (CHECK_STATUS(cfx_safetensors_open(path, &f), CFX_OK)) {
        CHECK_EQ(cfx_safetensors_count(f), CFX_DTYPES);
        for (int32_t d = 0; d < CFX_DTYPES; d++) check_values(f, names[d], d, values, 8 * (size_t)cfx_dtype_size(d));
        CHECK_STR(cfx_safetensors_name(f, 0), "f64"); /* wide types first */
        CHECK(cfx_safetensors_name(f, -1) == NULL && cfx_safetensors_name(f, CFX_DTYPES) == NULL);
        cfx_tensor x = {0};
        CHECK_STATUS(cfx_safetensors_read(f, CFX_DTYPES, cpu(), &x), CFX_EARG);
        CHECK_STATUS(cfx_safetensors_read(f, -1, cpu(), &x), CFX_EARG);
    }
    cfx_safetensors_close(f);
    for (int32_t d = 0; d < CFX_DTYPES; d++) cfx_release(&tensors[d]);
}

/* The bytes that the reference implementation would read: this is the format. */
TEST(the_bytes_are_those_of_the_format) {
    const float values[] = {1, 2};
    size_t n;
    CHECK_STATUS(write_one(test_path("one"), "w", values, 2), CFX_OK);
    char *bytes = test_bytes(test_path("one"), &n);
    const char expected[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  ";
    const size_t header = sizeof expected - 1;
    CHECK_EQ(header % 8, 0);
    CHECK_EQ(n, 8 + header + sizeof values);
    CHECK(bytes[0] == (char)header && memcmp(bytes + 1, "\0\0\0\0\0\0\0", 7) == 0);
    CHECK(memcmp(bytes + 8, expected, header) == 0);
    CHECK(memcmp(bytes + 8 + header, values, sizeof values) == 0);
    free(bytes);
}

TEST(a_view_is_written_in_its_own_order) {
    const int32_t values[] = {1, 2, 3, 4, 5, 6}, turned[] = {1, 4, 2, 5, 3, 6};
    cfx_tensor x = {0}, t = {0};
    make(CFX_INT32, 2, (int64_t[]){2, 3}, values, &x);
    CHECK_STATUS(cfx_transpose(&x, 0, 1, &t), CFX_OK);
    const cfx_tensor *list[] = {&x, &t};
    const char *names[] = {"x", "t"};
    CHECK_STATUS(cfx_safetensors_write(test_path("views"), 2, list, names, 0, NULL, NULL), CFX_OK);
    cfx_safetensors *f = NULL;
    if (CHECK_STATUS(cfx_safetensors_open(test_path("views"), &f), CFX_OK)) {
        check_values(f, "x", CFX_INT32, values, sizeof values);
        check_values(f, "t", CFX_INT32, turned, sizeof turned);
    }
    cfx_safetensors_close(f);
    cfx_release(&x);
    cfx_release(&t);
}

TEST(scalars_and_empty_tensors_and_files_come_back) {
    const double pi = 3.14159;
    cfx_tensor scalar = {0}, empty = {0}, x = {0};
    make(CFX_FLOAT64, 0, NULL, &pi, &scalar);
    make(CFX_INT64, 3, (int64_t[]){2, 0, 5}, &pi, &empty);
    const cfx_tensor *list[] = {&scalar, &empty};
    const char *names[] = {"z", "a"};
    cfx_safetensors *f = NULL;
    CHECK_STATUS(cfx_safetensors_write(test_path("odd"), 2, list, names, 0, NULL, NULL), CFX_OK);
    if (CHECK_STATUS(cfx_safetensors_open(test_path("odd"), &f), CFX_OK)) {
        check_values(f, "z", CFX_FLOAT64, &pi, sizeof pi);
        const int32_t i = strcmp(cfx_safetensors_name(f, 0), "a") != 0;
        CHECK_STATUS(cfx_safetensors_read(f, i, cpu(), &x), CFX_OK);
        CHECK(x._ndim == 3 && x._shape[0] == 2 && x._shape[1] == 0 && x._shape[2] == 5);
        cfx_release(&x);
    }
    cfx_safetensors_close(f);
    cfx_release(&scalar);
    cfx_release(&empty);
    CHECK_STATUS(cfx_safetensors_write(test_path("none"), 0, NULL, NULL, 0, NULL, NULL), CFX_OK);
    CHECK_STATUS(cfx_safetensors_open(test_path("none"), &f), CFX_OK);
    CHECK_EQ(cfx_safetensors_count(f), 0);
    cfx_safetensors_close(f);
}

TEST(names_and_metadata_of_any_text_come_back) {
    const char *const keys[] = {"conflux", "quotes \" and \\", "control \n\t\x01",
                                "gr\xC3\xBC\xC3\x9F \xF0\x9F\x99\x82", ""};
    const char *const values[] = {"{\"a\": [1, 2]}", "\"", "\x1F\x7F", "\xE2\x82\xAC", ""};
    const float one = 1;
    const int64_t n = 1;
    cfx_tensor x = {0};
    make(CFX_FLOAT32, 1, &n, &one, &x);
    const cfx_tensor *list[] = {&x, &x, &x, &x, &x};
    cfx_safetensors *f = NULL;
    CHECK_STATUS(cfx_safetensors_write(test_path("text"), 5, list, keys, 5, keys, values), CFX_OK);
    if (CHECK_STATUS(cfx_safetensors_open(test_path("text"), &f), CFX_OK)) {
        for (int i = 0; i < 5; i++) {
            CHECK_STR(cfx_safetensors_meta(f, keys[i]), values[i]);
            check_values(f, keys[i], CFX_FLOAT32, &one, sizeof one);
        }
        CHECK(cfx_safetensors_meta(f, "absent") == NULL);
        CHECK(cfx_safetensors_meta(f, NULL) == NULL);
    }
    cfx_safetensors_close(f);
    cfx_release(&x);
}

/* ---- files of others ------------------------------------------------------------------------------- */

/* Opens a file of this header (its length comes before it) and `data` bytes of zeros. */
static cfx_status open_text(const char *header, size_t data, cfx_safetensors **out) {
    const size_t n = strlen(header);
    char *bytes = calloc(1, 8 + n + data + 1);
    for (int i = 0; i < 8; i++) bytes[i] = (char)((uint64_t)n >> (8 * i));
    memcpy(bytes + 8, header, n);
    const cfx_status status = cfx_safetensors_open(test_file("given", bytes, 8 + n + data, 0), out);
    free(bytes);
    return status;
}

static void check_opens(const char *header, size_t data) {
    cfx_safetensors *f = NULL;
    CHECK_STATUS(open_text(header, data, &f), CFX_OK);
    cfx_safetensors_close(f);
}

static void check_refused(const char *header, size_t data, const char *message) {
    cfx_safetensors *f = NULL;
    if (!CHECK_STATUS(open_text(header, data, &f), CFX_EIO)) printf("# %s\n", header);
    CHECK(test_says(message));
    CHECK(test_says("given: "));
    CHECK(!f);
}

#define A(dtype, shape, offsets) "\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define B(dtype, shape, offsets) "\"b\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(headers_in_any_valid_form_are_read) {
    cfx_safetensors *f = NULL;
    check_opens("{}", 0);
    check_opens("{ }      ", 0);
    check_opens("{" A("F32", "[2]", "[0,8]") "," B("U8", "[3]", "[8,11]") "}", 11);
    check_opens("{" A("F32", "[2]", "[8,16]") "," B("I64", "[]", "[0,8]") "}", 16);
    check_opens("{" A("U8", "[0]", "[0,0]") "," B("U8", "[0]", "[0,0]") "}", 0);
    check_opens("{\n \"a\" : {\"data_offsets\" : [ 0 , 1 ],\t\"shape\":[ 1 ], \"dtype\":\"BOOL\"}\r\n}", 1);
    check_opens("{\"a\":{\"dtype\":\"U8\",\"more\":[{\"x\":[-1.5e+3,true,false,null,\"\\n\"]}],\"shape\":[1],"
                "\"data_offsets\":[0,1]}}",
                1);
    CHECK_STATUS(
        open_text("{\"__metadata__\":{\"\\u0041\\u00e9\\u20ac\\ud83d\\ude42\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}}", 0, &f),
        CFX_OK);
    CHECK_STR(cfx_safetensors_meta(f, "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82"), "\"\\/\b\f\n\r\t");
    cfx_safetensors_close(f);
}

TEST(headers_that_are_no_json_are_refused) {
    check_refused("", 0, "the header does not start with '{'");
    check_refused(" {}", 0, "the header does not start with '{'");
    check_refused("[]", 0, "the header does not start with '{'");
    check_refused("{", 0, "JSON, byte 1: expected a string, found the end");
    check_refused("{}x", 0, "expected the end, found 'x'");
    check_refused("{,}", 0, "expected a string, found ','");
    check_refused("{" A("U8", "[1]", "[0,1]") ",}", 1, "expected a string, found '}'");
    check_refused("{" A("U8", "[1,]", "[0,1]") "}", 1, "found ']'");
    check_refused("{" A("U8", "[1 2]", "[0,1]") "}", 1, "expected ',' or ']', found '2'");
    check_refused("{\"a\" {}}", 0, "expected ':', found '{'");
    check_refused("{\"a\":1}", 0, "expected '{', found '1'");
    check_refused("{\"a", 0, "expected the end of a string");
    check_refused("{\"a\n\":{}}", 0, "expected the end of a string");
    check_refused("{\"\\x\":{}}", 0, "expected an escape after \\");
    check_refused("{\"\\u12g4\":{}}", 0, "expected four hexadecimal digits");
    check_refused("{\"\\u0000\":{}}", 0, "a NUL character");
    check_refused("{\"\\ud83d\":{}}", 0, "half of a surrogate pair");
    check_refused("{\"\\ude42\":{}}", 0, "half of a surrogate pair");
    check_refused("{\"\\ud83d\\u0041\":{}}", 0, "half of a surrogate pair");
    check_refused("{\"\xC3\":{}}", 0, "expected UTF-8, found 0xc3");
    check_refused("{\"\xC0\x80\":{}}", 0, "expected UTF-8");
    check_refused("{\"\xED\xA0\x80\":{}}", 0, "expected UTF-8");
    check_refused("{\"\xF5\x80\x80\x80\":{}}", 0, "expected UTF-8");
    check_refused("{\"a\":{\"x\":01}}", 0, "expected ',' or '}', found '1'");
    check_refused("{\"a\":{\"x\":1.}}", 0, "expected a digit");
    check_refused("{\"a\":{\"x\":-}}", 0, "expected a digit");
    check_refused("{\"a\":{\"x\":1e}}", 0, "expected a digit");
    check_refused("{\"a\":{\"x\":tru}}", 0, "expected a value");
    check_refused("{\"a\":{\"x\":NaN}}", 0, "expected a value");
}

TEST(deep_nesting_is_refused_before_the_stack_is) {
    enum { DEEP = 100000 };
    char *header = malloc(DEEP + 16);
    strcpy(header, "{\"a\":{\"x\":");
    memset(header + 10, '[', DEEP);
    header[10 + DEEP] = '\0';
    check_refused(header, 0, "nested deeper than 64");
    free(header);
}

TEST(tensors_that_contradict_themselves_are_refused) {
    check_refused("{" A("F8_E4M3", "[1]", "[0,1]") "}", 1,
                  "tensor 'a' has dtype 'F8_E4M3', which Conflux does not know");
    check_refused("{" A("f32", "[1]", "[0,4]") "}", 4, "dtype 'f32'");
    check_refused("{" A("F32", "[2]", "[0,4]") "}", 4, "data_offsets [0, 4] do not hold the 8 bytes of its shape");
    check_refused("{" A("I16", "[2]", "[0,8]") "}", 8, "data_offsets [0, 8] do not hold the 4 bytes of its shape");
    check_refused("{" A("F32", "[1]", "[4,0]") "}", 4, "data_offsets [4, 0] do not hold");
    check_refused("{" A("U8", "[1]", "[0]") "}", 1, "data_offsets must be [begin, end]");
    check_refused("{" A("U8", "[1]", "[0,1,1]") "}", 1, "data_offsets must be [begin, end]");
    check_refused("{" A("U8", "[-1]", "[0,1]") "}", 1, "expected an integer from 0");
    check_refused("{" A("U8", "[1.0]", "[0,1]") "}", 1, "expected an integer from 0");
    check_refused("{" A("U8", "[1e0]", "[0,1]") "}", 1, "expected an integer from 0");
    check_refused("{" A("U8", "[01]", "[0,1]") "}", 1, "leading zeros");
    check_refused("{" A("U8", "[\"1\"]", "[0,1]") "}", 1, "expected an integer from 0");
    check_refused("{" A("U8", "[9223372036854775808]", "[0,1]") "}", 1, "found a larger one");
    check_refused("{" A("F32", "[4611686018427387904,4]", "[0,0]") "}", 0, "its shape is larger than any file");
    check_refused("{" A("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "more than 8 dimensions");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "tensor 'a' has no field 'data_offsets'");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 1, "tensor 'a' has two fields 'dtype'");
    check_refused("{\"a\":{}}", 0, "tensor 'a' has no field 'dtype'");
}

TEST(tensors_that_contradict_the_file_are_refused) {
    check_refused("{" A("U8", "[4]", "[0,4]") "}", 3, "truncated: tensor 'a' ends at byte 4 of the data, which has 3");
    check_refused("{" A("U8", "[4]", "[0,4]") "}", 6, "data after the last tensor: expected 4 bytes of data, got 6");
    check_refused("{}", 1, "data after the last tensor");
    check_refused("{" A("U8", "[4]", "[0,4]") "," B("U8", "[4]", "[2,6]") "}", 6, "it overlaps another");
    check_refused("{" A("U8", "[4]", "[0,4]") "," B("U8", "[4]", "[0,4]") "}", 4, "it overlaps another");
    check_refused("{" A("U8", "[4]", "[0,4]") "," B("U8", "[1]", "[5,6]") "}", 6, "expected 4 (a hole)");
    check_refused("{" A("U8", "[4]", "[1,5]") "}", 5, "expected 0 (a hole)");
    check_refused("{" A("U8", "[1]", "[0,1]") "," A("U8", "[1]", "[1,2]") "}", 2, "two tensors are named 'a'");
    check_refused("{" A("U8", "[9223372036854775807]", "[0,9223372036854775807]") "}", 8, "truncated: tensor 'a'");
}

TEST(metadata_that_is_no_map_of_strings_is_refused) {
    check_refused("{\"__metadata__\":{\"a\":1}}", 0, "expected a string, found '1'");
    check_refused("{\"__metadata__\":[]}", 0, "expected '{'");
    check_refused("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "metadata has two values for 'a'");
    check_refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "two fields '__metadata__'");
}

TEST(files_that_are_cut_or_no_safetensors_are_refused) {
    cfx_safetensors *f = NULL;
    CHECK_STATUS(cfx_safetensors_open(test_path("absent"), &f), CFX_EIO);
    CHECK(test_says("absent: No such file or directory"));
    CHECK_STATUS(cfx_safetensors_open("/tmp", &f), CFX_EIO);
    CHECK(test_says("not a regular file"));
    CHECK_STATUS(cfx_safetensors_open(test_file("given", "", 0, 0), &f), CFX_EIO);
    CHECK(test_says("truncated: expected at least 8 bytes, got 0"));
    CHECK_STATUS(cfx_safetensors_open(test_file("given", "\x20\0\0\0\0\0\0\0{}", 10, 0), &f), CFX_EIO);
    CHECK(test_says("truncated: expected a header of 32 bytes, got 2"));
    CHECK_STATUS(cfx_safetensors_open(test_file("given", "PK\3\4 a zip file of weights", 26, 0), &f), CFX_EIO);
    CHECK(test_says("not a safetensors file but a ZIP archive, such as PyTorch's .pt"));
    CHECK_STATUS(cfx_safetensors_open(test_file("given", "\x80\2\x8a\nl\xfc\x9c\x46", 8, 0), &f), CFX_EIO);
    CHECK(test_says("not a safetensors file but a Python pickle"));
    CHECK_STATUS(cfx_safetensors_open(test_file("given", "any other bytes", 15, 0), &f), CFX_EIO);
    CHECK(test_says("not a safetensors file?"));
    /* a pickle's first bytes may be the length of a header, too */
    CHECK_STATUS(cfx_safetensors_open(test_file("given", "\x80\2\0\0\0\0\0\0{}", 10, 0), &f), CFX_EIO);
    CHECK(test_says("truncated: expected a header of 640 bytes, got 2"));
    CHECK_STATUS(cfx_safetensors_open(NULL, &f), CFX_EARG);
    CHECK_STATUS(cfx_safetensors_open("x", NULL), CFX_EARG);
    cfx_safetensors_close(NULL);
}

TEST(a_file_cut_while_it_is_open_is_an_error_not_a_crash) {
    static const float values[4096];
    cfx_safetensors *f = NULL;
    cfx_tensor x = {0};
    CHECK_STATUS(write_one(test_path("cut"), "w", values, 4096), CFX_OK);
    if (!CHECK_STATUS(cfx_safetensors_open(test_path("cut"), &f), CFX_OK)) return;
    CHECK(truncate(test_path("cut"), 100) == 0);
    CHECK_STATUS(cfx_safetensors_read(f, 0, cpu(), &x), CFX_EIO);
    CHECK(test_says("the file was cut while it was open"));
    cfx_safetensors_close(f);
}

TEST(a_bool_is_0_or_1) {
    const char header[] = "{\"a\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    char bytes[8 + sizeof header + 1] = {sizeof header - 1};
    memcpy(bytes + 8, header, sizeof header - 1);
    memcpy(bytes + 8 + sizeof header - 1, "\1\2", 2);
    cfx_safetensors *f = NULL;
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_safetensors_open(test_file("given", bytes, sizeof bytes, 0), &f), CFX_OK);
    CHECK_STATUS(cfx_safetensors_read(f, 0, cpu(), &x), CFX_EIO);
    CHECK(test_says("BOOL tensor 'a' holds the byte 0x02"));
    cfx_safetensors_close(f);
}

/* ---- writing --------------------------------------------------------------------------------------- */

TEST(wrong_arguments_write_nothing) {
    const float one = 1;
    const int64_t n = 1;
    cfx_tensor x = {0}, none = {0};
    make(CFX_FLOAT32, 1, &n, &one, &x);
    const cfx_tensor *list[] = {&x, &x}, *empty[] = {&none};
    const char *same[] = {"w", "w"}, *meta[] = {"__metadata__"}, *bad[] = {"\xFF"}, *null[] = {NULL};
    const char *path = test_path("wrong");
    CHECK_STATUS(cfx_safetensors_write(path, 2, list, same, 0, NULL, NULL), CFX_EARG);
    CHECK(test_says("the name 'w' is given twice"));
    CHECK_STATUS(cfx_safetensors_write(path, 1, list, meta, 0, NULL, NULL), CFX_EARG);
    CHECK_STATUS(cfx_safetensors_write(path, 1, list, bad, 0, NULL, NULL), CFX_EARG);
    CHECK(test_says("names[0] is not UTF-8"));
    CHECK_STATUS(cfx_safetensors_write(path, 1, list, null, 0, NULL, NULL), CFX_EARG);
    CHECK_STATUS(cfx_safetensors_write(path, 1, empty, same, 0, NULL, NULL), CFX_EARG);
    CHECK(test_says("tensor 'w' is NULL or has no value"));
    CHECK_STATUS(cfx_safetensors_write(path, 1, list, same, 2, same, same), CFX_EARG);
    CHECK(test_says("metadata key 'w' is given twice"));
    CHECK_STATUS(cfx_safetensors_write(path, 1, list, same, 1, same, null), CFX_EARG);
    CHECK_STATUS(cfx_safetensors_write(path, 1, list, same, 1, same, bad), CFX_EARG);
    CHECK(test_says("values[0] is not UTF-8"));
    CHECK_STATUS(cfx_safetensors_write(NULL, 1, list, same, 0, NULL, NULL), CFX_EARG);
    CHECK_STATUS(cfx_safetensors_write(path, -1, list, same, 0, NULL, NULL), CFX_EARG);
    CHECK_STATUS(cfx_safetensors_write(path, 1, NULL, same, 0, NULL, NULL), CFX_EARG);
    CHECK(access(path, F_OK) != 0);
    cfx_release(&x);
}

TEST(a_path_that_cannot_be_written_is_named) {
    const float one = 1;
    CHECK_STATUS(write_one(test_path("no/such/place"), "w", &one, 1), CFX_EIO);
    CHECK(test_says("no/such/place: cannot write there: No such file or directory"));
    CHECK(mkdir(test_path("folder"), 0777) == 0);
    CHECK_STATUS(write_one(test_path("folder"), "w", &one, 1), CFX_EIO);
    CHECK(test_says("folder: not a regular file"));
    CHECK_STATUS(write_one("/dev/null", "w", &one, 1), CFX_EIO);
    CHECK_STATUS(write_one("", "w", &one, 1), CFX_EIO);
}

TEST(a_failed_write_leaves_the_old_file_and_nothing_else) {
    enum { N = 65536 };
    static const float values[N];
    const float one = 1;
    CHECK_STATUS(write_one(test_path("kept"), "w", &one, 1), CFX_OK);
    size_t before, after;
    char *old = test_bytes(test_path("kept"), &before);
    const int files = test_count_files();
    test_fill_disk(true);
    CHECK_STATUS(write_one(test_path("kept"), "w", values, N), CFX_EIO);
    test_fill_disk(false);
    CHECK(test_says("kept: cannot write: File too large"));
    CHECK_EQ(test_count_files(), files);
    char *now = test_bytes(test_path("kept"), &after);
    CHECK(before == after && memcmp(old, now, before) == 0);
    free(old);
    free(now);
}

TEST(a_file_that_is_open_keeps_its_values_when_it_is_replaced) {
    const float one = 1, two = 2;
    cfx_safetensors *f = NULL;
    CHECK_STATUS(write_one(test_path("both"), "w", &one, 1), CFX_OK);
    CHECK_STATUS(cfx_safetensors_open(test_path("both"), &f), CFX_OK);
    CHECK_STATUS(write_one(test_path("both"), "w", &two, 1), CFX_OK);
    check_values(f, "w", CFX_FLOAT32, &one, sizeof one);
    cfx_safetensors_close(f);
    CHECK_STATUS(cfx_safetensors_open(test_path("both"), &f), CFX_OK);
    check_values(f, "w", CFX_FLOAT32, &two, sizeof two);
    cfx_safetensors_close(f);
}

static int mode_of(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 ? (int)(st.st_mode & 07777) : -1;
}

TEST(a_new_file_gets_the_umasks_mode_and_a_replaced_one_keeps_its_own) {
    const float one = 1;
    const mode_t mask = umask(027);
    CHECK_STATUS(write_one(test_path("mode"), "w", &one, 1), CFX_OK);
    CHECK_EQ(mode_of(test_path("mode")), 0640);
    CHECK(chmod(test_path("mode"), 0604) == 0);
    CHECK_STATUS(write_one(test_path("mode"), "w", &one, 1), CFX_OK);
    CHECK_EQ(mode_of(test_path("mode")), 0604);
    umask(mask);
}

TEST(a_link_is_followed) {
    const float one = 1, two = 2;
    struct stat st;
    cfx_safetensors *f = NULL;
    CHECK_STATUS(write_one(test_path("target"), "w", &one, 1), CFX_OK);
    CHECK(symlink("target", test_path("latest")) == 0);
    CHECK_STATUS(write_one(test_path("latest"), "w", &two, 1), CFX_OK);
    CHECK(lstat(test_path("latest"), &st) == 0 && S_ISLNK(st.st_mode));
    CHECK_STATUS(cfx_safetensors_open(test_path("target"), &f), CFX_OK);
    check_values(f, "w", CFX_FLOAT32, &two, sizeof two);
    cfx_safetensors_close(f);
}

static int is_link(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

/* A link whose file is not there yet is made where the link says, through other links, and relative to each. */
TEST(a_link_to_no_file_makes_the_file_that_it_names) {
    const float one = 1;
    char absolute[512], before[512];
    cfx_safetensors *f = NULL;
    CHECK(mkdir(test_path("runs"), 0777) == 0 && mkdir(test_path("runs/one"), 0777) == 0);
    CHECK(symlink("runs/newest", test_path("first")) == 0);
    CHECK(symlink("one/model.st", test_path("runs/newest")) == 0);
    CHECK_STATUS(write_one(test_path("first"), "w", &one, 1), CFX_OK);
    CHECK(is_link(test_path("first")) && is_link(test_path("runs/newest")));
    CHECK_STATUS(cfx_safetensors_open(test_path("runs/one/model.st"), &f), CFX_OK);
    check_values(f, "w", CFX_FLOAT32, &one, sizeof one);
    cfx_safetensors_close(f);
    snprintf(absolute, sizeof absolute, "%s", test_path("runs/absolute.st"));
    CHECK(symlink(absolute, test_path("second")) == 0);
    CHECK_STATUS(write_one(test_path("second"), "w", &one, 1), CFX_OK);
    CHECK(is_link(test_path("second")) && access(absolute, R_OK) == 0 && !is_link(absolute));
    CHECK(symlink("third.st", test_path("third")) == 0);
    CHECK(getcwd(before, sizeof before) != NULL && chdir(test_directory) == 0);
    CHECK_STATUS(write_one("third", "w", &one, 1), CFX_OK);
    CHECK(chdir(before) == 0);
    CHECK(is_link(test_path("third")) && access(test_path("third.st"), R_OK) == 0);
}

TEST(a_link_that_leads_nowhere_is_refused_and_stays) {
    const float one = 1;
    char name[32], target[32];
    CHECK(symlink("round", test_path("round")) == 0);
    CHECK(symlink("b", test_path("a")) == 0 && symlink("a", test_path("b")) == 0);
    CHECK(symlink("nowhere/x.st", test_path("lost")) == 0);
    for (int i = 0; i < 60; i++) {
        snprintf(name, sizeof name, "link%d", i);
        snprintf(target, sizeof target, "link%d", i + 1);
        CHECK(symlink(target, test_path(name)) == 0);
    }
    const int files = test_count_files();
    const char *links[] = {"round", "a", "b", "lost", "link0"};
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        CHECK_STATUS(write_one(test_path(links[i]), "w", &one, 1), CFX_EIO);
        CHECK(test_says(i == 3 ? "No such file" : "symbolic links"));
        CHECK(is_link(test_path(links[i])));
    }
    CHECK_EQ(test_count_files(), files);
}

TEST(a_file_in_the_working_directory_needs_no_slash) {
    const float one = 1;
    char before[512];
    CHECK(getcwd(before, sizeof before) != NULL);
    test_path("x"); /* makes the directory */
    CHECK(chdir(test_directory) == 0);
    CHECK_STATUS(write_one("here", "w", &one, 1), CFX_OK);
    CHECK(chdir(before) == 0);
    CHECK(access(test_path("here"), R_OK) == 0);
}

/* Every header with one byte changed, and every cut of it, is read or refused; the sanitizers watch. */
TEST(damaged_headers_never_crash_the_reader) {
    const char header[] = "{\"__metadata__\":{\"k\\u00e9\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],"
                          "\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[8,9]}}";
    static const char bytes[] = {'\0', '"', '\\', '{', '}', '[', ']',    ',',
                                 ':',  '9', '-',  'e', ' ', 'u', '\x80', '\xF0'};
    char text[sizeof header];
    int opened = 0;
    for (size_t at = 0; at < sizeof header - 1; at++)
        for (size_t b = 0; b <= sizeof bytes; b++) {
            cfx_safetensors *f = NULL;
            memcpy(text, header, sizeof header);
            text[at] = b < sizeof bytes ? bytes[b] : '\0'; /* the last of them cuts */
            char file[8 + sizeof header + 9] = {0};
            const size_t n = b < sizeof bytes ? sizeof header - 1 : at;
            file[0] = (char)n;
            memcpy(file + 8, text, n);
            const cfx_status status = cfx_safetensors_open(test_file("given", file, 8 + n + 9, 0), &f);
            if (status != CFX_OK && !CHECK_EQ(status, CFX_EIO)) return;
            opened += status == CFX_OK;
            cfx_safetensors_close(f);
        }
    CHECK(opened > 20 && opened < (int)(sizeof header * sizeof bytes) / 2);
}
