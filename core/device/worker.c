/* worker.c: see worker.h. */
#include "device/worker.h"

#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/locale.h"
#include "base/status.h"
#include "base/thread.h"
#include "device/scratch.h"

/* The worker spins for about 20 microseconds before it sleeps: a training step enqueues a command every few
 * microseconds, and waking a sleeping thread costs more than the whole command.  A worker that launches goes by the
 * clock, because some of its rounds ask the driver, which takes longer than the others together. */
enum { SPIN_ROUNDS = 400, SPIN_NS = 20000 };

/* A worker that launches asks the driver how far the device is, at most so often: an answer costs about a microsecond.
 * After the spin it sleeps for NAP_US between two questions, as long as somebody waits for the answer. */
enum { LOOK_NS = 3000, NAP_US = 20 };

/* By so much the system may prolong a nap; by default it is 50 microseconds. */
enum { SLACK_NS = 1000 };

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Whether it is time to ask the driver again. */
static bool is_due(uint64_t *asked) {
    const uint64_t now = now_ns();
    if (now - *asked < LOOK_NS) return false;
    *asked = now;
    return true;
}

/* The next command of the queue, or NULL. */
static cf_command *next(cf_queue *queue) {
    for (;;) {
        const uint64_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);
        if (head == atomic_load_explicit(&queue->published, memory_order_seq_cst)) return NULL; /* see cf_event_done */
        const size_t at = (size_t)(head % CF_RING_BYTES);
        cf_command *command = (cf_command *)(queue->ring + at);
        if (command->run) return command;
        atomic_store_explicit(&queue->head, head + CF_RING_BYTES - at, memory_order_release);
    }
}

/* The inbox of the worker that runs e's queue, or NULL. */
static cf_inbox *inbox_of(cf_event e) {
    cf_sleeper *worker = e.timeline->worker;
    return worker ? (cf_inbox *)((char *)worker - offsetof(cf_inbox, worker)) : NULL;
}

/* From `ticket` on.  On a device that only launches, an early fault may be found after a late one. */
static void poison(cf_queue *queue, uint64_t ticket, uint32_t fault) {
    cf_progress *p = queue->timeline.progress;
    if (atomic_load_explicit(&p->poisoned_at, memory_order_relaxed) <= ticket) return;
    atomic_store(&p->fault, fault);
    atomic_store_explicit(&p->poisoned_at, ticket, memory_order_release);
}

/* Takes over the poison of e's queue if that is poisoned at or before e. */
static void inherit_event(cf_queue *queue, uint64_t ticket, cf_event e) {
    if (!cf_event_is_poisoned(e)) return;
    const uint32_t fault = atomic_load(&e.timeline->progress->fault);
    if (fault) poison(queue, ticket, fault);
}

/* A device that only launches goes on before what it waits for has happened: that is judged when it has, and until then
 * the stream has to know by itself. */
static cfx_status inherit(cf_worker *worker, cf_queue *queue, const cf_command *command, uint64_t ticket) {
    const cf_streams *streams = worker->backend->streams;
    cf_source open[CF_MAX_WAITS];
    int n = 0;
    for (int i = 0; i < command->nwaits; i++) {
        const cf_event data = {command->waits[i].until.timeline, command->waits[i].data};
        if (data.ticket == 0) continue;
        if (streams && !cf_event_done(data)) {
            queue->followed[queue->noted++ % CF_FOLLOWED] = (struct cf_followed){ticket, data};
            open[n++] = (cf_source){inbox_of(data)->state, data.timeline->q, data.ticket};
        }
        inherit_event(queue, ticket, data);
    }
    return n > 0 ? streams->inherit(worker, queue->timeline.q, ticket, n, open) : CFX_OK;
}

/* How far the queue is, of `happened`, with all that it followed judged: what it did behind data that turned out wrong
 * was wrong from there on, though its own device found nothing. */
static uint64_t judge(cf_queue *queue) {
    for (; queue->judged < queue->noted; queue->judged++) {
        const struct cf_followed *f = &queue->followed[queue->judged % CF_FOLLOWED];
        if (f->ticket > queue->happened) break;
        if (!cf_event_done(f->data)) { /* it has, but its worker has not looked */
            cf_alarm_set(f->data);
            return f->ticket - 1;
        }
        inherit_event(queue, f->ticket, f->data);
    }
    return queue->happened;
}

/* ---- tickets ---------------------------------------------------------------------------------------- */

static void finish(cf_queue *queue, uint64_t ticket) {
    cf_progress *p = queue->timeline.progress;
    atomic_store_explicit(&p->finished, ticket, memory_order_seq_cst);
    if (atomic_load_explicit(&p->alarm, memory_order_seq_cst) > ticket) return;
    atomic_store_explicit(&p->alarm, UINT64_MAX, memory_order_seq_cst);
    /* The host often waits for the last of many tickets, the workers for each: a thread that is woken for nothing takes a
     * core from one that has something to do. */
    cf_hub *hub = queue->timeline.hub;
    if (atomic_load_explicit(&hub->awaited, memory_order_seq_cst) == &queue->timeline) {
        const uint64_t until = atomic_load_explicit(&hub->until, memory_order_seq_cst);
        if (until <= ticket) cf_sleeper_wake(&hub->host);
        else cf_alarm_set((cf_event){&queue->timeline, until});
    }
    cf_hub_wake(hub);
}

static void fail(cf_queue *queue, uint64_t ticket, cfx_status status, const cf_origin *command) {
    if (atomic_load_explicit(&queue->timeline.progress->poisoned_at, memory_order_relaxed) <= ticket) return;
    poison(queue, ticket, cf_fault_keep(queue->timeline.hub, status, command));
}

/* The device says that the command `ticket` went wrong; 0: some command after `before`. */
static void fail_late(cf_queue *queue, uint64_t before, uint64_t ticket, cfx_status status) {
    if (ticket > 0) fail(queue, ticket, status, &queue->asked[ticket % CF_LAUNCH_AHEAD]);
    else fail(queue, before + 1, status, NULL);
}

/* ---- marks ------------------------------------------------------------------------------------------ */

static bool is_awaited(const cf_timeline *timeline, uint64_t ticket) {
    return atomic_load_explicit(&timeline->progress->alarm, memory_order_seq_cst) <= ticket;
}

/* A mark costs as much as a launch: there is one for a run of commands, one where somebody waits, and one before the
 * worker sleeps, which leaves nothing unmarked. */
enum { MARK_EVERY = 16 };

static void mark(cf_worker *worker, cf_queue *queue) {
    if (!worker->backend->streams) return;
    if (queue->marked == queue->launched) return;
    const cfx_status status = worker->backend->streams->mark(worker, queue->timeline.q, queue->launched);
    if (status != CFX_OK) fail(queue, queue->marked + 1, status, NULL);
    queue->marked = queue->launched;
    if (is_awaited(&queue->timeline, queue->launched)) cf_hub_wake(queue->timeline.hub); /* it can be followed now */
}

/* A worker that spins asks for a mark of e, which its stream is to follow.  It asks in each round, so that it is no
 * matter if its word is lost to an earlier ticket's. */
static void want_mark(cf_event e) {
    _Atomic uint64_t *at = &e.timeline->progress->wanted;
    uint64_t wanted = atomic_load_explicit(at, memory_order_relaxed);
    while (e.ticket < wanted && !atomic_compare_exchange_weak(at, &wanted, e.ticket)) {}
}

/* Whether anybody waits for a ticket that was launched and that no mark covers. */
static bool is_wanted(cf_queue *queue) {
    if (queue->marked == queue->launched) return false;
    uint64_t wanted = atomic_load_explicit(&queue->timeline.progress->wanted, memory_order_relaxed);
    const uint64_t alarm = atomic_load_explicit(&queue->timeline.progress->alarm, memory_order_seq_cst);
    if (wanted <= queue->marked) { /* it has its mark */
        atomic_compare_exchange_strong(&queue->timeline.progress->wanted, &wanted, UINT64_MAX);
        wanted = UINT64_MAX;
    }
    return wanted <= queue->launched || (alarm > queue->marked && alarm <= queue->launched);
}

/* ---- waits ------------------------------------------------------------------------------------------ */

/* Whether queue q may go on behind e: it has happened, or a stream of the same backend waits for it by itself. */
static bool follows(cf_worker *worker, int q, cf_event e) {
    if (cf_event_done(e)) return true;
    cf_inbox *of = inbox_of(e);
    if (!worker->backend->streams || !of || of->backend != worker->backend) {
        /* a device that launches is asked at once how far it is, not only when this worker sleeps */
        if (e.timeline->launches && !is_awaited(e.timeline, e.ticket)) cf_alarm_set(e);
        return false;
    }
    cf_queue *queue = cf_queue_of(e.timeline);
    const bool is_own = of->state == worker->state; /* the device's other queue */
    if (is_own && queue->marked < e.ticket && e.ticket <= queue->launched) mark(worker, queue);
    if (worker->backend->streams->follow(worker, q, of->state, e.timeline->q, e.ticket)) return true;
    want_mark(e);
    return false;
}

/* The first event that the command still waits for; its timeline is NULL if there is none. */
static cf_event blocked_on(cf_worker *worker, int q, cf_queue *queue, const cf_command *command) {
    for (; queue->behind < command->nwaits; queue->behind++)
        if (!follows(worker, q, command->waits[queue->behind].until)) return command->waits[queue->behind].until;
    return (cf_event){NULL, 0};
}

/* ---- how far the device is --------------------------------------------------------------------------- */

/* Looks how far the device is.  True if it got further. */
static bool look(cf_worker *worker, cf_inbox *inbox) {
    bool moved = false;
    for (int q = 0; worker->backend->streams && q < CF_QUEUES; q++) {
        cf_queue *queue = &inbox->queue[q];
        const uint64_t before = queue->happened;
        if (before != queue->marked) {
            uint64_t faulted = 0;
            const cfx_status status = worker->backend->streams->poll(worker, q, &queue->happened, &faulted);
            if (status != CFX_OK) fail_late(queue, before, faulted, status);
        }
        const uint64_t done = judge(queue);
        if (done == atomic_load_explicit(&queue->timeline.progress->finished, memory_order_relaxed)) continue;
        finish(queue, done);
        moved = true;
    }
    return moved;
}

/* Whether the device has as much to do as it may. */
static bool is_far_ahead(const cf_queue *queue) {
    if (!queue->asked) return false;
    if (queue->noted - queue->judged > CF_FOLLOWED - CF_MAX_WAITS) return true;
    return queue->launched - atomic_load_explicit(&queue->timeline.progress->finished, memory_order_relaxed) >=
           CF_LAUNCH_AHEAD;
}

/* Whether the device still works on what was launched; `awaited`: and somebody waits for it.  The participants of a
 * collective always wait for each other. */
static bool works(const cf_inbox *inbox, bool awaited) {
    for (int q = 0; inbox->backend->streams && q < CF_QUEUES; q++) {
        const cf_queue *queue = &inbox->queue[q];
        if (queue->joins) return true;
        if (atomic_load_explicit(&queue->timeline.progress->finished, memory_order_relaxed) == queue->launched)
            continue;
        if (!awaited || is_awaited(&queue->timeline, queue->launched) || is_far_ahead(queue)) return true;
    }
    return false;
}

/* ---- commands --------------------------------------------------------------------------------------- */

/* The command is out of the way; on a device that only launches, its work may still be. */
static void retire(cf_worker *worker, cf_queue *queue, const cf_command *command, uint64_t ticket) {
    const uint64_t head = atomic_load_explicit(&queue->head, memory_order_relaxed) + command->bytes;
    atomic_store_explicit(&queue->head, head, memory_order_release);
    queue->behind = 0;
    if (!worker->backend->streams) {
        finish(queue, ticket);
        return;
    }
    queue->launched = ticket;
    if (ticket - queue->marked >= MARK_EVERY || is_wanted(queue)) mark(worker, queue);
}

static cfx_status begin(cf_worker *worker) {
    const cfx_status status = worker->backend->thread_begin(worker);
    worker->begun = status == CFX_OK;
    return status;
}

static bool is_poisoned(const cf_queue *queue) {
    return atomic_load_explicit(&queue->timeline.progress->poisoned_at, memory_order_relaxed) != UINT64_MAX;
}

/* Comes before a command.  A thread that has not begun might run it on another GPU than the device's; data that are
 * wrong already are the better reason not to. */
static cfx_status prepare(cf_worker *worker, cf_queue *queue, const cf_command *command, uint64_t ticket) {
    for (int i = 0; !worker->begun && i < command->nwaits; i++)
        if (command->waits[i].data > 0)
            inherit_event(queue, ticket, (cf_event){command->waits[i].until.timeline, command->waits[i].data});
    if (is_poisoned(queue)) return CFX_OK;
    if (!worker->begun) CF_TRY(begin(worker));
    return inherit(worker, queue, command, ticket);
}

static void run(cf_worker *worker, cf_queue *queue, cf_command *command) {
    const bool launches = worker->backend->streams != NULL;
    const uint64_t ticket =
        (launches ? queue->launched : atomic_load_explicit(&queue->timeline.progress->finished, memory_order_relaxed)) +
        1;
    const cf_hub *hub = queue->timeline.hub;
    bool poisoned = is_poisoned(queue);
    if (!poisoned && (command->nwaits || !worker->begun)) {
        const cfx_status status = prepare(worker, queue, command, ticket);
        if (status != CFX_OK) fail(queue, ticket, status, &command->origin);
        poisoned = is_poisoned(queue);
    }
    poisoned = poisoned || atomic_load_explicit(&hub->ending, memory_order_relaxed);
    if (!poisoned || (command->flags & CF_ALWAYS)) {
        char *payload = (char *)command + cf_queue_bytes(command->nwaits, 0);
        if (command->flags & CF_JOINS) mark(worker, queue); /* others may need what is before it to come themselves */
        if (launches) {
            queue->asked[ticket % CF_LAUNCH_AHEAD] = command->origin;
            worker->backend->streams->select(worker, queue->timeline.q, ticket);
        }
        const cfx_status status = command->run(worker, payload, poisoned);
        if (status != CFX_OK && !poisoned) fail(queue, ticket, status, &command->origin);
        if (status == CFX_OK && (command->flags & CF_JOINS)) {
            queue->joins = true;
            return;
        }
    }
    retire(worker, queue, command, ticket);
}

/* Whether the other participants of the queue's collective have come, or it failed. */
static bool joined(cf_worker *worker, int q, cf_queue *queue, const cf_command *command) {
    bool is = false;
    const uint64_t ticket = queue->launched + 1;
    const cfx_status status = worker->backend->link->test(worker, q, &is);
    if (status == CFX_OK && !is) return false;
    if (status != CFX_OK) fail(queue, ticket, status, &command->origin);
    queue->joins = false;
    retire(worker, queue, command, ticket);
    return true;
}

/* Runs one command if one is ready; else `on` names what keeps either queue. */
static bool step(cf_worker *worker, cf_inbox *inbox, cf_event on[CF_QUEUES]) {
    static const int order[CF_QUEUES] = {CF_COMM, CF_COMPUTE};
    for (int k = 0; k < CF_QUEUES; k++) {
        cf_queue *queue = &inbox->queue[order[k]];
        cf_command *command = next(queue);
        on[k] = (cf_event){NULL, 0};
        if (queue->joins) {
            if (is_due(&queue->asked_at) && joined(worker, order[k], queue, command)) return true;
            continue;
        }
        if (command) on[k] = blocked_on(worker, order[k], queue, command);
        const bool is_full = is_far_ahead(queue);
        if (!command || on[k].timeline || is_full) {
            if (is_full || is_wanted(queue)) mark(worker, queue);
            continue;
        }
        run(worker, queue, command);
        return true;
    }
    return false;
}

static bool idle(cf_inbox *inbox) { return !next(&inbox->queue[CF_COMPUTE]) && !next(&inbox->queue[CF_COMM]); }

/* Sleeps until there may be something to do. */
static void sleep_once(cf_worker *worker, cf_inbox *inbox) {
    cf_event on[CF_QUEUES];
    cf_bell *bell = cf_sleeper_bell(&inbox->worker);
    const bool is_shared = bell != &inbox->worker.own;
    const uint32_t seen = cf_word_read(&bell->wake);
    atomic_store_explicit(&bell->asleep, 1, memory_order_seq_cst);
    const bool ran = step(worker, inbox, on);
    bell = cf_sleeper_bell(&inbox->worker); /* a command that it ran may have moved it */
    if (!ran) {
        bool changed = false;
        for (int k = 0; k < CF_QUEUES; k++) {
            if (!on[k].timeline) continue;
            cf_alarm_set(on[k]);
            changed = changed || cf_event_done(on[k]);
        }
        changed = changed || works(inbox, true);
        if (!changed && !(atomic_load(&inbox->stop) && idle(inbox))) cf_park_for(&bell->wake, seen, is_shared, -1);
    }
    atomic_store_explicit(&bell->asleep, 0, memory_order_seq_cst);
}

/* Time without a command to run. */
typedef struct lull {
    int rounds;      /* of a worker whose kernels are done when they return */
    uint64_t since;  /* of one that launches: the clock when it began; 0: it has not */
    uint64_t looked; /* the clock at the last look, in this lull or before it */
} lull;

static void end_lull(lull *l) {
    l->rounds = 0;
    l->since = 0;
}

/* One round of it: false once the worker has spun for long enough. */
static bool spin(cf_worker *worker, cf_inbox *inbox, lull *l) {
    cf_relax();
    if (!worker->backend->streams) return ++l->rounds < SPIN_ROUNDS;
    if (!l->since) l->since = now_ns();
    if (!is_due(&l->looked)) return true;
    if (look(worker, inbox)) l->since = l->looked;
    return l->looked - l->since < SPIN_NS;
}

static void *work(void *arg) {
    cf_inbox *inbox = arg;
    cf_worker worker = {.backend = inbox->backend, .state = inbox->state};
    int32_t team = 0;
    lull quiet = {0};
    cfx_log_here(inbox->hub->log);
    if (inbox->backend->streams)
        (void)prctl(PR_SET_TIMERSLACK, (unsigned long)SLACK_NS); /* without it naps are longer */
    for (;;) {
        const int32_t threads = atomic_load_explicit(&inbox->threads, memory_order_relaxed);
        if (threads != team) {
            worker.threads = team = threads;
            begin(&worker); /* if it cannot, the next command says why */
        }
        cf_event on[CF_QUEUES];
        if (step(&worker, inbox, on)) {
            end_lull(&quiet);
        } else if (!spin(&worker, inbox, &quiet)) {
            for (int q = 0; q < CF_QUEUES; q++) mark(&worker, &inbox->queue[q]);
            const bool stops = atomic_load(&inbox->stop) && idle(inbox);
            if (stops && !works(inbox, false)) break;
            if (stops || works(inbox, true)) {
                usleep(NAP_US);
            } else {
                sleep_once(&worker, inbox);
                end_lull(&quiet);
            }
        }
    }
    inbox->backend->thread_end(&worker);
    cf_worker_scratch_free(&worker);
    return NULL;
}

void cf_inbox_init(cf_inbox *inbox, cf_hub *hub, const cf_backend *backend) {
    inbox->hub = hub;
    inbox->backend = backend;
    for (int q = 0; q < CF_QUEUES; q++) cf_queue_init(&inbox->queue[q], hub, &inbox->worker, q, backend);
}

cfx_status cf_worker_start(cf_inbox *inbox, const char *device, void *state) {
    pthread_t thread;
    inbox->state = state;
    atomic_store(&inbox->threads, 1);
    atomic_store(&inbox->stop, 0);
    const int error = cf_thread_start(&thread, work, inbox);
    if (error) return cf_fail(CFX_EMEMORY, "cannot start the worker of %s: %s", device, cf_strerror(error));
    inbox->thread = thread;
    return CFX_OK;
}

void cf_worker_stop(cf_inbox *inbox) {
    atomic_store(&inbox->stop, 1);
    cf_bell *bell = cf_sleeper_bell(&inbox->worker);
    cf_unpark_all(&bell->wake, bell != &inbox->worker.own);
    pthread_join(inbox->thread, NULL);
    inbox->thread = 0;
}

cfx_status cf_run_call(cf_worker *worker, void *payload, bool poisoned) {
    (void)poisoned;
    const cf_call *call = payload;
    return worker->backend->kernels[call->op](worker, call);
}
