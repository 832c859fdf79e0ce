/* together.c: all C tests in one program, c_tests, for a bundle: each by itself carries a copy of the core.
 *
 * `c_tests NAME [PART]` does what the program NAME does with [PART]; without arguments it prints the names.  The build
 * gives each file's main the name of its program, and makes a table of them.
 */
#include <stdio.h>
#include <string.h>

#define PROGRAM(name) int name(int argc, char **argv);
#include "programs.def"
#undef PROGRAM

static const struct program {
    const char *name;
    int (*main)(int argc, char **argv);
} programs[] = {
#define PROGRAM(name) {#name, name},
#include "programs.def"
#undef PROGRAM
};

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        if (argc < 2) puts(programs[i].name);
        else if (strcmp(programs[i].name, argv[1]) == 0) return programs[i].main(argc - 1, argv + 1);
    }
    if (argc < 2) return 0;
    fprintf(stderr, "c_tests: there is no %s\n", argv[1]);
    return 2;
}
