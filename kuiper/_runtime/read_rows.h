/* Read rows of a weight from an open file without Python. */
#ifndef KUIPER_READ_ROWS_H
#define KUIPER_READ_ROWS_H

#include <stddef.h>
#include <stdint.h>

/* Location of a stored tensor, and the file identity that must still match after a read. */
typedef struct {
    int descriptor;           /* -1 without a file */
    int64_t first, row_bytes; /* byte offset of row 0; bytes per row */
    uint64_t device, inode;
    int64_t size, time; /* bytes; last modification in ns */
} kp_stored;

#if defined(__unix__) || defined(__APPLE__)
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* Read rows [start, stop). Return whether all bytes were read and the file is unchanged. */
static inline int kp_read_rows(const kp_stored *from, ptrdiff_t start, ptrdiff_t stop, char *to) {
    int64_t n_bytes = (stop - start) * from->row_bytes;
    int64_t offset = from->first + start * from->row_bytes;
    while (n_bytes > 0) {
        ssize_t count = pread(from->descriptor, to, n_bytes, offset);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return 0;
        to += count;
        offset += count;
        n_bytes -= count;
    }
    struct stat now;
    if (fstat(from->descriptor, &now) != 0) return 0;
#if defined(__APPLE__)
    struct timespec changed = now.st_mtimespec;
#else
    struct timespec changed = now.st_mtim;
#endif
    return (uint64_t)now.st_dev == from->device && (uint64_t)now.st_ino == from->inode &&
           now.st_size == from->size &&
           changed.tv_sec * INT64_C(1000000000) + changed.tv_nsec == from->time;
}

#else

static inline int kp_read_rows(const kp_stored *from, ptrdiff_t start, ptrdiff_t stop, char *to) {
    (void)from, (void)start, (void)stop, (void)to;
    return 0;
}

#endif

#endif
