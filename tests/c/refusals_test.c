/* No public function takes such arguments: no tensor, a released one, one whose context has ended, no device. */
#include "test.h"

#include "queues.h"

static cfx_context *context;
static cfx_device *cpu;
static cfx_tensor a, image, ids, raw, out, more; /* [2, 2] and [1, 2, 2, 1] float32, [2] int64 and uint8; empty */
static cfx_tape *tape;
static cfx_layout *layout;
static const char *text; /* of the call at hand */

static const char *const one_path[] = {"w"};
static const int64_t two[2] = {2, 2}, zero[2] = {0, 0}, flat[1] = {4};
static const int32_t dims[2] = {1, 0};
static const cfx_window window = {.stride = {1, 1}, .dilation = {1, 1}};

static void setup(void) {
    const int64_t n = 2;
    context = new_context("cpu");
    cpu = cfx_device_at(context, 0);
    CHECK_STATUS(cfx_full(cpu, CFX_FLOAT32, 2, two, 1, &a), CFX_OK);
    CHECK_STATUS(cfx_full(cpu, CFX_FLOAT32, 4, (int64_t[]){1, 2, 2, 1}, 1, &image), CFX_OK);
    CHECK_STATUS(cfx_full(cpu, CFX_INT64, 1, &n, 1, &ids), CFX_OK);
    CHECK_STATUS(cfx_full(cpu, CFX_UINT8, 1, &n, 1, &raw), CFX_OK);
    CHECK_STATUS(cfx_layout_new(1, (const cfx_tensor *[]){&a}, one_path, &layout), CFX_OK);
}
static void teardown(void) {
    cfx_release(&a);
    cfx_release(&image);
    cfx_release(&ids);
    cfx_release(&raw);
    cfx_layout_free(layout);
    CHECK_EQ(blocks_of(cpu), 0);
    cfx_context_free(context);
}

static cfx_status update(cfx_tensor *p, cfx_tensor *g, cfx_tensor *m) {
    const cfx_rule rule = {.size = sizeof rule, .name = "momentum", .rate = 1, .clip_norm = 1};
    return cfx_optim_update(&rule, 1, 1, &p, (const cfx_tensor *[]){g}, &m, NULL, NULL, NULL);
}

static cfx_status load(const cfx_tensor *column, cfx_device *device) {
    const cfx_loader_options options = {.size = sizeof options, .batch = 1, .devices = 1};
    cfx_loader *loader = NULL;
    return cfx_loader_new(&options, 2, (const cfx_tensor *[]){&a, column}, (cfx_device *[]){device}, &loader);
}

#define ALL(...) \
    (const cfx_tensor *[]) { __VA_ARGS__ }
#define EACH(...) \
    (cfx_tensor *[]) { __VA_ARGS__ }
/* One call; where it is not the one that is asked for the next is looked at. */
#define CALL(...) \
    if (row == at++) return text = #__VA_ARGS__, (__VA_ARGS__)
/* Of a function without a status: true is a refusal. */
#define ASK(...) CALL((__VA_ARGS__) ? CFX_EARG : CFX_OK)

enum { END = -2 };

/* Call number `row` with the tensor x in one of its places; END behind the last. */
static int call(int row, cfx_tensor *x) {
    int at = 0;
    void *pointer;
    cfx_layout *made;
    char bytes[16];
    CALL(cfx_retain(x, &out));
    CALL(cfx_detach(x, &out));
    ASK(cfx_tensor_device(x) == NULL);
    ASK(cfx_tensor_layout(x) == NULL);
    ASK(cfx_is_contiguous(x) == cfx_is_contiguous(x)); /* any answer */
    ASK(cfx_ready(x));
    ASK(!cfx_is_watched(x));
    ASK(!cfx_layout_holds(layout, 1, ALL(x)));
    CALL(cfx_wait(x));
    CALL(cfx_read(x, bytes, 16));
    CALL(cfx_pointer(x, &pointer));
    CALL(cfx_reshape(x, 1, flat, &out));
    CALL(cfx_permute(x, 2, dims, &out));
    CALL(cfx_transpose(x, 0, 1, &out));
    CALL(cfx_slice(x, 0, 0, 1, 1, &out));
    CALL(cfx_select(x, 0, 0, &out));
    CALL(cfx_squeeze(x, 0, &out));
    CALL(cfx_unsqueeze(x, 0, &out));
    CALL(cfx_expand(x, 2, two, &out));
    CALL(cfx_diagonal(x, &out));
    CALL(cfx_to(x, NULL, CFX_FLOAT64, &out));
    CALL(cfx_clone(x, &out));
    CALL(cfx_contiguous(x, &out));
    CALL(cfx_concat(1, ALL(x), 0, &out));
    CALL(cfx_concat(2, ALL(&a, x), 0, &out));
    CALL(cfx_stack(1, ALL(x), 0, &out));
    CALL(cfx_stack(2, ALL(&a, x), 0, &out));
    CALL(cfx_flip(x, 1, dims, &out));
    CALL(cfx_pad(x, zero, zero, 0, &out));
    CALL(cfx_tile(x, two, &out));
    CALL(cfx_unary(CF_OP_neg, x, 0, 0, &out));
    CALL(cfx_binary(CF_OP_add, x, &a, &out));
    CALL(cfx_binary(CF_OP_add, &a, x, &out));
    CALL(cfx_binary_scalar(CF_OP_add, x, 1, 0, &out));
    CALL(cfx_where(x, &a, &a, &out));
    CALL(cfx_where(&a, x, &a, &out));
    CALL(cfx_where(&a, &a, x, &out));
    CALL(cfx_binary_into(CF_OP_add, x, &a));
    CALL(cfx_binary_into(CF_OP_add, &a, x));
    CALL(cfx_binary_scalar_into(CF_OP_add, x, 1));
    CALL(cfx_clamp_into(x, 0, 1));
    CALL(cfx_fill(x, 1));
    CALL(cfx_copy(x, &a));
    CALL(cfx_copy(&a, x));
    CALL(cfx_reduce(CF_OP_sum, x, 0, NULL, 0, 0, &out));
    CALL(cfx_softmax(CF_OP_softmax, x, 0, &out));
    CALL(cfx_topk(x, 1, 0, &out, &more));
    CALL(cfx_sort(x, 0, 0, &out, &more));
    CALL(cfx_tri(x, 0, 0, &out));
    CALL(cfx_onehot(x, 2, &out));
    CALL(cfx_matmul(x, &a, &out));
    CALL(cfx_matmul(&a, x, &out));
    CALL(cfx_dense(x, &a, NULL, -1, &out));
    CALL(cfx_dense(&a, x, NULL, -1, &out));
    if (x) CALL(cfx_dense(&a, &a, x, -1, &out));
    CALL(cfx_conv(x, &image, NULL, NULL, -1, &window, 1, &out));
    CALL(cfx_conv(&image, x, NULL, NULL, -1, &window, 1, &out));
    if (x) CALL(cfx_conv(&image, &image, x, NULL, -1, &window, 1, &out));
    if (x) CALL(cfx_conv(&image, &image, NULL, x, -1, &window, 1, &out));
    CALL(cfx_conv_transpose(x, &image, NULL, -1, &window, zero, 1, &out));
    CALL(cfx_conv_transpose(&image, x, NULL, -1, &window, zero, 1, &out));
    if (x) CALL(cfx_conv_transpose(&image, &image, x, -1, &window, zero, 1, &out));
    CALL(cfx_maxpool(x, &window, &out));
    CALL(cfx_maxpool(&image, NULL, &out));
    CALL(cfx_meanpool(x, &window, 1, &out));
    CALL(cfx_adaptive_meanpool(x, 1, 1, &out));
    CALL(cfx_upsample(x, 2, 2, NULL, 0, 0, &out));
    CALL(cfx_normalise(x, &a, &a, &out));
    CALL(cfx_normalise(&raw, x, &a, &out));
    CALL(cfx_groupnorm(x, NULL, NULL, 1, 0, &out));
    if (x) CALL(cfx_groupnorm(&a, x, x, 1, 0, &out));
    CALL(cfx_batchnorm(x, &(cfx_batch_state){0}, NULL, -1, 0, 0, 1, &out));
    CALL(cfx_batchnorm(&a, NULL, NULL, -1, 0, 0, 1, &out));
    if (x) CALL(cfx_batchnorm(&a, &(cfx_batch_state){.gamma = x, .beta = x}, NULL, -1, 0, 0, 1, &out));
    if (x) CALL(cfx_batchnorm(&a, &(cfx_batch_state){.mean = x, .var = x}, NULL, -1, 0, 0, 1, &out));
    if (x) CALL(cfx_batchnorm(&a, &(cfx_batch_state){.count = x}, NULL, -1, 0, 0, 1, &out));
    if (x) CALL(cfx_batchnorm(&a, &(cfx_batch_state){0}, x, -1, 0, 0, 1, &out));
    CALL(cfx_index(x, 0, &ids, &out));
    CALL(cfx_index(&a, 0, x, &out));
    CALL(cfx_gather(x, 0, &ids, &out));
    CALL(cfx_gather(&a, 0, x, &out));
    CALL(cfx_scatter_add(x, 0, &ids, &a, &out));
    CALL(cfx_scatter_add(&a, 0, x, &a, &out));
    CALL(cfx_scatter_add(&a, 0, &ids, x, &out));
    CALL(cfx_layernorm(x, NULL, NULL, 0, &out));
    if (x) CALL(cfx_layernorm(&a, x, NULL, 0, &out));
    if (x) CALL(cfx_layernorm(&a, NULL, x, 0, &out));
    CALL(cfx_dropout(x, 0.5, 0, &out));
    CALL(cfx_crossentropy(x, &ids, 0, -1, CFX_MEAN, &out));
    CALL(cfx_crossentropy(&a, x, 0, -1, CFX_MEAN, &out));
    CALL(cfx_loss(CF_OP_mse, x, &a, 0, CFX_MEAN, &out));
    CALL(cfx_loss(CF_OP_mse, &a, x, 0, CFX_MEAN, &out));
    CALL(cfx_tape_begin(context, 2, EACH(&a, x), &tape));
    CALL(cfx_tape_backward(NULL, x, EACH(&out), 0));
    CALL(cfx_tape_record(1, 1, ALL(x), 0, NULL, &a));
    CALL(cfx_tape_record(1, 1, ALL(&a), 1, ALL(x), &a));
    CALL(cfx_tape_record(1, 1, ALL(&a), 0, NULL, x));
    CALL(cfx_tape_custom(NULL, NULL, x));
    CALL(cfx_tape_give(NULL, 0, x));
    CALL(cfx_layout_new(1, ALL(x), one_path, &made));
    CALL(cfx_layout_pack(layout, cpu, EACH(x)));
    CALL(cfx_layout_copy(layout, cpu, ALL(x), EACH(&out)));
    CALL(update(x, &a, &a)); /* cfx_optim_update */
    CALL(update(&a, x, &a));
    CALL(update(&a, &a, x));
    CALL(cfx_norm(2, ALL(&a, x), &out));
    CALL(cfx_allreduce("sum", 1, 1, EACH(x)));
    CALL(cfx_reduce_to("sum", 0, 2, 1, EACH(&a, x)));
    CALL(cfx_broadcast(0, 2, 1, EACH(&a, x)));
    CALL(cfx_weighted_mean((const double[]){1, 2}, -1, 2, 1, EACH(&a, x)));
    CALL(cfx_common(2, 1, EACH(&a, x)));
    CALL(cfx_check_replicas("f", -1, 2, 1, EACH(&a, x), NULL));
    CALL(cfx_allgather(1, ALL(x), EACH(&a)));
    CALL(cfx_allgather(1, ALL(&a), EACH(x)));
    CALL(cfx_reduce_scatter("sum", 1, ALL(x), EACH(&a)));
    CALL(cfx_reduce_scatter("sum", 1, ALL(&a), EACH(x)));
    CALL(load(x, cpu)); /* cfx_loader_new */
    CALL(cfx_image_write("/nowhere/file", x, 90));
    CALL(cfx_safetensors_write("/nowhere/file", 1, ALL(x), one_path, 0, NULL, NULL));
    return END;
}

/* And with no device. */
static int call_without_device(int row) {
    int at = 0;
    static float values[4];
    const cfx_image_options images = {.size = sizeof images, .dtype = CFX_UINT8, .deviation = {1, 1, 1}};
    CALL(cfx_empty(NULL, CFX_FLOAT32, 2, two, &out));
    CALL(cfx_full(NULL, CFX_FLOAT32, 2, two, 1, &out));
    CALL(cfx_from_host(NULL, CFX_FLOAT32, 2, two, values, &out));
    CALL(cfx_share(NULL, CFX_FLOAT32, 2, two, values, sizeof values, NULL, NULL, &out));
    CALL(cfx_arange(NULL, CFX_FLOAT32, 4, 0, 1, &out));
    CALL(cfx_random(NULL, CFX_FLOAT32, 2, two, "uniform", 0, 1, 0, &out));
    CALL(cfx_layout_make(layout, NULL, -1, 1, EACH(&out)));
    CALL(cfx_layout_copy(layout, NULL, ALL(&a), EACH(&out)));
    CALL(cfx_layout_pack(layout, NULL, EACH(&a)));
    CALL(cfx_idx_read(NULL, "/nowhere/file", &out));
    CALL(cfx_csv_read(NULL, "/nowhere/file", ',', 0, CFX_FLOAT32, &out));
    CALL(cfx_image_read(NULL, "/nowhere/file", &images, 0, &out));
    CALL(cfx_safetensors_read(NULL, 0, NULL, &out));
    CALL(load(&a, NULL));
    CALL(cfx_loader_next(NULL, NULL, NULL, NULL));
    CALL(cfx_group(1, (cfx_device *[]){NULL}, (char[16]){0}, 16));
    ASK(cfx_device_name(NULL)[0] == 0);
    ASK(cfx_device_threads(NULL) == 0);
    ASK(cfx_device_context(NULL) == NULL);
    return END;
}

static void refused(int status) {
    if (status != CFX_EARG) printf("# %s: status %d, %s\n", text, status, cfx_error());
    CHECK_EQ(status, CFX_EARG);
    CHECK(out._buffer == NULL && more._buffer == NULL && tape == NULL);
}

TEST(no_function_takes_a_tensor_that_is_none) {
    setup();
    for (int row = 0, status; (status = call(row, NULL)) != END; row++) refused(status);
    CHECK_EQ(a._buffer->refs, 1);
    CHECK(a._buffer->holds == NULL);
    teardown();
}

TEST(no_function_takes_a_tensor_that_was_released) {
    setup();
    cfx_tensor x = full(cpu, 4, 1);
    cfx_release(&x);
    for (int row = 0, status; (status = call(row, &x)) != END; row++) refused(status);
    CHECK_EQ(a._buffer->refs, 1);
    teardown();
}

TEST(no_function_takes_a_tensor_whose_context_has_ended) {
    cfx_context *other = new_context("cpu");
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_full(cfx_device_at(other, 0), CFX_FLOAT32, 2, two, 1, &x), CFX_OK);
    cfx_context_free(other);
    setup();
    for (int row = 0, status; (status = call(row, &x)) != END; row++) refused(status);
    CHECK_EQ(a._buffer->refs, 1);
    cfx_release(&x);
    teardown();
}

TEST(no_function_takes_a_device_that_is_none) {
    setup();
    for (int row = 0, status; (status = call_without_device(row)) != END; row++) refused(status);
    teardown();
}

/* The rows above are complete: each function of conflux.h that has to do with a tensor is in them. */
TEST(every_public_function_that_takes_a_tensor_is_tried) {
    setup();
    char tried[32768] = "cfx_release(cfx_optim_update(cfx_loader_new(";
    for (int row = 0; call(row, &out) != END; row++) strncat(tried, text, sizeof tried - strlen(tried) - 1);
    for (int row = 0; call_without_device(row) != END; row++) strncat(tried, text, sizeof tried - strlen(tried) - 1);
    int found = 0;
    for (const char *p = cfx_cdef(), *end; (end = strchr(p, ';')) != NULL; p = end + 1) {
        const char *open = end; /* comments, which may have a ( too, come first */
        while (open > p && *open != '(') open--;
        const char *name = open, *tensor = strstr(open, "cfx_tensor");
        char whole[80];
        while (name > p && (name[-1] == '_' || (name[-1] >= 'a' && name[-1] <= 'z'))) name--;
        if (strncmp(name, "cfx_", 4) != 0 || !tensor || tensor > end) continue;
        snprintf(whole, sizeof whole, "%.*s(", (int)(open - name), name);
        found++;
        if (!CHECK(strstr(tried, whole) != NULL)) printf("# %s is not tried\n", whole);
    }
    CHECK(found > 70);
    teardown();
}
