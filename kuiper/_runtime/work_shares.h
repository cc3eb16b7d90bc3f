/* Work sharing between the threads that run a step.

   A step is cut into chunks. Each thread owns a range of them, so that from step to step it finds
   its own data in its cache; when its range is used up, it claims chunks of other ranges. Threads
   wait for claimed chunks, never for a thread: one that the system has suspended between chunks
   delays no other. */
#ifndef KUIPER_SYNC_H
#define KUIPER_SYNC_H

#if defined(__GNUC__) && !defined(_WIN32)
#include <sched.h>

#define KP_SERIAL 0

/* Claim the next chunk of a range; -1 when it is used up. */
static inline long kp_claim(int *next, long end) {
    if (__atomic_load_n(next, __ATOMIC_RELAXED) >= end) return -1;
    long chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
    return chunk < end ? chunk : -1;
}

static inline void kp_finish(int *done) { __atomic_fetch_add(done, 1, __ATOMIC_RELEASE); }

/* Back off in a wait loop: pause at first, yield the core after 2000 rounds. */
static inline void kp_back_off(long moments) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
    if (moments > 2000) sched_yield();
}

/* Wait until `count` chunks are finished. */
static inline void kp_wait(const int *done, long count) {
    for (long i = 0; __atomic_load_n(done, __ATOMIC_ACQUIRE) < count; i++) kp_back_off(i);
}

/* Publish an address, and the data it points to, to other threads. */
static inline void kp_publish(const char **where, const char *address) {
    __atomic_store_n(where, address, __ATOMIC_RELEASE);
}
static inline const char *kp_acquire(const char *const *where) {
    return __atomic_load_n(where, __ATOMIC_ACQUIRE);
}

/* Record a value that is out of range; if several threads do, the last one wins. */
static inline void kp_record_error(long long *error_slot, long long value) {
    __atomic_store_n(error_slot + 1, value, __ATOMIC_RELAXED);
    __atomic_store_n(error_slot, 1, __ATOMIC_RELAXED);
}

#else

#define KP_SERIAL 1
static inline void kp_record_error(long long *error_slot, long long value) {
    error_slot[1] = value;
    error_slot[0] = 1;
}
static inline long kp_claim(int *next, long end) { return *next < end ? (*next)++ : -1; }
static inline void kp_finish(int *done) { ++*done; }
static inline void kp_publish(const char **where, const char *address) { *where = address; }
static inline const char *kp_acquire(const char *const *where) { return *where; }
static inline void kp_wait(const int *done, long count) { (void)done; (void)count; }

#endif

#endif
