/* letter.c: see letter.h. */
#include "comm/letter.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void cf_letter_close_files(cf_received *r) {
    while (r->nfiles > 0) close(r->file[--r->nfiles]);
}

bool cf_letter_send(int socket, const cf_letter *what, int nfiles, const int *files) {
    union {
        char room[CMSG_SPACE(CF_LETTER_FILES * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
        struct cmsghdr align;
    } control;
    const struct ucred own = {getpid(), geteuid(), getegid()};
    struct iovec body = {(void *)what, sizeof *what};
    struct msghdr message = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = control.room};
    memset(&control, 0, sizeof control);
    message.msg_controllen = CMSG_SPACE(sizeof own) + (nfiles ? CMSG_SPACE((size_t)nfiles * sizeof(int)) : 0);
    struct cmsghdr *at = CMSG_FIRSTHDR(&message);
    at->cmsg_level = SOL_SOCKET;
    at->cmsg_type = SCM_CREDENTIALS;
    at->cmsg_len = CMSG_LEN(sizeof own);
    memcpy(CMSG_DATA(at), &own, sizeof own);
    if (nfiles) {
        at = CMSG_NXTHDR(&message, at);
        at->cmsg_level = SOL_SOCKET;
        at->cmsg_type = SCM_RIGHTS;
        at->cmsg_len = CMSG_LEN((size_t)nfiles * sizeof(int));
        memcpy(CMSG_DATA(at), files, (size_t)nfiles * sizeof(int));
    }
    ssize_t n;
    while ((n = sendmsg(socket, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {}
    return n == (ssize_t)sizeof *what;
}

int cf_letter_receive(int socket, cf_received *out) {
    union {
        char room[CMSG_SPACE(CF_LETTER_FILES * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
        struct cmsghdr align;
    } control;
    struct iovec body = {&out->letter, sizeof out->letter};
    struct msghdr message = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control};
    out->nfiles = 0;
    out->pid = 0;
    const ssize_t n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
    bool is_ours = false;
    for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
        if (at->cmsg_level != SOL_SOCKET) continue;
        if (at->cmsg_type == SCM_RIGHTS) {
            const int n = (int)((at->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            for (int k = 0; k < n; k++) {
                int file;
                memcpy(&file, CMSG_DATA(at) + (size_t)k * sizeof file, sizeof file);
                if (out->nfiles < CF_LETTER_FILES) out->file[out->nfiles++] = file;
                else close(file); /* no rank sends so many */
            }
        } else if (at->cmsg_type == SCM_CREDENTIALS) {
            struct ucred from;
            memcpy(&from, CMSG_DATA(at), sizeof from);
            out->pid = from.pid;
            is_ours = from.uid == geteuid();
        }
    }
    if (n == (ssize_t)sizeof out->letter && is_ours && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) return 1;
    cf_letter_close_files(out);
    return -1;
}
