/* files.h: temporary files for the tests that read and write some.
 *
 * All lie in one directory, below TMPDIR or /tmp, made on first use and removed at exit; names are given without it.
 * Include it after test.h.
 */
#ifndef CF_TEST_FILES_H
#define CF_TEST_FILES_H

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>

static char test_directory[256];

static inline void remove_test_directory(void) {
    DIR *directory = opendir(test_directory);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%.300s", test_directory, entry->d_name);
        if (unlink(path) != 0) rmdir(path);
    }
    if (directory) closedir(directory);
    rmdir(test_directory);
}

/* The path of `name`; valid until the fourth call after this one. */
static inline const char *test_path(const char *name) {
    static char paths[4][512];
    static int next;
    if (!*test_directory) {
        const char *in = getenv("TMPDIR");
        snprintf(test_directory, sizeof test_directory, "%s/conflux-test-XXXXXX", in ? in : "/tmp");
        if (!mkdtemp(test_directory)) perror("mkdtemp"), exit(2);
        atexit(remove_test_directory);
    }
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", test_directory, name);
    return path;
}

/* Writes `bytes` bytes and returns the path; gzip: compressed. */
static inline const char *test_file(const char *name, const void *data, size_t bytes, int gzip) {
    const char *path = test_path(name);
    gzFile file = gzopen(path, gzip ? "wb" : "wbT");
    if (!file || (bytes && gzwrite(file, data, (unsigned)bytes) != (int)bytes) || gzclose(file) != Z_OK)
        perror(path), exit(2);
    return path;
}

/* The bytes of a file, which the caller frees. */
static inline char *test_bytes(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) perror(path), exit(2);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*bytes + 1);
    if (!data || fread(data, 1, *bytes, file) != *bytes) perror(path), exit(2);
    data[*bytes] = '\0';
    fclose(file);
    return data;
}

/* How many files there are. */
static inline int test_count_files(void) {
    DIR *directory = opendir(test_directory);
    int n = -2; /* . and .. */
    while (directory && readdir(directory)) n++;
    if (directory) closedir(directory);
    return n;
}

/* 1 if the last message holds `part`; else it is printed. */
static inline int test_says(const char *part) {
    const int holds = strstr(cfx_error(), part) != NULL;
    if (!holds) printf("# expected a message with \"%s\", got \"%s\"\n", part, cfx_error());
    return holds;
}

/* A context on cpu*2 for as long as the program runs. */
static cfx_context *test_context_made;
static inline void free_test_context(void) { cfx_context_free(test_context_made); }
static inline cfx_context *test_context(void) {
    const cfx_context_options options = {.size = sizeof options, .devices = "cpu*2"};
    if (!test_context_made) {
        if (cfx_context_new(&options, &test_context_made) != CFX_OK) printf("# %s\n", cfx_error()), exit(2);
        atexit(free_test_context);
    }
    return test_context_made;
}

/* A disk that holds 4 KiB of each file, by the limit on their sizes; or as it was. */
static inline void test_fill_disk(bool is_full) {
    static struct rlimit before;
    struct rlimit small;
    if (is_full) getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, is_full ? &small : &before);
}

#endif
