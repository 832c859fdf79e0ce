/* The first steps of an outside program: two tensors on the CPU, added, and the sum read. */
#include <conflux.h>
#include <stdio.h>

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, cfx_error());
    return 1;
}

int main(void) {
    cfx_context *context;
    cfx_context_options options = {.size = sizeof options, .devices = "cpu"};
    const int64_t shape[] = {2, 3};
    cfx_tensor ones = {0}, twos = {0}, both = {0}, sum = {0};
    float value;
    int failed = 1;

    if (cfx_abi_version() != CFX_ABI_VERSION) return fail("another version than the header's");
    if (cfx_context_new(&options, &context)) return fail("context");
    cfx_device *cpu = cfx_device_at(context, 0);
    if (cfx_full(cpu, CFX_FLOAT32, 2, shape, 1, &ones) || cfx_full(cpu, CFX_FLOAT32, 2, shape, 2, &twos) ||
        cfx_binary(cfx_op_find("add"), &ones, &twos, &both) ||
        cfx_reduce(cfx_op_find("sum"), &both, 0, NULL, 0, 0, &sum) || cfx_read(&sum, &value, sizeof value)) {
        fail("sum");
    } else {
        failed = printf("Conflux %s: %g\n", cfx_version(), value) < 0;
    }
    cfx_release(&ones);
    cfx_release(&twos);
    cfx_release(&both);
    cfx_release(&sum);
    cfx_context_free(context);
    return failed;
}
