/* Monotonic seconds. */
#ifndef KUIPER_CLOCK_H
#define KUIPER_CLOCK_H
#if defined(_WIN32)
#include <windows.h>
static inline double kp_clock_now(void) {
    LARGE_INTEGER ticks, frequency;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&frequency);
    return (double)ticks.QuadPart / (double)frequency.QuadPart;
}
#else
#include <time.h>
static inline double kp_clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
#endif
#endif
