/* The thread pool: workers that join the calling thread in a job.

   The caller works on the job itself and never waits for a worker that has not started: when the
   job is done, it withdraws the call. So a core that another program occupies costs only its own
   share of the work. The barriers of an OpenMP region, in contrast, wait for every thread, and spin
   for milliseconds on cores that the late thread may need. */
#ifndef KUIPER_THREAD_POOL_H
#define KUIPER_THREAD_POOL_H

#include <stddef.h>

#include "work_shares.h"

/* Works on a job until nothing is left of it. `rank` is unique among concurrent calls and less than
   `n_threads`. */
typedef void (*kp_work)(void *job, ptrdiff_t rank, ptrdiff_t n_threads);

/* What each thread does after its share of a job, such as to release registers; or NULL. */
static void (*kp_after_work)(void);

static void kp_do_work(kp_work work, void *job, ptrdiff_t rank, ptrdiff_t n_threads) {
    work(job, rank, n_threads);
    if (kp_after_work) kp_after_work();
}

#if KP_SERIAL

static inline int kp_prepare_pool(int may_spin) { (void)may_spin; return 0; }
static inline void kp_run_job(kp_work work, void *job, ptrdiff_t n) {
    (void)n;
    kp_do_work(work, job, 0, 1);
}

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* How long a worker spins for the next job before it sleeps: waking it can take as long as a run of
   a small network. */
#define KP_SPIN_NS 2000000
#define KP_SPINS_PER_CLOCK_READ 1000
/* The default of musl is 128 KB. */
#define KP_STACK_BYTES (2 << 20)

enum { KP_FREE, KP_CALLED, KP_BUSY, KP_LEAVING };

typedef struct kp_worker {
    int state; /* a caller sets KP_CALLED, and KP_FREE if the worker has not started by the end */
    int asleep;
    pthread_t thread;
    kp_work work;
    void *job;
    ptrdiff_t rank, n_threads;
    pthread_mutex_t lock;
    pthread_cond_t called;
    struct kp_worker *next;
} kp_worker;

static pthread_mutex_t kp_guard = PTHREAD_MUTEX_INITIALIZER;
static kp_worker *kp_idle; /* the most recently active first: its core may still be awake */
static ptrdiff_t kp_count, kp_cores;
static int kp_may_spin;

static inline long long kp_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Return when called or told to leave; spurious returns are possible. */
static void kp_wait_for_job(kp_worker *self) {
    if (kp_may_spin) {
        long long end = kp_now() + KP_SPIN_NS;
        for (long i = 0; i % KP_SPINS_PER_CLOCK_READ || kp_now() < end; i++) {
            if (__atomic_load_n(&self->state, __ATOMIC_ACQUIRE) != KP_FREE) return;
            kp_back_off(i);
        }
    }
    pthread_mutex_lock(&self->lock);
    /* Sequentially consistent: either this thread sees the call, or the caller sees `asleep`. */
    __atomic_store_n(&self->asleep, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&self->state, __ATOMIC_SEQ_CST) == KP_FREE)
        pthread_cond_wait(&self->called, &self->lock);
    __atomic_store_n(&self->asleep, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&self->lock);
}

static void *kp_worker_loop(void *worker) {
    kp_worker *self = worker;
    while (__atomic_load_n(&self->state, __ATOMIC_ACQUIRE) != KP_LEAVING) {
        int called = KP_CALLED;
        kp_wait_for_job(self);
        if (__atomic_compare_exchange_n(
                &self->state, &called, KP_BUSY, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            kp_do_work(self->work, self->job, self->rank, self->n_threads);
            __atomic_store_n(&self->state, KP_FREE, __ATOMIC_RELEASE);
        }
    }
    return NULL;
}

static kp_worker *kp_new_worker(void) {
    kp_worker *worker = calloc(1, sizeof(kp_worker));
    if (worker == NULL) return NULL;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->called, NULL);
    /* Signals go to the threads of the program, except those that a fault in this thread raises. */
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
    int failed = pthread_create(&worker->thread, &how, kp_worker_loop, worker);
    pthread_attr_destroy(&how);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) return worker;
    free(worker);
    return NULL;
}

/* Whether the pool may grow for a caller that wants `n` workers. Concurrent callers share as many
   workers as there are other cores, or as the largest of their requests. */
static int kp_may_grow(ptrdiff_t n) {
    return kp_count < n || kp_count < kp_cores - 1;
}

/* Take up to `n` idle workers; start new ones if there are too few. */
static kp_worker *kp_acquire_workers(ptrdiff_t n, ptrdiff_t *acquired) {
    kp_worker *workers = NULL;
    pthread_mutex_lock(&kp_guard);
    for (*acquired = 0; *acquired < n; ++*acquired) {
        kp_worker *worker = kp_idle;
        if (worker != NULL) kp_idle = worker->next;
        else if (!kp_may_grow(n) || (worker = kp_new_worker()) == NULL) break;
        else kp_count++;
        worker->next = workers;
        workers = worker;
    }
    pthread_mutex_unlock(&kp_guard);
    return workers;
}

static void kp_set_state(kp_worker *worker, int state) {
    __atomic_store_n(&worker->state, state, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&worker->asleep, __ATOMIC_SEQ_CST)) {
        pthread_mutex_lock(&worker->lock);
        pthread_cond_signal(&worker->called);
        pthread_mutex_unlock(&worker->lock);
    }
}

static void kp_call(
    kp_worker *worker, kp_work work, void *job, ptrdiff_t rank, ptrdiff_t n_threads
) {
    worker->work = work;
    worker->job = job;
    worker->rank = rank;
    worker->n_threads = n_threads;
    kp_set_state(worker, KP_CALLED);
}

/* Withdraw the call of a worker that has not started; wait for one that has. */
static void kp_release_worker(kp_worker *worker) {
    int called = KP_CALLED;
    if (__atomic_compare_exchange_n(
            &worker->state, &called, KP_FREE, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    for (long i = 0; __atomic_load_n(&worker->state, __ATOMIC_ACQUIRE) != KP_FREE; i++)
        kp_back_off(i);
}

/* Run a job on up to `n` threads, the calling one included. A thread returns from `work` only when
   no work is left, so the job is complete when the caller is through; it then waits for the workers
   that have started. */
static void kp_run_job(kp_work work, void *job, ptrdiff_t n) {
    ptrdiff_t acquired = 0, rank = 0;
    kp_worker *workers = n > 1 ? kp_acquire_workers(n - 1, &acquired) : NULL, *worker, *last = NULL;
    for (worker = workers; worker != NULL; worker = worker->next)
        kp_call(worker, work, job, ++rank, 1 + acquired);
    kp_do_work(work, job, 0, 1 + acquired);
    for (worker = workers; worker != NULL; worker = worker->next) {
        kp_release_worker(worker);
        last = worker;
    }
    if (last == NULL) return;
    pthread_mutex_lock(&kp_guard);
    last->next = kp_idle;
    kp_idle = workers;
    pthread_mutex_unlock(&kp_guard);
}

/* A child has no thread but the forking one. Idle workers end before a fork, since Python and other
   programs warn if there are threads; they are cheap to start again. */
static void kp_before_fork(void) {
    pthread_mutex_lock(&kp_guard);
    while (kp_idle != NULL) {
        kp_worker *worker = kp_idle;
        kp_idle = worker->next;
        kp_set_state(worker, KP_LEAVING);
        pthread_join(worker->thread, NULL);
        pthread_mutex_destroy(&worker->lock);
        pthread_cond_destroy(&worker->called);
        free(worker);
        kp_count--;
    }
}
static void kp_in_parent(void) { pthread_mutex_unlock(&kp_guard); }
/* Workers of concurrent callers do not exist in the child. */
static void kp_in_child(void) {
    kp_count = 0;
    pthread_mutex_unlock(&kp_guard);
}

/* Call once, before the first job. Without `may_spin`, idle workers sleep at once. Returns nonzero
   if the system is out of memory. */
static inline int kp_prepare_pool(int may_spin) {
    kp_may_spin = may_spin;
    kp_cores = sysconf(_SC_NPROCESSORS_ONLN);
    return pthread_atfork(kp_before_fork, kp_in_parent, kp_in_child);
}

#endif

#endif
