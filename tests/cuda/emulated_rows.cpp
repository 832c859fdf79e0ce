/* emulated_rows.cpp: what core/cuda/device.cu gives kernels otherwise, for C tests that call rows by themselves. */
#include "cuda/conv.cuh"
#include "cuda/matmul.cuh"
#include "emulated_backend.h"

static int32_t some;
static uint64_t word, shown;
static cf_cuda_fault fault;
static cf_cuda_device device;
static void *scratch;

void *cf_cuda_scratch(cf_worker *, size_t bytes) {
    free(scratch);
    scratch = malloc(bytes ? bytes : 1);
    if (scratch) memset(scratch, 0xA5, bytes); /* a kernel finds no zeros there */
    return scratch;
}

cfx_status cf_cuda_launched(const char *) { return CFX_OK; }
cfx_status cf_cuda_check(cudaError_t, const char *) { return CFX_OK; }

void cf_emulated_begin(cf_worker *worker) {
    device.shared.sms = 4;
    device.shared.fault = &fault;
    worker->state = &device;
    worker->local = &device.shared;
    memset(&fault, 0, sizeof fault);
    fault.some = &some;
    fault.ticket = 1;
    fault.halt = {&word, &shown};
    device.shared.halt = &word;
    word = shown = 0;
    if (!device.products && cf_cuda_products_begin(&device) != CFX_OK) abort();
}

void cf_emulated_end(cf_worker *worker) {
    cf_cuda_convolutions_end(&device);
    cf_cuda_products_end(&device);
    worker->state = worker->local = NULL;
    free(scratch);
    scratch = NULL;
}

cfx_status cf_emulated_fault(void) {
    word = shown = 0;
    return fault.set ? cf_cuda_raise(&fault) : CFX_OK;
}
