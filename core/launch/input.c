/* input.c: see input.h. */
#include "launch/input.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

static const double PAUSE = 0.2; /* seconds from one look at whether it is in the foreground to the next */

void cf_input_open(cf_input *input, int to) {
    *input = (cf_input){.to = to};
    fcntl(to, F_SETFL, O_NONBLOCK); /* of our end alone */
}

void cf_input_close(cf_input *input) {
    if (input->to >= 0) close(input->to);
    input->to = -1;
}

int cf_input_poll(const cf_input *input, double now, struct pollfd *fds) {
    const bool writes = input->from < input->n;
    if (input->to < 0 || now < input->again) return 0;
    *fds = (struct pollfd){.fd = writes ? input->to : STDIN_FILENO, .events = writes ? POLLOUT : POLLIN};
    return 1;
}

double cf_input_due(const cf_input *input) { return input->to >= 0 && input->again > 0 ? input->again : HUGE_VAL; }

static bool is_in_background(void) {
    const pid_t foreground = tcgetpgrp(STDIN_FILENO); /* -1: it is no terminal of ours */
    return foreground > 0 && foreground != getpgrp();
}

static int read_some(cf_input *input, double now) {
    if (is_in_background()) {
        input->again = now + PAUSE;
        return 0;
    }
    const ssize_t n = read(STDIN_FILENO, input->bytes, sizeof input->bytes);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    input->from = 0;
    input->n = n > 0 ? (size_t)n : 0;
    /* one that was closed, or a terminal that is gone, is at its end */
    const int error = n < 0 && errno != EBADF && errno != EIO ? errno : 0;
    if (n <= 0) cf_input_close(input);
    return error;
}

static void write_some(cf_input *input) {
    const ssize_t n = write(input->to, input->bytes + input->from, input->n - input->from);
    if (n > 0) input->from += (size_t)n;
    else if (n < 0 && errno != EAGAIN && errno != EINTR) cf_input_close(input); /* rank 0 reads no more */
}

int cf_input_work(cf_input *input, short events, double now) {
    input->again = 0;
    if (input->to < 0 || events == 0) return 0;
    if (input->from == input->n) return read_some(input, now);
    write_some(input);
    return 0;
}
