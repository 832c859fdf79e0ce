/* main.c: the program `conflux-run`, which starts a script, or any program, as several processes, the ranks of a world.
 *
 * It embeds no Lua and knows of no devices.  A script is run by the `conflux` that lies beside it.
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/command.h"
#include "base/terminal.h"
#include "conflux.h"
#include "launch/options.h"
#include "launch/watch.h"

enum { OWN_DESCRIPTORS = 24 }; /* of the launcher itself, and while a rank is started */

__attribute__((format(printf, 1, 2))) static int fail(const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "conflux-run: ");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return EXIT_FAILURE;
}

/* The words of what is run: of `conflux`, for a script.  NULL after a message. */
static char **find_program(const cf_launch_options *options, char *path /* [PATH_MAX] */) {
    int n = 0;
    if (!options->is_script) return options->words;
    if (access(options->words[0], R_OK) != 0) {
        fail("cannot open the script '%s': %s", options->words[0], strerror(errno));
        return NULL;
    }
    const ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
    while (options->words[n]) n++;
    char **words = calloc((size_t)n + 2, sizeof *words);
    if (!words || length <= 0 || length >= PATH_MAX) {
        fail("cannot find 'conflux' beside this program: %s", strerror(words ? errno : ENOMEM));
        free(words);
        return NULL;
    }
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, "conflux"); /* shorter than our own name */
    words[0] = path;
    memcpy(words + 1, options->words, (size_t)n * sizeof *words);
    return words;
}

/* Starts the ranks, with the output open, and waits for their end. */
static int run(const cf_launch_options *options, char **words, cf_inherited *inherited, int signals,
               cf_output *output) {
    cf_start how = {
        .words = words, .devices = options->devices, .columns = cf_terminal_columns(), .inherited = inherited};
    for (int fd = 0; fd < 3; fd++) how.behind[fd] = cfx_is_terminal(fd);
    cf_ranks ranks;
    cf_input input;
    char why[CF_WHY];
    struct pollfd *fds = calloc((size_t)cf_output_most(output) + 2, sizeof *fds);
    if (!fds) return fail("not enough memory for %d ranks", options->ranks);
    int code = cf_ranks_start(&ranks, options->ranks, &how, why);
    if (code == 0) {
        for (int r = 0; r < ranks.n; r++) {
            cf_output_take(output, r, ranks.rank[r].out, ranks.rank[r].err);
            ranks.rank[r].out = ranks.rank[r].err = -1;
        }
        cf_input_open(&input, ranks.input);
        ranks.input = -1;
        code = cf_watch(&(cf_watched){&ranks, output, &input, signals, options->grace, fds});
        cf_input_close(&input);
    } else {
        fail("%s", why);
    }
    cf_ranks_free(&ranks);
    free(fds);
    return code;
}

/* Whether so many ranks may be started at all. */
static bool has_descriptors(const cf_launch_options *options) {
    struct rlimit limit;
    const rlim_t each = options->output ? 4 : 2, pair = 2; /* of sockets, while ranks are started */
    const rlim_t ranks = (rlim_t)options->ranks, needed = OWN_DESCRIPTORS + each * ranks + pair * (ranks - 1);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return true;
    fail("-n %d: that many ranks take %llu descriptors, and this process may have %llu (`ulimit -Hn`)", options->ranks,
         (unsigned long long)needed, (unsigned long long)limit.rlim_cur);
    return false;
}

int main(int argc, char **argv) {
    cf_launch_options options;
    cf_inherited inherited;
    char path[PATH_MAX], why[CF_WHY];
    (void)argc;
    if (!cf_command_keep_streams()) return EXIT_FAILURE;
    int code = cf_launch_options_read(argv, &options);
    if (code >= 0) return code;
    char **words = find_program(&options, path);
    if (!words) return EXIT_FAILURE;

    code = EXIT_FAILURE;
    const int signals = cf_inherited_change(&inherited);
    if (signals < 0) fail("cannot listen to signals: %s", strerror(errno));
    else if (has_descriptors(&options)) {
        cf_output *output = cf_output_open(options.ranks, options.output, why);
        if (output) code = run(&options, words, &inherited, signals, output);
        else fail("%s", why);
        cf_output_close(output);
    }
    if (options.is_script) free(words);
    return code;
}
