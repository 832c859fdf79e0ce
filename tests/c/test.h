/* test.h: a C test is a file of promises.
 *
 *     TEST(a_pool_gives_back_what_it_took) {
 *         CHECK_STATUS(cf_pool_take(pool, 100, &block), CFX_OK);
 *         CHECK_EQ(pool->in_use, 256);
 *     }
 *
 * Include it once in each tests/c/NAME_test.c; it brings main.  A failed check is printed and the test goes
 * on; where it cannot, `if (!CHECK(p)) return;`.  The program prints a line for each test, then
 * "N passed, N failed", and returns non-zero if any failed.  An argument runs only the tests whose name
 * contains it.
 */
#ifndef CF_TEST_H
#define CF_TEST_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conflux.h"

/* Whether a sanitizer watches: it makes tests several times slower, so that some try fewer inputs. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang_analyzer__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* Tests run in the order of the file: their constructors do, and each is put at the end of the list. */
#define TEST(name)                                              \
    static void test_##name(void);                              \
    __attribute__((constructor)) static void add_##name(void) { \
        static struct test test = {#name, test_##name, NULL};   \
        *test_end = &test;                                      \
        test_end = &test.next;                                  \
    }                                                           \
    static void test_##name(void)

/* Each is an expression that is true where the check holds, and evaluates its arguments once. */
#define CHECK(condition) test_check(!!(condition), __FILE__, __LINE__, #condition)
#define CHECK_EQ(got, expected) test_eq((long long)(got), (long long)(expected), __FILE__, __LINE__, #got)
#define CHECK_NEAR(got, expected, tolerance) \
    test_near((double)(got), (double)(expected), (double)(tolerance), __FILE__, __LINE__, #got)
#define CHECK_STR(got, expected) test_str((got), (expected), __FILE__, __LINE__, #got)
#define CHECK_STATUS(call, status) test_status((call), (status), __FILE__, __LINE__, #call)

struct test {
    const char *name;
    void (*run)(void);
    struct test *next;
};
static struct test *test_list, **test_end = &test_list;
static _Atomic int test_faults; /* of the test that runs, in all its threads */

static inline int test_check(int holds, const char *file, int line, const char *text) {
    if (!holds) printf("# %s:%d: %s\n", file, line, text);
    test_faults += !holds;
    return holds;
}

static inline int test_eq(long long got, long long expected, const char *file, int line, const char *text) {
    if (got != expected) printf("# expected %lld, got %lld\n", expected, got);
    return test_check(got == expected, file, line, text);
}

static inline int test_near(double got, double expected, double tolerance, const char *file, int line,
                            const char *text) {
    const int near = got == expected || fabs(got - expected) <= tolerance || (isnan(got) && isnan(expected));
    if (!near) printf("# expected %.17g within %g, got %.17g\n", expected, tolerance, got);
    return test_check(near, file, line, text);
}

static inline int test_str(const char *got, const char *expected, const char *file, int line, const char *text) {
    const int same = got && strcmp(got, expected) == 0;
    if (!same) printf("# expected \"%s\", got \"%s\"\n", expected, got ? got : "(null)");
    return test_check(same, file, line, text);
}

static inline int test_status(cfx_status got, cfx_status expected, const char *file, int line, const char *text) {
    if (got != expected) printf("# expected status %d, got %d: %s\n", (int)expected, (int)got, cfx_error());
    return test_check(got == expected, file, line, text);
}

int main(int argc, char **argv) {
    int passed = 0, failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0); /* so that a crash loses no line */
    for (struct test *test = test_list; test; test = test->next) {
        if (argc > 1 && !strstr(test->name, argv[1])) continue;
        test_faults = 0;
        test->run();
        printf("%s ", test_faults ? "not ok" : "ok");
        for (const char *c = test->name; *c; c++) putchar(*c == '_' ? ' ' : *c);
        putchar('\n');
        *(test_faults ? &failed : &passed) += 1;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

#endif
