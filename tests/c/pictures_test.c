/* pictures_test.c: pixels are Pillow's, for whole pictures and for parts; and any bytes are a picture, or refused.
 *
 * tests/record/images.py has made the files, and recorded what Pillow makes of them.
 */
#include "test.h"

#include <dirent.h>
#include <stdlib.h>

#include "data/picture.h"
#include "files.h"
#include "fuzz.h"

#define FOLDER "tests/fixtures/images/"

/* ---- what was recorded ----------------------------------------------------------------------------- */

static cfx_safetensors *recorded;
static void close_recorded(void) { cfx_safetensors_close(recorded); }

/* A recorded tensor's values, which the caller frees, and its shape. */
static void *expected(const char *name, int64_t shape[3]) {
    if (!recorded) {
        if (cfx_safetensors_open(FOLDER "expected.safetensors", &recorded) != CFX_OK)
            printf("# %s\n", cfx_error()), exit(2);
        atexit(close_recorded);
    }
    for (int32_t i = 0; i < cfx_safetensors_count(recorded); i++) {
        cfx_tensor x = {0};
        if (strcmp(cfx_safetensors_name(recorded, i), name) != 0) continue;
        if (cfx_safetensors_read(recorded, i, cfx_device_at(test_context(), 0), &x) != CFX_OK) break;
        size_t bytes = (size_t)cfx_dtype_size(x._dtype);
        for (int d = 0; d < x._ndim; d++) bytes *= (size_t)(shape[d] = x._shape[d]);
        void *values = malloc(bytes + 1);
        if (cfx_read(&x, values, bytes) != CFX_OK) break;
        cfx_release(&x);
        return values;
    }
    printf("# '%s' was not recorded: %s\n", name, cfx_error()), exit(2);
}

/* Compares with what was recorded: the largest difference, and the mean one. */
static void check_pixels(const char *name, const unsigned char *got, int64_t height, int64_t width, int most,
                         double mean) {
    int64_t shape[3];
    unsigned char *wanted = expected(name, shape);
    int largest = 0;
    double sum = 0;
    if (!CHECK(shape[0] == height && shape[1] == width && shape[2] == 3)) printf("# %s\n", name);
    else
        for (int64_t i = 0; i < height * width * 3; i++) {
            const int away = abs(got[i] - wanted[i]);
            if (away > largest) largest = away;
            sum += away;
        }
    if (!CHECK(largest <= most) || !CHECK(sum <= mean * (double)(height * width * 3)))
        printf("# %s: largest %d, mean %g\n", name, largest, sum / (double)(height * width * 3));
    free(wanted);
}

/* ---- files ----------------------------------------------------------------------------------------- */

static const char *const good[] = {"420",  "422",         "444",      "grey",  "cmyk",   "rgb",
                                   "lost", "progressive", "restarts", "pixel", "behind", "turned"};
enum { GOOD = sizeof good / sizeof *good };

static cf_transform bytes_transform(void) {
    cfx_image_options o = {.size = sizeof o, .dtype = CFX_UINT8, .deviation = {1, 1, 1}};
    cf_transform t;
    CHECK_STATUS(cf_transform_read(&o, &t), CFX_OK);
    return t;
}

/* Opens a fixture with the plan of no transform. */
static cf_picture open_fixture(const cf_transform *t, const char *name) {
    cf_picture p = {.transform = t};
    char path[256];
    snprintf(path, sizeof path, FOLDER "%s.jpg", name);
    CHECK_STATUS(cf_picture_open(&p, path, (cf_draw){0, 0, 0}), CFX_OK);
    return p;
}

TEST(pictures_of_every_kind_are_pillows_bytes) {
    const cf_transform t = bytes_transform();
    for (int i = 0; i < GOOD; i++) {
        cf_picture p = open_fixture(&t, good[i]);
        unsigned char *got = malloc((size_t)p.width * (size_t)p.height * 3);
        CHECK_STATUS(cf_picture_write(&p, got), CFX_OK);
        check_pixels(good[i], got, p.height, p.width, 0, 0);
        free(got);
        cf_picture_free(&p);
    }
}

TEST(scaled_decodes_are_pillows_draft) {
    const cf_transform t = bytes_transform();
    for (int32_t by = 2; by <= 8; by *= 2) {
        cf_picture p = open_fixture(&t, "420");
        const cf_rect all = {0, 0, (p.width + by - 1) / by, (p.height + by - 1) / by};
        unsigned char *got = malloc((size_t)all.width * (size_t)all.height * 3);
        char name[16];
        snprintf(name, sizeof name, "420/%d", by);
        CHECK_STATUS(cf_jpeg_decode(p.jpeg, by, all, got), CFX_OK);
        check_pixels(name, got, all.height, all.width, 0, 0);
        free(got);
        cf_picture_free(&p);
    }
}

/* A part of `whole`, and what a decoder makes of it. */
static int same_part(const unsigned char *whole, int32_t wide, cf_rect r, const unsigned char *part) {
    for (int32_t y = 0; y < r.height; y++) {
        const unsigned char *row = whole + ((size_t)(r.y + y) * (size_t)wide + (size_t)r.x) * 3;
        if (memcmp(row, part + (size_t)y * (size_t)r.width * 3, (size_t)r.width * 3) != 0) return 0;
    }
    return 1;
}

static cf_rect random_part(int32_t height, int32_t width) {
    cf_rect r = {(int32_t)(bits() % (uint64_t)width), (int32_t)(bits() % (uint64_t)height), 0, 0};
    r.width = 1 + (int32_t)(bits() % (uint64_t)(width - r.x));
    r.height = 1 + (int32_t)(bits() % (uint64_t)(height - r.y));
    return r;
}

static void check_parts(cf_jpeg *jpeg, const char *data, size_t bytes, int32_t by, int rounds) {
    int32_t width, height;
    CHECK_STATUS(cf_jpeg_open(jpeg, (const unsigned char *)data, bytes, &width, &height), CFX_OK);
    width = (width + by - 1) / by;
    height = (height + by - 1) / by;
    unsigned char *whole = malloc((size_t)width * (size_t)height * 3),
                  *part = malloc((size_t)width * (size_t)height * 3);
    CHECK_STATUS(cf_jpeg_decode(jpeg, by, (cf_rect){0, 0, width, height}, whole), CFX_OK);
    for (int k = 0; k < rounds; k++) {
        int32_t unused;
        const cf_rect r = random_part(height, width);
        CHECK_STATUS(cf_jpeg_open(jpeg, (const unsigned char *)data, bytes, &unused, &unused), CFX_OK);
        CHECK_STATUS(cf_jpeg_decode(jpeg, by, r, part), CFX_OK);
        if (!CHECK(same_part(whole, width, r, part))) {
            printf("# 1/%d: %d x %d at %d, %d of %d x %d\n", by, r.width, r.height, r.x, r.y, width, height);
            break;
        }
    }
    free(whole);
    free(part);
}

TEST(a_part_of_a_picture_has_the_bytes_of_the_whole) {
    cf_jpeg *jpeg;
    CHECK_STATUS(cf_jpeg_new(&jpeg), CFX_OK);
    state = 1;
    for (int i = 0; i < GOOD; i++) {
        char path[256];
        size_t bytes;
        snprintf(path, sizeof path, FOLDER "%s.jpg", good[i]);
        char *data = test_bytes(path, &bytes);
        for (int32_t by = 1; by <= 8; by *= 2) check_parts(jpeg, data, bytes, by, SANITIZED ? 10 : 60);
        free(data);
    }
    cf_jpeg_free(jpeg);
}

/* The place of a file's n-th scan, from 1, or of its end where it has fewer. */
static size_t scan_at(const unsigned char *data, size_t bytes, int n) {
    for (size_t i = 0; i + 1 < bytes; i++)
        if (data[i] == 0xff && (data[i + 1] == 0xd9 || (data[i + 1] == 0xda && --n == 0))) return i;
    return bytes - 2;
}

/* libjpeg makes up for scans that are missing by blocks that lie around, also outside of a part. */
TEST(a_part_of_a_progressive_picture_without_its_last_scans_has_them_too) {
    static const char end[] = "\xff\xd9";
    size_t bytes;
    cf_jpeg *jpeg;
    CHECK_STATUS(cf_jpeg_new(&jpeg), CFX_OK);
    char *data = test_bytes(FOLDER "progressive.jpg", &bytes);
    state = 3;
    for (int scans = 1; scans < 8; scans++) {
        const size_t cut = scan_at((const unsigned char *)data, bytes, scans + 1);
        char *file = malloc(cut + 2);
        memcpy(file, data, cut);
        memcpy(file + cut, end, 2);
        for (int32_t by = 1; by <= 8; by *= 2) check_parts(jpeg, file, cut + 2, by, SANITIZED ? 5 : 30);
        free(file);
    }
    free(data);
    cf_jpeg_free(jpeg);
}

/* Larger than any margin: 4:2:0 is what quality 75 has. */
TEST(a_part_of_a_larger_picture_has_them_too) {
    enum { H = 210, W = 333 };
    unsigned char *pixels = malloc((size_t)H * W * 3);
    const char *path = test_path("large.jpg");
    state = 2;
    for (int i = 0; i < H * W * 3; i++) pixels[i] = (unsigned char)(i / 7 + i % W + (int)(bits() % 60));
    size_t bytes;
    cf_jpeg *jpeg;
    CHECK_STATUS(cf_jpeg_new(&jpeg), CFX_OK);
    CHECK_STATUS(cf_jpeg_write(path, pixels, H, W, 3, 75), CFX_OK);
    char *data = test_bytes(path, &bytes);
    for (int32_t by = 1; by <= 8; by *= 2) check_parts(jpeg, data, bytes, by, SANITIZED ? 20 : 100);
    free(data);
    free(pixels);
    cf_jpeg_free(jpeg);
}

/* ---- sizes and colours ----------------------------------------------------------------------------- */

static void check_cases(const char *cases, const char *prefix, int32_t decode) {
    const cf_transform t = bytes_transform();
    int64_t shape[3];
    int64_t *list = expected(cases, shape);
    for (int64_t i = 0; i < shape[0]; i++) {
        const int64_t *c = list + 6 * i;
        const int32_t width = (int32_t)c[4], height = (int32_t)c[5];
        cf_picture p = open_fixture(&t, "420");
        unsigned char *got = malloc((size_t)width * (size_t)height * 3);
        char name[32];
        p.plan = (cf_plan){.decode = decode,
                           .box = {(int32_t)c[0], (int32_t)c[1], (int32_t)c[2], (int32_t)c[3]},
                           .height = height,
                           .width = width,
                           .window = {0, 0, width, height}};
        CHECK_STATUS(cf_picture_write(&p, got), CFX_OK);
        snprintf(name, sizeof name, "%s/%d", prefix, (int)i);
        check_pixels(name, got, height, width, 1, 0.25);
        /* A window of it has the same pixels. */
        unsigned char *part = malloc((size_t)width * (size_t)height * 3);
        int32_t unused;
        for (int k = 0; k < 10; k++) {
            size_t bytes;
            char *data = test_bytes(FOLDER "420.jpg", &bytes);
            CHECK_STATUS(cf_jpeg_open(p.jpeg, (unsigned char *)data, bytes, &unused, &unused), CFX_OK);
            p.plan.window = random_part(height, width);
            CHECK_STATUS(cf_picture_write(&p, part), CFX_OK);
            if (!CHECK(same_part(got, width, p.plan.window, part))) printf("# %s\n", name);
            free(data);
        }
        free(got);
        free(part);
        cf_picture_free(&p);
    }
    free(list);
}

TEST(resized_parts_are_within_one_of_pillows) { check_cases("cases", "resized", 1); }
TEST(resized_parts_of_scaled_decodes_are_too) { check_cases("scaled cases", "scaled", 2); }

TEST(changed_colours_are_pillows_bytes) {
    int64_t shape[3], size[3];
    double *list = expected("colours", shape);
    for (int64_t i = 0; i < shape[0]; i++) {
        char name[32];
        unsigned char *pixels = expected("420", size);
        snprintf(name, sizeof name, "coloured/%d", (int)i);
        cf_jitter((cf_colour)list[2 * i], list[2 * i + 1], pixels, (size_t)(size[0] * size[1]));
        check_pixels(name, pixels, size[0], size[1], 0, 0);
        free(pixels);
    }
    free(list);
}

static void check_image(const char *name, cfx_image_options o, int most, double mean) {
    cfx_tensor x = {0};
    o.size = sizeof o;
    for (int c = 0; c < 3; c++) o.deviation[c] = 1;
    if (!CHECK_STATUS(cfx_image_read(cfx_device_at(test_context(), 0), FOLDER "420.jpg", &o, 0, &x), CFX_OK)) return;
    const size_t bytes = (size_t)(x._shape[0] * x._shape[1] * x._shape[2]);
    unsigned char *got = malloc(bytes);
    CHECK_STATUS(cfx_read(&x, got, bytes), CFX_OK);
    check_pixels(name, got, x._shape[0], x._shape[1], most, mean);
    cfx_release(&x);
    free(got);
}

TEST(a_short_side_is_resized_and_the_middle_taken_as_torchvision_does) {
    const cfx_image_step steps[] = {{CFX_IMAGE_RESIZE, 0, 20, {0}}, {CFX_IMAGE_CENTRECROP, 16, 16, {0}}};
    check_image("evaluated", (cfx_image_options){.steps = {steps[0], steps[1]}, .n = 2, .dtype = CFX_UINT8}, 1, 0.25);
}

TEST(what_lies_around_a_small_picture_is_black) {
    const cfx_image_step step = {CFX_IMAGE_CENTRECROP, 50, 70, {0}};
    check_image("padded", (cfx_image_options){.steps = {step}, .n = 1, .dtype = CFX_UINT8}, 0, 0);
}

/* ---- random numbers -------------------------------------------------------------------------------- */

TEST(random_parts_have_the_areas_and_ratios_asked_for) {
    enum { N = 4000 };
    cfx_image_options o = {.size = sizeof o, .n = 2, .dtype = CFX_UINT8, .deviation = {1, 1, 1}};
    o.steps[0] = (cfx_image_step){CFX_IMAGE_RANDOMRESIZEDCROP, 224, 224, {0.08, 1, 0.75, 4.0 / 3}};
    o.steps[1] = (cfx_image_step){CFX_IMAGE_FLIP, 0, 0, {0.5}};
    cf_transform t;
    double area = 0, logs = 0;
    int flips = 0, halves = 0;
    CHECK_STATUS(cf_transform_read(&o, &t), CFX_OK);
    for (uint64_t i = 0; i < N; i++) {
        cf_plan p;
        CHECK_STATUS(cf_transform_plan(&t, 1400, 1600, (cf_draw){7, 3, i}, &p), CFX_OK);
        const double share = (double)p.box.width * p.box.height / (1400.0 * 1600);
        const double ratio = (double)p.box.width / p.box.height;
        CHECK(p.box.x >= 0 && p.box.y >= 0 && p.box.x + p.box.width <= 1600 && p.box.y + p.box.height <= 1400);
        CHECK(share > 0.079 && share <= 1 && ratio > 0.745 && ratio < 1.345);
        CHECK(p.decode == 1 || (p.box.width / p.decode >= 448 && p.box.height / p.decode >= 448));
        area += share;
        logs += log(ratio);
        flips += p.flip;
        halves += p.decode == 2;
    }
    CHECK_NEAR(flips, N / 2, 150);
    CHECK_NEAR(logs / N, 0, 0.02);
    CHECK_NEAR(area / N, 0.47, 0.02); /* not 0.54: tries that do not fit are large ones */
    CHECK(halves > N / 4);
    t.whole = 1;
    cf_plan p;
    for (uint64_t i = 0; i < 50; i++) {
        CHECK_STATUS(cf_transform_plan(&t, 1400, 1600, (cf_draw){7, 3, i}, &p), CFX_OK);
        CHECK_EQ(p.decode, 1);
    }
}

TEST(a_part_that_can_have_no_allowed_ratio_is_the_largest_in_the_middle) {
    cfx_image_options o = {.size = sizeof o, .n = 1, .dtype = CFX_UINT8, .deviation = {1, 1, 1}};
    o.steps[0] = (cfx_image_step){CFX_IMAGE_RANDOMRESIZEDCROP, 8, 8, {1, 1, 0.5, 2}};
    cf_transform t;
    cf_plan p;
    CHECK_STATUS(cf_transform_read(&o, &t), CFX_OK);
    CHECK_STATUS(cf_transform_plan(&t, 10, 100, (cf_draw){0, 0, 0}, &p), CFX_OK);
    CHECK(p.box.x == 40 && p.box.y == 0 && p.box.width == 20 && p.box.height == 10);
    CHECK_STATUS(cf_transform_plan(&t, 101, 10, (cf_draw){0, 0, 0}, &p), CFX_OK);
    CHECK(p.box.x == 0 && p.box.y == 40 && p.box.width == 10 && p.box.height == 20);
}

/* ---- what is refused ------------------------------------------------------------------------------- */

static void check_bad(const char *path, const char *message) {
    const cf_transform t = bytes_transform();
    cf_picture p = {.transform = &t};
    cfx_status status = cf_picture_open(&p, path, (cf_draw){0, 0, 0});
    if (status == CFX_OK) {
        unsigned char *got = malloc((size_t)p.width * (size_t)p.height * 3);
        status = cf_picture_write(&p, got);
        free(got);
    }
    CHECK_STATUS(status, CFX_EIO);
    CHECK(test_says(message));
    cf_picture_free(&p);
}

/* Of a progressive file, with so many copies of its last scan. */
static const char *many_scans(int scans) {
    size_t bytes, from = 0;
    char *data = test_bytes(FOLDER "progressive.jpg", &bytes);
    for (size_t i = 0; i + 1 < bytes; i++)
        if ((unsigned char)data[i] == 0xFF && (unsigned char)data[i + 1] == 0xDA) from = i;
    const size_t scan = bytes - 2 - from, all = bytes + (size_t)scans * scan;
    char *more = malloc(all);
    memcpy(more, data, from);
    for (int k = 0; k <= scans; k++) memcpy(more + from + (size_t)k * scan, data + from, scan);
    memcpy(more + all - 2, data + bytes - 2, 2);
    const char *path = test_file("scans.jpg", more, all, 0);
    free(data);
    free(more);
    return path;
}

TEST(bad_files_are_named_with_what_is_wrong) {
    check_bad(FOLDER "cut.jpg", "cut.jpg: truncated");
    check_bad(FOLDER "unended.jpg", "unended.jpg: truncated: there is no end marker");
    check_bad(FOLDER "empty.jpg", "empty.jpg: empty");
    check_bad(FOLDER "png.jpg", "png.jpg: Not a JPEG file: starts with 0x89 0x50");
    check_bad(FOLDER "absent.jpg", "absent.jpg: No such file");
    check_bad("tests/fixtures", "tests/fixtures: not a regular file");
    check_bad(many_scans(600), "more than 500 scans");
    size_t bytes;
    char *data = test_bytes(FOLDER "420.jpg", &bytes);
    for (size_t i = 0; i + 9 < bytes; i++) /* 65,500 pixels each way */
        if ((unsigned char)data[i] == 0xFF && (unsigned char)data[i + 1] == 0xC0)
            memcpy(data + i + 5, "\xFF\xDC\xFF\xDC", 4);
    check_bad(test_file("huge.jpg", data, bytes, 0), "huge.jpg: 65500 x 65500 pixels are more than 178956970");
    free(data);
}

TEST(wide_pictures_are_pictures) {
    enum { WIDE = 20000 };
    unsigned char *row = calloc(WIDE, 3);
    const char *path = test_path("wide.jpg");
    cfx_image_options o = {.size = sizeof o, .n = 2, .dtype = CFX_FLOAT32, .deviation = {1, 1, 1}};
    o.steps[0] = (cfx_image_step){CFX_IMAGE_RESIZE, 0, 256, {0}};
    o.steps[1] = (cfx_image_step){CFX_IMAGE_CENTRECROP, 224, 224, {0}};
    cfx_tensor x = {0};
    CHECK_STATUS(cf_jpeg_write(path, row, 1, WIDE, 3, 90), CFX_OK);
    CHECK_STATUS(cfx_image_read(cfx_device_at(test_context(), 0), path, &o, 0, &x), CFX_OK);
    CHECK(x._shape[0] == 224 && x._shape[1] == 224 && x._shape[2] == 3);
    cfx_release(&x);
    free(row);
}

static void check_step_refused(int32_t n, cfx_image_step a, cfx_image_step b, const char *message) {
    cfx_image_options o = {.size = sizeof o, .n = n, .dtype = CFX_UINT8, .deviation = {1, 1, 1}};
    cf_transform t;
    o.steps[0] = a;
    o.steps[1] = b;
    CHECK_STATUS(cf_transform_read(&o, &t), CFX_EARG);
    CHECK(test_says(message));
}

TEST(steps_that_do_not_fit_are_refused) {
    const cfx_image_step resize = {CFX_IMAGE_RESIZE, 0, 20, {0}}, crop = {CFX_IMAGE_CENTRECROP, 16, 16, {0}};
    const cfx_image_step flip = {CFX_IMAGE_FLIP, 0, 0, {0.5}};
    check_step_refused(2, crop, resize, "step 2 cannot come behind step 1");
    check_step_refused(2, resize, resize, "step 2 cannot come behind step 1");
    check_step_refused(2, flip, flip, "step 2 cannot come behind step 1");
    check_step_refused(1, (cfx_image_step){0}, flip, "step of kind 0");
    check_step_refused(1, (cfx_image_step){CFX_IMAGE_RESIZE, 0, 0, {0}}, flip, "a size of 0 x 0");
    check_step_refused(1, (cfx_image_step){CFX_IMAGE_CENTRECROP, 0, 5, {0}}, flip, "a size of 0 x 5");
    check_step_refused(1, (cfx_image_step){CFX_IMAGE_FLIP, 0, 0, {(double)NAN}}, flip, "flip: nan");
    check_step_refused(1, (cfx_image_step){CFX_IMAGE_JITTER, 0, 0, {0, 0, 0, 0.6}}, flip, "jitter: value 4 is 0.6");
    check_step_refused(1, (cfx_image_step){CFX_IMAGE_RANDOMRESIZEDCROP, 5, 5, {0, 1, 1, 1}}, flip, "scale 0 to 1");
    check_step_refused(9, flip, flip, "9 steps; expected 0 to 8");
}

/* ---- any bytes ------------------------------------------------------------------------------------- */

TEST(a_picture_that_cannot_be_written_leaves_the_old_one_and_nothing_else) {
    enum { SIDE = 100 };
    static unsigned char noise[SIDE * SIDE * 3];
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (unsigned char)bits();
    const int64_t small[] = {2, 2, 3}, large[] = {SIDE, SIDE, 3};
    cfx_device *cpu = cfx_device_at(test_context(), 0);
    cfx_tensor x = {0}, y = {0};
    CHECK_STATUS(cfx_from_host(cpu, CFX_UINT8, 3, small, noise, &x), CFX_OK);
    CHECK_STATUS(cfx_from_host(cpu, CFX_UINT8, 3, large, noise, &y), CFX_OK);
    CHECK_STATUS(cfx_image_write(test_path("kept.jpg"), &x, 90), CFX_OK);
    size_t before, after;
    char *old = test_bytes(test_path("kept.jpg"), &before);
    const int files = test_count_files();
    test_fill_disk(true);
    CHECK_STATUS(cfx_image_write(test_path("kept.jpg"), &y, 90), CFX_EIO);
    test_fill_disk(false);
    CHECK(test_says("kept.jpg: cannot write: File too large"));
    CHECK_EQ(test_count_files(), files);
    char *now = test_bytes(test_path("kept.jpg"), &after);
    CHECK(before == after && memcmp(old, now, before) == 0);
    free(old);
    free(now);
    cfx_release(&x);
    cfx_release(&y);
}

/* What is damaged: the fixtures, read once. */
typedef struct bytes {
    char *data;
    size_t n;
} bytes;

static void read_good(bytes all[GOOD]) {
    for (int i = 0; i < GOOD; i++) {
        char path[256];
        snprintf(path, sizeof path, FOLDER "%s.jpg", good[i]);
        all[i].data = test_bytes(path, &all[i].n);
    }
}

/* A damaged picture, which the caller frees: of its own size, so that a byte read behind it is seen. */
static unsigned char *damaged(const bytes *picture, size_t *n) {
    static unsigned char data[16 * 1024];
    memcpy(data, picture->data, picture->n);
    *n = mutate(data, picture->n, sizeof data);
    unsigned char *exact = malloc(*n);
    memcpy(exact, data, *n);
    return exact;
}

TEST(any_bytes_are_a_picture_or_refused) {
    enum { MOST_PIXELS = 1 << 18 };
    cfx_image_options o = {.size = sizeof o, .n = 2, .dtype = CFX_FLOAT32, .deviation = {1, 1, 1}};
    o.steps[0] = (cfx_image_step){CFX_IMAGE_RANDOMRESIZEDCROP, 20, 20, {0.08, 1, 0.75, 1.33}};
    o.steps[1] = (cfx_image_step){CFX_IMAGE_FLIP, 0, 0, {0.5}};
    cf_transform t;
    CHECK_STATUS(cf_transform_read(&o, &t), CFX_OK);
    cf_picture p = {.transform = &t};
    bytes all[GOOD];
    float out[20 * 20 * 3];
    int decoded = 0, refused = 0;
    const int rounds = fuzz_rounds(SANITIZED ? 600 : 3000);
    read_good(all);
    CHECK_STATUS(cf_jpeg_new(&p.jpeg), CFX_OK);
    for (int k = 0; k < rounds; k++) {
        size_t n;
        state = (uint64_t)k + 1000;
        unsigned char *data = damaged(&all[k % GOOD], &n);
        cfx_status status = cf_jpeg_open(p.jpeg, data, n, &p.width, &p.height);
        if (status == CFX_OK && (int64_t)p.width * p.height > MOST_PIXELS) status = CFX_EIO; /* only slow */
        if (status == CFX_OK) status = cf_transform_plan(&t, p.height, p.width, (cf_draw){1, 1, (uint64_t)k}, &p.plan);
        if (status == CFX_OK) status = cf_picture_write(&p, out);
        free(data);
        decoded += status == CFX_OK;
        refused += status == CFX_EIO;
    }
    CHECK_EQ(decoded + refused, rounds);
    CHECK(decoded > rounds / 10 && refused > rounds / 10);
    cf_picture_free(&p);
    for (int i = 0; i < GOOD; i++) free(all[i].data);
}

/* ---- lists of files -------------------------------------------------------------------------------- */

static const char mapping_text[] = "n01 tench, Tinca tinca\nn02 goldfish\nn03 great white shark\n";
static const char solution_text[] = "ImageId,PredictionString\nn01_1,n01 1 2 3 4 \nn02_7,n02 5 6 7 8 n02 1 1 2 2\n"
                                    "n03_1,n03 1 2 3 4\nn03_2,n03 1 2 3 4 n01 1 2 3 4 \n";

static cfx_status read_list(const char *mapping, size_t n, const char *solutions, size_t m, int32_t nclasses,
                            const char *const *classes, cfx_images **out) {
    char root[256];
    snprintf(root, sizeof root, "%s", test_path(""));
    test_file("LOC_synset_mapping.txt", mapping, n, 0);
    test_file("LOC_train_solution.csv", solutions, m, 0);
    return cfx_images_imagenet(test_context(), root, "train", NULL, nclasses, classes, out);
}

TEST(imagenets_tables_are_lists_of_files) {
    cfx_images *images = NULL;
    char path[512];
    int32_t classes, id;
    int64_t n, left_out;
    CHECK_STATUS(read_list(mapping_text, sizeof mapping_text - 1, solution_text, sizeof solution_text - 1, 2,
                           (const char *[]){"n03", "n01"}, &images),
                 CFX_OK);
    CHECK_STATUS(cfx_images_count(images, &n, &classes, &left_out), CFX_OK);
    CHECK(n == 2 && classes == 2 && left_out == 1);
    CHECK_STATUS(cfx_images_at(images, 0, path, sizeof path, &id), CFX_OK);
    CHECK(strstr(path, "/ILSVRC/Data/CLS-LOC/train/n01/n01_1.JPEG") && id == 1);
    CHECK_STATUS(cfx_images_at(images, 1, path, sizeof path, &id), CFX_OK);
    CHECK(strstr(path, "/train/n03/n03_1.JPEG") && id == 0);
    CHECK_STATUS(cfx_images_at(images, 2, path, sizeof path, &id), CFX_EARG);
    CHECK_STATUS(cfx_images_at(images, 0, path, 10, &id), CFX_EARG);
    cfx_images_free(&images);
    CHECK(!images);
}

static void check_table(const char *mapping, const char *solutions, const char *message) {
    cfx_images *images = NULL;
    CHECK_STATUS(read_list(mapping, strlen(mapping), solutions, strlen(solutions), 0, NULL, &images), CFX_EIO);
    CHECK(test_says(message) && !images);
}

TEST(bad_tables_are_refused_with_their_line) {
    static const char head[] = "ImageId,PredictionString\n";
    char text[256];
    static const char *const rows[][2] = {
        {"n01_1", "line 2: expected an ImageId and a PredictionString"},
        {"n01_1,n01 1 2 3 4,5", "line 2: expected an ImageId and a PredictionString"},
        {"n01_1,", "line 2: there is no box"},
        {"n01_1,n01 1 2 3", "line 2: expected a class and four numbers for each box"},
        {"n01_1,n01 1 2 3 x", "line 2: expected a class and four numbers for each box"},
        {"n01_1,n09 1 2 3 4", "line 2: class 'n09' is not in the mapping"},
        {",n01 1 2 3 4", "line 2: the ImageId is no name of a file"},
        {"../../etc/passwd,n01 1 2 3 4", "line 2: the ImageId is no name of a file"},
        {"a..b,n01 1 2 3 4", "line 2: the ImageId is no name of a file"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(text, sizeof text, "%s%s\n", head, rows[i][0]);
        check_table(mapping_text, text, rows[i][1]);
    }
    check_table(mapping_text, "n01_1,n01 1 2 3 4\n", "line 1: expected ImageId,PredictionString");
    check_table(mapping_text, "ImageId,PredictionString\nn01_1,n01 1 2 3 4\n", "there are no pictures of class 'n02'");
    check_table("", solution_text, "there are no classes in it");
    check_table("n01 a\nn01 b\n", solution_text, "class 'n01' is there twice");
    check_table("n01 a\n../n02 b\n", solution_text, "line 2: expected the name of a class and its description");
    cfx_images *images = NULL;
    static const char zero[] = "ImageId,PredictionString\nn01\0_1,n01 1 2 3 4\n";
    CHECK_STATUS(read_list(mapping_text, strlen(mapping_text), zero, sizeof zero - 1, 0, NULL, &images), CFX_EIO);
    CHECK(test_says("line 2: expected an ImageId and a PredictionString"));
    CHECK_STATUS(read_list(mapping_text, strlen(mapping_text), solution_text, strlen(solution_text), 1,
                           (const char *[]){"n07"}, &images),
                 CFX_EARG);
    CHECK(test_says("there is no class 'n07' in the mapping"));
}

/* Of four rounds one damages the mapping, three the solutions; the other table is whole. */
TEST(any_bytes_are_tables_or_refused) {
    unsigned char data[4096];
    char root[256];
    int read = 0, refused = 0;
    const int rounds = fuzz_rounds(SANITIZED ? 300 : 600);
    snprintf(root, sizeof root, "%s", test_path(""));
    test_file("LOC_train_solution.csv", solution_text, sizeof solution_text - 1, 0);
    for (int k = 0; k < rounds; k++) {
        const bool is_mapping = k < rounds / 4;
        const char *const text = is_mapping ? mapping_text : solution_text;
        size_t n = is_mapping ? sizeof mapping_text - 1 : sizeof solution_text - 1;
        state = (uint64_t)k;
        memcpy(data, text, n);
        n = mutate_text(data, n, sizeof data);
        if (k == rounds / 4) test_file("LOC_synset_mapping.txt", mapping_text, sizeof mapping_text - 1, 0);
        test_file(is_mapping ? "LOC_synset_mapping.txt" : "LOC_train_solution.csv", data, n, 0);
        cfx_images *images = NULL;
        const cfx_status status = cfx_images_imagenet(test_context(), root, "train", NULL, 0, NULL, &images);
        read += status == CFX_OK;
        refused += status == CFX_EIO;
        cfx_images_free(&images);
    }
    CHECK_EQ(read + refused, rounds);
    CHECK(read > rounds / 20 && refused > rounds / 4);
}
