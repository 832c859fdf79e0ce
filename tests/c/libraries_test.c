/* The libraries that plugins need, and where they are looked for: core/device/libraries.c.  The libraries of
 * tests/c/libraries lie beside this program, in directories of their own that no loader looks into. */
#include "device/libraries.h"

#include <dlfcn.h>

#include "test.h"

#include "files.h"

static char path[4096], why[512];

/* A file of the directory `libraries` beside this program. */
static const char *beside(const char *name) {
    static char paths[2][4400];
    static int next;
    char program[4096] = "";
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) perror("/proc/self/exe"), exit(2);
    *strrchr(program, '/') = 0;
    char *file = paths[next++ % 2];
    snprintf(file, sizeof paths[0], "%s/libraries/%s", program, name);
    return file;
}

/* Makes a directory of the temporary one, with its parents. */
static const char *directory(const char *name) {
    char part[256];
    for (const char *slash = name; (slash = strchr(slash, '/')); slash++) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - name), name);
        mkdir(test_path(part), 0700);
    }
    mkdir(test_path(name), 0700);
    return test_path(name);
}

static void empty_file(const char *directory_name, const char *name) {
    char file[256];
    directory(directory_name);
    snprintf(file, sizeof file, "%s/%s", directory_name, name);
    test_file(file, "", 0, 0);
}

static void copy(const char *from, const char *name) {
    size_t bytes;
    char *data = test_bytes(from, &bytes);
    test_file(name, data, bytes, 0);
    free(data);
}

static void remove_all(void) {
    char command[600];
    snprintf(command, sizeof command, "rm -r '%s'/*", test_path("."));
    CHECK_EQ(system(command), 0);
}

/* ---- the needs of a file ------------------------------------------------------------------------------ */

TEST(an_elf_file_says_what_it_needs) {
    char names[CF_MAX_NEEDS][CF_SONAME_BYTES];
    const int32_t n = cf_library_needs(beside("libneeding.so"), names);
    int found = 0;
    for (int32_t i = 0; i < n; i++) found += strcmp(names[i], "libneeded.so.7") == 0;
    CHECK_EQ(found, 1);
}

TEST(what_is_no_elf_file_needs_nothing) {
    char names[CF_MAX_NEEDS][CF_SONAME_BYTES];
    CHECK_EQ(cf_library_needs("/nowhere/lib.so", names), 0);
    CHECK_EQ(cf_library_needs("/tmp", names), 0);
    CHECK_EQ(cf_library_needs(test_file("empty", "", 0, 0), names), 0);
    CHECK_EQ(cf_library_needs(test_file("text", "INPUT(libneeded.so.7)", 21, 0), names), 0);
}

TEST(a_damaged_elf_file_is_read_within_its_bytes) {
    char names[CF_MAX_NEEDS][CF_SONAME_BYTES];
    size_t bytes;
    char *data = test_bytes(beside("libneeding.so"), &bytes);
    for (size_t cut = 1; cut < bytes; cut += 61) cf_library_needs(test_file("cut", data, cut, 0), names);
    for (size_t i = 4; i < 0x300 && i < bytes; i++) { /* the headers lie there */
        const char was = data[i];
        data[i] = (char)0xff;
        cf_library_needs(test_file("wrong", data, bytes, 0), names);
        data[i] = was;
    }
    free(data);
}

/* ---- where it lies ------------------------------------------------------------------------------------ */

/* Looks for libx.so.1 in `places`, whose %s is the temporary directory: what was found, without that, or "". */
static const char *found_in(const char *places) {
    char list[2048];
    const char *root = test_path("");
    snprintf(list, sizeof list, places, root, root, root);
    return cf_library_find("libx.so.1", list, path, sizeof path) ? path + strlen(root) : "";
}

TEST(a_place_is_a_directory_of_libraries_a_root_or_a_site_packages) {
    empty_file("plain", "libx.so.1");
    CHECK_STR(found_in("%splain"), "plain/libx.so.1");
    empty_file("root64/lib64", "libx.so.1");
    CHECK_STR(found_in("%sroot64"), "root64/lib64/libx.so.1");
    empty_file("root/lib", "libx.so.1");
    CHECK_STR(found_in("%sroot"), "root/lib/libx.so.1");
    empty_file("site-packages/nvidia/cublas/lib", "liby.so.1");
    empty_file("site-packages/nvidia/cu13/lib", "libx.so.1");
    CHECK_STR(found_in("%ssite-packages"), "site-packages/nvidia/cu13/lib/libx.so.1");
    remove_all();
}

TEST(the_first_place_that_has_it_wins) {
    empty_file("one/lib", "libx.so.1");
    empty_file("two", "libx.so.1");
    empty_file("a b", "libx.so.1");
    CHECK_STR(found_in("/nowhere::%sone:%stwo"), "one/lib/libx.so.1");
    CHECK_STR(found_in("%stwo:%sone:"), "two/libx.so.1");
    CHECK_STR(found_in("%sa b"), "a b/libx.so.1");
    CHECK_STR(found_in(""), "");
    CHECK_STR(found_in("%sone/lib/libx.so.1"), "");
    CHECK(!cf_library_find("libx.so.1", NULL, path, sizeof path));
    remove_all();
}

TEST(a_star_stands_for_the_rest_of_a_name) {
    empty_file("other/lib64", "libx.so.1");
    empty_file("cuda-12/lib64", "liby.so.1");
    CHECK_STR(found_in("%scuda*"), "");
    empty_file("cuda-13.2/lib64", "libx.so.1");
    empty_file("cuda-13.1/lib64", "libx.so.1");
    CHECK_STR(found_in("%scuda*"), "cuda-13.1/lib64/libx.so.1");
    remove_all();
}

TEST(a_path_that_is_too_long_is_not_found) {
    char places[9000];
    memset(places, 'x', sizeof places);
    places[0] = '/';
    places[sizeof places - 1] = 0;
    CHECK(!cf_library_find("libx.so.1", places, path, sizeof path));
    empty_file("plain", "libx.so.1");
    CHECK(!cf_library_find("libx.so.1", test_path("plain"), path, 8));
    remove_all();
}

/* ---- opening ------------------------------------------------------------------------------------------ */

/* In this order: what has once been opened stays. */

TEST(a_plugin_that_is_not_there_is_named) {
    CHECK(!cf_library_open("/nowhere/libneeding.so", why, sizeof why));
    CHECK(strncmp(why, "/nowhere/libneeding.so: ", 24) == 0);
    CHECK(!strstr(why, "CONFLUX_CUDA_PATH"));
}

TEST(a_need_that_is_not_found_is_named_with_the_remedy) {
    unsetenv("CONFLUX_CUDA_PATH");
    CHECK(!cf_library_open(beside("libneeding.so"), why, sizeof why));
    CHECK(strncmp(why, "libneeded.so.7: ", 16) == 0);
    CHECK(strstr(why, "CONFLUX_CUDA_PATH"));
}

TEST(a_need_that_does_not_open_is_named_with_its_reason) {
    directory("broken");
    test_file("broken/libneeded.so.7", "no library", 10, 0);
    setenv("CONFLUX_CUDA_PATH", test_path("broken"), 1);
    CHECK(!cf_library_open(beside("libneeding.so"), why, sizeof why));
    CHECK(strstr(why, "broken/libneeded.so.7: "));
    remove_all();
}

TEST(what_a_plugin_needs_comes_from_the_places_that_the_user_names) {
    directory("site packages/nvidia/needed/lib");
    copy(beside("libneeded.so.7"), "site packages/nvidia/needed/lib/libneeded.so.7");
    char places[600];
    snprintf(places, sizeof places, "/nowhere:%s", test_path("site packages"));
    setenv("CONFLUX_CUDA_PATH", places, 1);
    void *library = cf_library_open(beside("libneeding.so"), why, sizeof why);
    if (!CHECK(library)) {
        printf("# %s\n", why);
        return;
    }
    int (*needing)(void);
    *(void **)&needing = dlsym(library, "needing");
    if (CHECK(needing)) CHECK_EQ(needing(), 14);
    unsetenv("CONFLUX_CUDA_PATH");
    remove_all();
}
