/* about.c: what the CPU is, for people. */
#include "cpu/about.h"

#include <dnnl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/locale.h"
#include "cpu/crowd.h"
#include "cpu/machine.h"

/* "AMD EPYC 9654 96-Core Processor"; where the system has no such line, the architecture. */
static void model(char *text, size_t bytes) {
    char line[256];
    struct utsname system;
    snprintf(text, bytes, "%s", uname(&system) == 0 ? system.machine : "CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        const char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (!value) continue;
        value += 1 + strspn(value + 1, " ");
        snprintf(text, bytes, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    fclose(f);
}

void cf_cpu_about(int32_t device, char *text, size_t bytes) {
    if (device < 0) {
        const dnnl_version_t *v = dnnl_version();
        char waits[160];
        cf_crowd_about(waits, sizeof waits);
        snprintf(text, bytes, "oneDNN %d.%d.%d; %s", v->major, v->minor, v->patch, waits);
        return;
    }
    char name[128];
    model(name, sizeof name);
    const double gib = (double)cf_cpu_memory() / (1 << 30);
    cf_format(text, bytes, "%s, %s kernels, %.1f GiB", name, cf_cpu_isa_name(cf_cpu_isa_here()), gib);
}
