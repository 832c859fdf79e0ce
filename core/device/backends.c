/* backends.c: the registry of backends, plugins, device specs.  See backends.h. */
#include "device/backends.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "cpu/backend.h"
#include "device/libraries.h"

/* ---- the registry ----------------------------------------------------------------------------------- */

enum { MOST = 8 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const cf_backend *added[MOST];
static int32_t nadded;
static bool has_tried_cuda;
static char why_no_cuda[512];

/* Opens libconflux_cuda.so in the directory CONFLUX_PLUGINS, else beside this library, else where the system looks. */
static void load_cuda(void) {
    Dl_info here;
    char path[4096];
    const char *wanted = getenv("CONFLUX_PLUGINS");
    const char *slash = dladdr((void *)load_cuda, &here) && here.dli_fname ? strrchr(here.dli_fname, '/') : NULL;
    if (wanted && *wanted) snprintf(path, sizeof path, "%s/libconflux_cuda.so", wanted);
    else if (slash)
        snprintf(path, sizeof path, "%.*s/libconflux_cuda.so", (int)(slash - here.dli_fname), here.dli_fname);
    else snprintf(path, sizeof path, "libconflux_cuda.so");
    if (!(wanted && *wanted) && access(path, F_OK) != 0) snprintf(path, sizeof path, "libconflux_cuda.so");
    void *library = cf_library_open(path, why_no_cuda, sizeof why_no_cuda);
    if (!library) return;
    const cf_backend *(*entry)(void);
    *(void **)&entry = dlsym(library, "cf_backend_entry");
    const cf_backend *backend = entry ? entry() : NULL;
    if (!backend || backend->abi != CFX_ABI_VERSION) {
        snprintf(why_no_cuda, sizeof why_no_cuda, "libconflux_cuda.so is of another version");
        return;
    }
    added[nadded++] = backend;
}

/* The backend of that kind, or NULL.  The first to ask for cuda waits for its plugin. */
static const cf_backend *find(const char *kind) {
    if (strcmp(kind, "cpu") == 0) return cf_backend_cpu();
    const cf_backend *found = NULL;
    pthread_mutex_lock(&lock);
    if (strcmp(kind, "cuda") == 0 && !has_tried_cuda) {
        has_tried_cuda = true;
        load_cuda();
    }
    for (int32_t i = 0; i < nadded && !found; i++)
        if (strcmp(added[i]->name, kind) == 0) found = added[i];
    pthread_mutex_unlock(&lock);
    return found;
}

cfx_status cf_backend_add(const cf_backend *backend) {
    pthread_mutex_lock(&lock);
    const bool fits = nadded < MOST - 1;
    if (fits) added[nadded++] = backend;
    pthread_mutex_unlock(&lock);
    return fits ? CFX_OK : cf_fail(CFX_EARG, "more than %d backends", MOST - 1);
}

const cf_backend *cf_backend_of(const char *name) {
    char kind[16];
    if (sscanf(name, " %15[a-z]", kind) != 1) kind[0] = 0;
    const cf_backend *backend = find(kind);
    if (!backend && strcmp(kind, "cuda") == 0)
        cf_message("device '%s' does not exist: there is no CUDA plugin: %s", name, why_no_cuda);
    else if (!backend) cf_message("device '%s' does not exist: the backends are cpu and cuda", name);
    return backend;
}

/* The plugin brings half a gigabyte of libraries, which take 0.3 s to load.  A run that asks for no
 * device does not wait for them where no GPU can be: where there is no driver, unless plugins are said to lie in a place
 * of their own. */
static bool may_have_gpus(void) {
    const char *plugins = getenv("CONFLUX_PLUGINS");
    return (plugins && *plugins) || dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
}

void cf_default_spec(char spec[CF_DEFAULT_SPEC_BYTES]) {
    char why[256];
    const cf_backend *cuda = may_have_gpus() ? find("cuda") : NULL;
    const int32_t n = cuda ? cuda->count(why, sizeof why) : 0;
    if (n > 0) snprintf(spec, CF_DEFAULT_SPEC_BYTES, "cuda*%d", n < CF_MAX_DEVICES ? n : CF_MAX_DEVICES);
    else snprintf(spec, CF_DEFAULT_SPEC_BYTES, "cpu");
}

/* ---- kinds and their devices ------------------------------------------------------------------------ */

static const char *const kinds[] = {"cpu", "cuda"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void about(const cf_backend *backend, int32_t device, char *text, size_t bytes) {
    if (bytes > 0) *text = 0;
    if (backend->about) backend->about(device, text, bytes);
}

CFX_API int32_t cfx_backend_count(void) { return KINDS; }

CFX_API cfx_status cfx_backend(int32_t i, cfx_backend_info *out) {
    if (i < 0 || i >= KINDS) return cf_fail(CFX_EARG, "backend: expected 0 to %d, got %d", KINDS - 1, i);
    *out = (cfx_backend_info){0};
    snprintf(out->name, sizeof out->name, "%s", kinds[i]);
    const cf_backend *backend = find(kinds[i]);
    if (!backend) {
        snprintf(out->reason, sizeof out->reason, "no CUDA plugin: %s", why_no_cuda);
        return CFX_OK;
    }
    out->devices = backend->count(out->reason, sizeof out->reason);
    about(backend, -1, out->libraries, sizeof out->libraries);
    return CFX_OK;
}

CFX_API cfx_status cfx_backend_device(int32_t i, int32_t device, char *text, size_t bytes) {
    cfx_backend_info info;
    CF_TRY(cfx_backend(i, &info));
    if (device < 0 || device >= info.devices)
        return cf_fail(CFX_EARG, "backend: %s has %d devices, got %d", info.name, info.devices, device);
    about(find(kinds[i]), device, text, bytes);
    return CFX_OK;
}

/* ---- specs ------------------------------------------------------------------------------------------ */

/* Reads "MARK NUMBER" if it is there; false if the number is none. */
static bool number(const char **at, char mark, int *value, bool *is_there) {
    int used = 0;
    *is_there = **at == mark;
    if (!*is_there) return true;
    if (sscanf(*at + 1, "%5d%n", value, &used) != 1 || *value < 0 || (*at)[1] < '0' || (*at)[1] > '9') return false;
    *at += 1 + used;
    return true;
}

static cfx_status item_names(const char *item, char names[][CF_NAME_BYTES], int32_t *n) {
    const char *at = item + strspn(item, " ");
    const size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz");
    int index = 0, part = 0, count = 1;
    bool indexed, parted, counted;
    const char *rest = at + length;
    const bool reads = length > 0 && length < 16 && number(&rest, ':', &index, &indexed) &&
                       number(&rest, '.', &part, &parted) && number(&rest, '*', &count, &counted) && count > 0 &&
                       !rest[strspn(rest, " ")] && !(parted && (counted || !indexed));
    if (!reads) return cf_fail(CFX_EARG, "device '%s': expected a name such as cpu, cpu:1, cpu*2 or cuda:0*2", item);
    const cf_backend *backend = cf_backend_of(item);
    if (!backend) return CFX_EARG;
    const bool is_cpu = backend == cf_backend_cpu(), splits = !is_cpu && indexed && counted;
    if (is_cpu && (parted || (indexed && counted)))
        return cf_fail(CFX_EARG, "device '%s': expected a name such as cpu, cpu:1 or cpu*2", item);
    if (!is_cpu) {
        char why[256] = "";
        const int32_t have = backend->count(why, sizeof why);
        if (index + (splits ? 1 : count) > have)
            return cf_fail(CFX_EARG, "device '%s' does not exist: %s has %d devices%s%s", item, backend->name, have,
                           *why ? ": " : "", why);
    }
    for (int i = 0; i < count; i++) {
        if (*n == CF_MAX_DEVICES) return cf_fail(CFX_EARG, "more than %d devices in a spec", CF_MAX_DEVICES);
        char *name = names[(*n)++];
        if (splits || parted) snprintf(name, CF_NAME_BYTES, "%s:%d.%d", backend->name, index, part + i);
        else snprintf(name, CF_NAME_BYTES, "%s:%d", backend->name, index + i);
    }
    return CFX_OK;
}

cfx_status cf_spec_names(const char *spec, char names[CF_MAX_DEVICES][CF_NAME_BYTES], int32_t *n) {
    char item[64];
    *n = 0;
    for (;;) {
        const size_t length = strcspn(spec, ",");
        if (length >= sizeof item) return cf_fail(CFX_EARG, "device '%.40s...': the name is too long", spec);
        memcpy(item, spec, length);
        item[length] = 0;
        CF_TRY(item_names(item, names, n));
        if (!spec[length]) break;
        spec += length + 1;
    }
    for (int32_t i = 0; i < *n; i++)
        for (int32_t j = 0; j < i; j++)
            if (strcmp(names[i], names[j]) == 0) return cf_fail(CFX_EARG, "device '%s' is named twice", names[i]);
    return CFX_OK;
}
