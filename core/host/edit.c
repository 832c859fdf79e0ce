/* edit.c: lines edited by libedit.
 *
 * libedit's own reading of characters is replaced: it drops what is not UTF-8 in silence, and its own handling of
 * signals passes an interrupt on to the whole process group.  Here the signals that matter stay blocked while a line
 * is edited, but for the moments in which we wait for a key, so that none is missed or comes halfway.
 */
#include "host/edit.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "host/run.h"

enum { REMEMBERED = 1000 }; /* entries */

struct cf_edit {
    EditLine *editor;
    History *history;
    const char *prompt;
    cf_completer *completer;
    void *data;       /* the completer's */
    sigset_t waiting; /* the signal mask while we wait for a key */
    int held;         /* a byte read that begins the next character; -1: none */
};

/* ---- signals --------------------------------------------------------------------------------------- */

static volatile sig_atomic_t resized, stopped;

static void on_resize(int signal) { resized = signal; }
static void on_stop(int signal) { stopped = signal; }

static const int watched[] = {SIGINT, SIGWINCH, SIGTSTP};

/* The terminal's and the signals' state before a line was edited. */
typedef struct before {
    sigset_t mask;
    struct sigaction resize, stop;
} before;

static void watch_signals(cf_edit *edit, before *before) {
    struct sigaction action = {.sa_handler = on_resize};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) sigaddset(&set, watched[i]);
    sigemptyset(&action.sa_mask);
    resized = stopped = 0;
    pthread_sigmask(SIG_BLOCK, &set, &before->mask);
    sigaction(SIGWINCH, &action, &before->resize);
    action.sa_handler = on_stop;
    sigaction(SIGTSTP, &action, &before->stop);
    edit->waiting = before->mask;
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) sigdelset(&edit->waiting, watched[i]);
}

static void unwatch_signals(const before *before) {
    sigaction(SIGTSTP, &before->stop, NULL);
    sigaction(SIGWINCH, &before->resize, NULL);
    pthread_sigmask(SIG_SETMASK, &before->mask, NULL);
}

/* Ctrl-Z: gives the shell its terminal back, stops here, and goes on with the line. */
static void stop_process(cf_edit *edit) {
    struct sigaction action = {.sa_handler = SIG_DFL}, ours;
    sigset_t set;
    sigemptyset(&action.sa_mask);
    sigemptyset(&set);
    sigaddset(&set, SIGTSTP);
    el_set(edit->editor, EL_PREP_TERM, 0);
    sigaction(SIGTSTP, &action, &ours);
    raise(SIGTSTP);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL); /* stopped in here */
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigaction(SIGTSTP, &ours, NULL);
    stopped = 0;
    el_set(edit->editor, EL_PREP_TERM, 1);
    el_set(edit->editor, EL_REFRESH);
}

/* ---- characters ------------------------------------------------------------------------------------ */

/* The next byte typed: 1, 0 at the end, -1 after an interrupt. */
static int read_byte(cf_edit *edit, char *byte) {
    for (;;) {
        if (cf_was_interrupted(false)) {
            errno = EINTR;
            return -1;
        }
        if (stopped) stop_process(edit);
        if (resized) {
            resized = 0;
            el_resize(edit->editor);
            el_set(edit->editor, EL_REFRESH);
        }
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        if (ppoll(&input, 1, NULL, &edit->waiting) < 0) {
            if (errno == EINTR) continue;
            return 0;
        }
        const ssize_t n = read(STDIN_FILENO, byte, 1);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        return n == 1 ? 1 : 0; /* a terminal that has gone gives an error */
    }
}

/* The next character typed; U+FFFD for bytes that are none. */
static int read_character(EditLine *editor, wchar_t *out) {
    cf_edit *edit;
    mbstate_t state;
    memset(&state, 0, sizeof state);
    el_get(editor, EL_CLIENTDATA, &edit);
    *out = L'\0';
    for (int bytes = 0;; bytes++) {
        char byte = (char)edit->held;
        const int got = edit->held >= 0 ? 1 : read_byte(edit, &byte);
        edit->held = -1;
        if (got != 1) return got;
        const size_t n = mbrtowc(out, &byte, 1, &state);
        if (n == (size_t)-2) continue; /* there is more to it */
        if (n == (size_t)-1) {
            *out = 0xFFFD;
            if (bytes > 0) edit->held = (unsigned char)byte; /* broken off before this one */
        }
        return 1;
    }
}

/* ---- keys ------------------------------------------------------------------------------------------ */

static char *get_prompt(EditLine *editor) {
    cf_edit *edit;
    el_get(editor, EL_CLIENTDATA, &edit);
    return (char *)edit->prompt;
}

static unsigned char complete(EditLine *editor, int key) {
    (void)key;
    cf_edit *edit;
    el_get(editor, EL_CLIENTDATA, &edit);
    const LineInfo *line = el_line(editor);
    const size_t length = (size_t)(line->cursor - line->buffer);
    char *before = strndup(line->buffer, length);
    if (!before) return CC_ERROR;
    if (before[strspn(before, " \t\n")] == '\0') { /* pasted text may be indented by tabs */
        free(before);
        return el_insertstr(editor, "  ") == 0 ? CC_REFRESH : CC_ERROR;
    }

    int columns = 80;
    el_get(editor, EL_GETTC, "co", &columns, (void *)NULL);
    cf_completion completion = {NULL, NULL};
    edit->completer(edit->data, before, columns, &completion);
    free(before);
    if (completion.insertion && *completion.insertion) {
        if (el_insertstr(editor, completion.insertion) != 0) return CC_ERROR;
        if (!completion.list) return CC_REFRESH;
    }
    if (!completion.list) return CC_REFRESH_BEEP;
    fprintf(stdout, "\n%s", completion.list);
    return CC_REDISPLAY;
}

static void bind_keys(EditLine *editor) {
    static const char *const keys[][2] = {
        {"^I", "conflux-complete"},        {"^R", "em-inc-search-prev"}, {"^W", "ed-delete-prev-word"},
        {"\\e[3~", "ed-delete-next-char"}, {"\\e[1~", "ed-move-to-beg"}, {"\\e[4~", "ed-move-to-end"},
        {"\\e[H", "ed-move-to-beg"},       {"\\e[F", "ed-move-to-end"},  {"\\e[1;5C", "em-next-word"},
        {"\\e[1;5D", "ed-prev-word"},
    };
    el_set(editor, EL_EDITOR, "emacs");
    /* Of the narrow call's two texts libedit makes copies that it never frees. */
    el_wset(editor, EL_ADDFN, L"conflux-complete", L"Completes the word before the cursor", complete);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        el_set(editor, EL_BIND, keys[i][0], keys[i][1], (void *)NULL);
    }
}

/* ---- lines ----------------------------------------------------------------------------------------- */

/* ~/.editrc, where a user's own keys are, or $EDITRC, as libedit finds them; it need not exist.  Libedit would wait for
 * a writer where it is a FIFO. */
static void source_keys(EditLine *editor) {
    const char *given = getenv("EDITRC"), *home = getenv("HOME");
    char *path = NULL;
    struct stat status;
    if (!given && (!home || asprintf(&path, "%s/.editrc", home) < 0)) return;
    if (stat(given ? given : path, &status) == 0 && S_ISREG(status.st_mode)) el_source(editor, given ? given : path);
    free(path);
}

#define TEXT_OF(number) #number
#define VERSION_OF(major, minor) "libedit " TEXT_OF(major) "." TEXT_OF(minor)

const char *cf_edit_about(void) { return VERSION_OF(LIBEDIT_MAJOR, LIBEDIT_MINOR); }

cf_edit *cf_edit_open(cf_completer *completer, void *data) {
    /* libedit takes the bytes of characters from the locale; that of C has none beyond ASCII. */
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");

    cf_edit *edit = calloc(1, sizeof *edit);
    if (!edit) return NULL;
    *edit = (cf_edit){.completer = completer, .data = data, .prompt = "", .held = -1};
    edit->editor = el_init("conflux", stdin, stdout, stderr);
    edit->history = history_init();
    if (!edit->editor || !edit->history) {
        cf_edit_close(edit);
        return NULL;
    }
    HistEvent event;
    history(edit->history, &event, H_SETSIZE, REMEMBERED);
    history(edit->history, &event, H_SETUNIQUE, 1);
    el_set(edit->editor, EL_CLIENTDATA, edit);
    el_set(edit->editor, EL_PROMPT, get_prompt);
    el_set(edit->editor, EL_GETCFN, read_character);
    el_set(edit->editor, EL_HIST, history, edit->history);
    bind_keys(edit->editor);
    source_keys(edit->editor);
    return edit;
}

void cf_edit_close(cf_edit *edit) {
    if (!edit) return;
    if (edit->history) history_end(edit->history);
    if (edit->editor) el_end(edit->editor);
    free(edit);
}

cf_line_status cf_edit_read(cf_edit *edit, const char *prompt, const char **text, size_t *length) {
    before before;
    int n = 0;
    edit->prompt = prompt;
    edit->held = -1;
    fflush(stdout);
    watch_signals(edit, &before);
    el_set(edit->editor, EL_PREP_TERM, 1); /* before the prompt, lest the terminal echo what is typed at once */
    *text = el_gets(edit->editor, &n);
    unwatch_signals(&before);

    if (cf_was_interrupted(false)) {
        fputs("^C\n", stdout);
        return CF_LINE_INTERRUPTED;
    }
    if (!*text || n <= 0) {
        fputs("\n", stdout);
        return CF_LINE_END;
    }
    *length = (size_t)n;
    return CF_LINE_READ;
}

void cf_edit_remember(cf_edit *edit, const char *entry) {
    HistEvent event;
    if (mbstowcs(NULL, entry, 0) == (size_t)-1) return; /* libedit could not show it */
    history(edit->history, &event, H_ENTER, entry);
}
