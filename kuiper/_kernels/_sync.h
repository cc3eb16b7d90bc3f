/* A barrier for a team of threads that all run: spin shortly, then yield to whoever needs the core. */
#ifndef KUIPER_SYNC_H
#define KUIPER_SYNC_H

#if defined(__GNUC__) && !defined(_WIN32)
#include <sched.h>

typedef struct {
    int waiting;
    char pad[60]; /* arrivals and the generation that everyone polls stay on lines of their own */
    int generation;
    char pad2[60];
} kp_barrier;

static inline void kp_barrier_wait(kp_barrier *b, int team) {
    int generation = __atomic_load_n(&b->generation, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&b->waiting, 1, __ATOMIC_ACQ_REL) == team) {
        __atomic_store_n(&b->waiting, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&b->generation, generation + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; __atomic_load_n(&b->generation, __ATOMIC_ACQUIRE) == generation; spins++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
        if (spins > 4000) sched_yield();
    }
}
#else
typedef struct { int unused; } kp_barrier;
static inline void kp_barrier_wait(kp_barrier *b, int team) { (void)b; (void)team; }
#define KP_SERIAL 1
#endif
#ifndef KP_SERIAL
#define KP_SERIAL 0
#endif

#endif
