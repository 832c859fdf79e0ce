/* cores.c: masks, quotas, and the processes' use of the cores.  See cores.h. */
#include "base/cores.h"

#include <dirent.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- files of one number ------------------------------------------------------------------------------- */

static bool read_number(const char *path, const char *format, double *out) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    const bool is_there = fscanf(f, format, out) == 1;
    fclose(f);
    return is_there;
}

/* Cores that the process's cgroup may keep busy (v2, then v1); 0: there is no quota. */
static double quota(void) {
    double share = 0, period = 0;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (f) {
        const bool is_set = fscanf(f, "%lf %lf", &share, &period) == 2; /* else "max" */
        fclose(f);
        if (!is_set) return 0;
    } else if (!read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "%lf", &share) ||
               !read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "%lf", &period)) {
        return 0;
    }
    return share > 0 && period > 0 ? share / period : 0;
}

/* Seconds of processor time that the cgroup has spent. */
static bool group_time(double *out) {
    double used;
    if (read_number("/sys/fs/cgroup/cpu.stat", "usage_usec %lf", &used)) *out = used * 1e-6;
    else if (read_number("/sys/fs/cgroup/cpuacct/cpuacct.usage", "%lf", &used)) *out = used * 1e-9;
    else return false;
    return true;
}

/* ---- cores --------------------------------------------------------------------------------------------- */

int cf_cores_usable(void) {
    cpu_set_t set;
    const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    const double share = quota();
    const int whole = (int)share + (share > (int)share); /* a part of a core is one to run on */
    if (cores < 1) return 1;
    return share > 0 && whole < cores ? whole : cores;
}

bool cf_cores_parse(FILE *stat, const cpu_set_t *mine, double *ticks, int *cores) {
    char line[512];
    double all = 0, ours = 0;
    int listed = 0, found = 0;
    while (fgets(line, sizeof line, stat) && strncmp(line, "cpu", 3) == 0) {
        int number = -1;
        /* user, nice, system, idle, waiting for files, interrupts, soft interrupts, stolen */
        double t[7];
        if (line[3] == ' ') continue; /* the sum */
        if (sscanf(line + 3, "%d %lf %lf %lf %lf %lf %lf %lf", &number, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5],
                   &t[6]) != 8)
            return false;
        const double busy = t[0] + t[1] + t[2] + t[5] + t[6];
        all += busy;
        listed++;
        if (number < 0 || number >= CPU_SETSIZE || !CPU_ISSET(number, mine)) continue;
        ours += busy;
        found++;
    }
    const bool agrees = found == CPU_COUNT(mine);
    *ticks = agrees ? ours : all;
    *cores = agrees ? found : listed;
    return listed > 0;
}

/* Seconds that the threads of this process have waited for a core when they had work. */
static double waited(void) {
    char path[64];
    double ran, ns, sum = -1;
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) return -1;
    for (const struct dirent *task; (task = readdir(tasks));) {
        if (task->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", task->d_name);
        FILE *f = fopen(path, "re");
        if (!f) continue; /* it has ended, or the kernel does not count */
        if (fscanf(f, "%lf %lf", &ran, &ns) == 2) sum = (sum < 0 ? 0 : sum) + ns * 1e-9;
        fclose(f);
    }
    closedir(tasks);
    return sum;
}

bool cf_cores_look(cf_cores *out) {
    struct timespec now;
    struct rusage use;
    cpu_set_t mine;
    FILE *stat = sched_getaffinity(0, sizeof mine, &mine) == 0 ? fopen("/proc/stat", "re") : NULL;
    if (!stat) return false;
    const bool is_read = cf_cores_parse(stat, &mine, &out->busy, &out->cores);
    fclose(stat);
    out->busy /= (double)sysconf(_SC_CLK_TCK);
    if (!is_read || getrusage(RUSAGE_SELF, &use) != 0) return false;
    clock_gettime(CLOCK_MONOTONIC, &now);
    out->at = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    out->own = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
               (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
    out->waited = waited();
    out->quota = quota();
    out->group = out->own;
    return out->quota <= 0 || group_time(&out->group);
}

double cf_cores_lacking(const cf_cores *before, const cf_cores *now, int threads) {
    const double seconds = now->at - before->at, own = now->own - before->own;
    if (seconds <= 0) return 0;
    const double others = (now->busy - before->busy - own) / seconds;
    double lacking = others + threads - now->cores;
    if (now->quota > 0) lacking = fmax(lacking, (now->group - before->group - own) / seconds + threads - now->quota);
    if (before->waited < 0 || now->waited < 0) return lacking;
    /* a thread that has ended takes what it waited out of the sum */
    return fmin(lacking, fmax(now->waited - before->waited, 0) / seconds);
}
