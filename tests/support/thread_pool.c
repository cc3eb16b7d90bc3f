/* Tests _runtime/thread_pool.h, including its internal state: a failed check ends the program, and
   waiting for a thread that never comes keeps it from ending. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "_runtime/thread_pool.h"

#define CHECK(what) \
    if (!(what)) (printf("line %d: %s\n", __LINE__, #what), fflush(stdout), _Exit(1))
#define GET(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define ADD(x, n) __atomic_fetch_add(&(x), n, __ATOMIC_SEQ_CST)
#define AWAIT(what) \
    while (!(what)) sched_yield()

enum { MAX_THREADS = 8 };

typedef struct {
    int wanted; /* threads: each stays until this many have come */
    int came, twice, n_threads;
    int ranks[MAX_THREADS];
} meeting;

static void meet(void *job, ptrdiff_t rank, ptrdiff_t n_threads) {
    meeting *here = job;
    if (ADD(here->ranks[rank], 1)) ADD(here->twice, 1);
    __atomic_store_n(&here->n_threads, (int)n_threads, __ATOMIC_SEQ_CST);
    ADD(here->came, 1);
    AWAIT(GET(here->came) >= here->wanted);
}

static meeting run(int n, int wanted) {
    meeting here = {.wanted = wanted};
    kp_run_job(meet, &here, n);
    CHECK(!here.twice);
    CHECK(here.came >= wanted && here.came <= here.n_threads && here.n_threads <= n);
    return here;
}

static int idle(void) {
    int count = 0;
    for (kp_worker *worker = kp_idle; worker != NULL; worker = worker->next) count++;
    return count;
}

static meeting theirs = {.wanted = 3};

static void *run_theirs(void *nothing) {
    kp_run_job(meet, &theirs, 2);
    return nothing;
}

int main(int n, char **arguments) {
    CHECK(kp_prepare_pool(n > 1 && arguments[1][0] == '1') == 0);
    kp_cores = 1;
    CHECK(run(1, 1).n_threads == 1 && kp_count == 0);
    CHECK(run(2, 2).n_threads == 2 && kp_count == 1 && idle() == 1);

    /* A caller does not wait for a worker that misses the call; the worker gets the next one. */
    AWAIT(GET(kp_idle->asleep));
    __atomic_store_n(&kp_idle->asleep, 0, __ATOMIC_SEQ_CST);
    meeting here = run(2, 1);
    CHECK(here.came == 1 && here.n_threads == 2 && idle() == 1);
    __atomic_store_n(&kp_idle->asleep, 1, __ATOMIC_SEQ_CST);
    run(2, 2);

    /* A caller that finds all workers busy works alone. */
    pthread_t other;
    pthread_create(&other, NULL, run_theirs, NULL);
    AWAIT(GET(theirs.came) == 2);
    CHECK(run(2, 1).n_threads == 1);
    ADD(theirs.came, 1);
    pthread_join(other, NULL);
    CHECK(theirs.n_threads == 2 && kp_count == 1 && idle() == 1);

    /* The pool grows for a caller that wants more threads. */
    CHECK(run(MAX_THREADS, MAX_THREADS).n_threads == MAX_THREADS);
    CHECK(kp_count == MAX_THREADS - 1 && idle() == MAX_THREADS - 1);
    for (int i = 0; i < 2000; i++) run(1 + i % MAX_THREADS, 1);
    for (int i = 0; i < 200; i++) run(1 + i % MAX_THREADS, 1 + i % MAX_THREADS);
    CHECK(kp_count == MAX_THREADS - 1 && idle() == MAX_THREADS - 1);

    /* After a fork, parent and child have separate workers. */
    fflush(stdout);
    pid_t child = fork();
    CHECK(kp_count == 0 && idle() == 0);
    CHECK(run(3, 3).n_threads == 3 && kp_count == 2 && idle() == 2);
    if (child == 0) _Exit(7);
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    puts("all is well");
    return 0;
}
