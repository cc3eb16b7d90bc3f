/* Threads that help the calling one with a piece of work.

   A caller does its work itself; helpers take what they can get of it. Nobody waits for a helper
   that the system has not let begin: when the work is done, it is sent away. So a core that another
   program has taken costs no more than what it would have done, where the barriers of an OpenMP
   region wait for every thread, and spin for milliseconds before they let go of the core that it
   may need. */
#ifndef KUIPER_TEAM_H
#define KUIPER_TEAM_H

#include <stddef.h>

#include "work_shares.h"

/* Does a part of a job; `rank` tells those that do so at the same time apart, and is less than
   `team`. */
typedef void (*kp_work)(void *job, ptrdiff_t rank, ptrdiff_t team);

#if KP_SERIAL

static inline int kp_prepare_team(int patient) { (void)patient; return 0; }
static inline void kp_run_team(kp_work work, void *job, ptrdiff_t n) { (void)n; work(job, 0, 1); }

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* How long a helper looks out for the next job before it sleeps: waking it takes the time of many
   a small network. */
#define KP_WATCH_NS 2000000
#define KP_MOMENTS_PER_LOOK 1000 /* at the clock */
/* musl would give a thread 128 KB. */
#define KP_STACK_BYTES (2 << 20)

enum { KP_FREE, KP_CALLED, KP_BUSY, KP_LEAVING };

typedef struct kp_helper {
    int state;  /* a caller sets KP_CALLED, and KP_FREE again if it is still that at the end */
    int asleep;
    pthread_t thread;
    kp_work work;
    void *job;
    ptrdiff_t rank, team;
    pthread_mutex_t lock;
    pthread_cond_t called;
    struct kp_helper *next;
} kp_helper;

static pthread_mutex_t kp_guard = PTHREAD_MUTEX_INITIALIZER;
static kp_helper *kp_idle; /* the last to have worked comes first: its core may still be awake */
static ptrdiff_t kp_count, kp_cores;
static int kp_patient;

static inline long long kp_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Return when called or sent home, or at times for nothing. */
static void kp_watch(kp_helper *self) {
    if (kp_patient) {
        long long end = kp_now() + KP_WATCH_NS;
        for (long i = 0; i % KP_MOMENTS_PER_LOOK || kp_now() < end; i++) {
            if (__atomic_load_n(&self->state, __ATOMIC_ACQUIRE) != KP_FREE) return;
            kp_linger(i);
        }
    }
    pthread_mutex_lock(&self->lock);
    /* Either this sees the call, or the caller sees this and knocks. */
    __atomic_store_n(&self->asleep, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&self->state, __ATOMIC_SEQ_CST) == KP_FREE)
        pthread_cond_wait(&self->called, &self->lock);
    __atomic_store_n(&self->asleep, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&self->lock);
}

static void *kp_help(void *helper) {
    kp_helper *self = helper;
    while (__atomic_load_n(&self->state, __ATOMIC_ACQUIRE) != KP_LEAVING) {
        int called = KP_CALLED;
        kp_watch(self);
        if (__atomic_compare_exchange_n(
                &self->state, &called, KP_BUSY, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            self->work(self->job, self->rank, self->team);
            __atomic_store_n(&self->state, KP_FREE, __ATOMIC_RELEASE);
        }
    }
    return NULL;
}

static kp_helper *kp_new_helper(void) {
    kp_helper *helper = calloc(1, sizeof(kp_helper));
    if (helper == NULL) return NULL;
    pthread_mutex_init(&helper->lock, NULL);
    pthread_cond_init(&helper->called, NULL);
    /* Signals are for the threads of the program, but for those that say what went wrong here. */
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t how;
    pthread_attr_init(&how);
    pthread_attr_setstacksize(&how, KP_STACK_BYTES);
    int failed = pthread_create(&helper->thread, &how, kp_help, helper);
    pthread_attr_destroy(&how);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) return helper;
    free(helper);
    return NULL;
}

/* Whether there may be one more, for a caller who wants `n`: where several threads call at a time,
   they have the cores of the machine together, or as many as one of them alone asks for. */
static int kp_has_room(ptrdiff_t n) {
    return kp_count < n || kp_count < kp_cores - 1;
}

/* Take up to `n` helpers out of the idle ones, and make those that are missing. */
static kp_helper *kp_hire(ptrdiff_t n, ptrdiff_t *hired) {
    kp_helper *team = NULL;
    pthread_mutex_lock(&kp_guard);
    for (*hired = 0; *hired < n; ++*hired) {
        kp_helper *helper = kp_idle;
        if (helper != NULL) kp_idle = helper->next;
        else if (!kp_has_room(n) || (helper = kp_new_helper()) == NULL) break;
        else kp_count++;
        helper->next = team;
        team = helper;
    }
    pthread_mutex_unlock(&kp_guard);
    return team;
}

static void kp_tell(kp_helper *helper, int state) {
    __atomic_store_n(&helper->state, state, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&helper->asleep, __ATOMIC_SEQ_CST)) {
        pthread_mutex_lock(&helper->lock);
        pthread_cond_signal(&helper->called);
        pthread_mutex_unlock(&helper->lock);
    }
}

static void kp_call(kp_helper *helper, kp_work work, void *job, ptrdiff_t rank, ptrdiff_t team) {
    helper->work = work;
    helper->job = job;
    helper->rank = rank;
    helper->team = team;
    kp_tell(helper, KP_CALLED);
}

/* Send a helper away that has not begun; wait for one that has. */
static void kp_dismiss(kp_helper *helper) {
    int called = KP_CALLED;
    if (__atomic_compare_exchange_n(
            &helper->state, &called, KP_FREE, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    for (long i = 0; __atomic_load_n(&helper->state, __ATOMIC_ACQUIRE) != KP_FREE; i++) kp_linger(i);
}

/* Have up to `n` threads work on a job, the calling one among them. It returns when all that have
   begun are done; the job is done when a single one of them is, whatever the others did. */
static void kp_run_team(kp_work work, void *job, ptrdiff_t n) {
    ptrdiff_t hired = 0, rank = 0;
    kp_helper *team = n > 1 ? kp_hire(n - 1, &hired) : NULL, *helper, *last = NULL;
    for (helper = team; helper != NULL; helper = helper->next)
        kp_call(helper, work, job, ++rank, 1 + hired);
    work(job, 0, 1 + hired);
    for (helper = team; helper != NULL; helper = helper->next) {
        kp_dismiss(helper);
        last = helper;
    }
    if (last == NULL) return;
    pthread_mutex_lock(&kp_guard);
    last->next = kp_idle;
    kp_idle = team;
    pthread_mutex_unlock(&kp_guard);
}

/* A child has no thread but the one that forked. Those that wait for work are ended before: Python
   and others look whether there are any, and warn. They cost little to start again. */
static void kp_before_fork(void) {
    pthread_mutex_lock(&kp_guard);
    while (kp_idle != NULL) {
        kp_helper *helper = kp_idle;
        kp_idle = helper->next;
        kp_tell(helper, KP_LEAVING);
        pthread_join(helper->thread, NULL);
        pthread_mutex_destroy(&helper->lock);
        pthread_cond_destroy(&helper->called);
        free(helper);
        kp_count--;
    }
}
static void kp_in_parent(void) { pthread_mutex_unlock(&kp_guard); }
/* Those that helped another thread just then do not exist in the child. */
static void kp_in_child(void) {
    kp_count = 0;
    pthread_mutex_unlock(&kp_guard);
}

/* Once, before the first job; without patience, helpers sleep at once when there is nothing to do.
   Nonzero if the system has no memory left. */
static inline int kp_prepare_team(int patient) {
    kp_patient = patient;
    kp_cores = sysconf(_SC_NPROCESSORS_ONLN);
    return pthread_atfork(kp_before_fork, kp_in_parent, kp_in_child);
}

#endif

#endif
