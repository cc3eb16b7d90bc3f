"""Order along one axis: the greatest and the least, sorting, ranks, quantiles, searches
and, in scans.pxi, running sums and the like.

Tensors are seen as (outer, n, inner), and a *line* runs along the middle axis.

Sorting turns each element into an unsigned key that has its order, and puts key and place together
in one integer, or in a pair where keys take 64 bits.  Those are sorted by their digits, the lowest
first; that keeps equal elements in their places, and takes as long whatever the values are.  Of a
line of which only the first few are wanted, most elements are only compared with the last of those
that are kept.
"""

from libc.math cimport ceil, floor, isnan, rint
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kuiper._kernels.micro cimport functions as fn
from kuiper._kernels.micro.dispatch cimport active
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start
from kuiper._kernels.micro.table cimport kernels_t

cdef enum:
    STRIP = 256          # lines that are looked through together
    LANES = 16           # strands that a line of adjacent elements is cut into
    PIECE = 1024         # of such a line: what is looked at twice shall be in the L1 cache
    SHARD_TERMS = 8192   # a shard of fewer elements is not worth another thread
    DIGIT = 8            # bits
    RADIX = 256
    FEW = 32             # elements that are compared with a bound together
    INSERTED = 64        # entries that are sorted by insertion, at the most

ctypedef fused number_t:
    uint8_t
    int32_t
    int64_t
    float
    double

# -- extremes ----------------------------------------------------------------------------------

cdef struct extreme_t:
    ref_t x
    ref_t values
    ref_t places
    bint has_values
    bint has_indices
    bint is_min
    char dtype
    Py_ssize_t outer
    Py_ssize_t n
    Py_ssize_t inner
    Py_ssize_t x_outer
    Py_ssize_t x_step
    Py_ssize_t strips


cdef inline void argreduce_columns(
    bint is_min, const number_t* x, Py_ssize_t step, Py_ssize_t n, Py_ssize_t count,
    number_t* best, int32_t* place,
) noexcept nogil:
    """Find the first extreme of each of `count` adjacent lines of n elements; a NaN is one."""
    cdef Py_ssize_t j
    cdef int32_t i
    cdef bint better
    cdef number_t value
    for j in range(count):
        best[j] = x[j]
        place[j] = 0
    for i in range(1, <int32_t> n):
        x += step
        if is_min:
            for j in range(count):
                value = x[j]
                better = (value < best[j]) | ((value != value) & (best[j] == best[j]))
                best[j] = value if better else best[j]
                place[j] = i if better else place[j]
        else:
            for j in range(count):
                value = x[j]
                better = (value > best[j]) | ((value != value) & (best[j] == best[j]))
                best[j] = value if better else best[j]
                place[j] = i if better else place[j]


cdef inline number_t extreme_of(
    bint is_min, const number_t* x, Py_ssize_t n, bint* has_nan
) noexcept nogil:
    """Return the extreme of n > 0 adjacent elements, whatever where one of them is NaN."""
    cdef number_t[LANES] best
    cdef int32_t[LANES] odd
    cdef Py_ssize_t i, j, rows = n // LANES
    cdef number_t value, result = x[0]
    cdef int32_t any_odd = 0
    if rows > 0:
        for j in range(LANES):
            best[j] = x[j]
            odd[j] = x[j] != x[j]
        for i in range(1, rows):
            if is_min:
                for j in range(LANES):
                    value = x[i * LANES + j]
                    best[j] = value if value < best[j] else best[j]
                    odd[j] |= value != value
            else:
                for j in range(LANES):
                    value = x[i * LANES + j]
                    best[j] = value if value > best[j] else best[j]
                    odd[j] |= value != value
        for j in range(LANES):
            any_odd |= odd[j]
            if best[j] < result if is_min else best[j] > result:
                result = best[j]
    for i in range(rows * LANES, n):
        any_odd |= x[i] != x[i]
        if x[i] < result if is_min else x[i] > result:
            result = x[i]
    has_nan[0] = any_odd
    return result


cdef inline void argreduce_row(
    bint is_min, const number_t* x, Py_ssize_t n, number_t* best, Py_ssize_t* place
) noexcept nogil:
    """Find the first extreme of one line of adjacent elements: what it is, then where."""
    cdef Py_ssize_t start = 0, where = 0, count
    cdef number_t here, extreme = x[0]
    cdef bint has_nan
    while start < n:
        count = min(<Py_ssize_t> PIECE, n - start)
        here = extreme_of(is_min, x + start, count, &has_nan)
        if has_nan:
            where = start
            while x[where] == x[where]:
                where += 1
            best[0], place[0] = x[where], where
            return
        if here < extreme if is_min else here > extreme:
            extreme, where = here, start
        start += count
    while x[where] != extreme:
        where += 1
    # Of equal ones, 0 and -0 among them, the first.
    best[0], place[0] = x[where], where


cdef inline void find_extremes(
    const extreme_t* p, const number_t* x, number_t* values, int64_t* places, Py_ssize_t shard,
    Py_ssize_t n_shards,
) noexcept nogil:
    cdef number_t[STRIP] best
    cdef int32_t[STRIP] place
    cdef Py_ssize_t one, item, o, first, count, j
    if p.inner == 1:
        for o in range(
            shard_start(p.outer, shard, n_shards), shard_start(p.outer, shard + 1, n_shards)
        ):
            argreduce_row(p.is_min, x + o * p.x_outer, p.n, best, &one)
            if p.has_values:
                values[o] = best[0]
            if p.has_indices:
                places[o] = one
        return
    for item in range(
        shard_start(p.outer * p.strips, shard, n_shards),
        shard_start(p.outer * p.strips, shard + 1, n_shards),
    ):
        o, first = item // p.strips, item % p.strips * STRIP
        count = min(<Py_ssize_t> STRIP, p.inner - first)
        argreduce_columns(
            p.is_min, x + o * p.x_outer + first, p.x_step, p.n, count, best, place
        )
        for j in range(count):
            if p.has_values:
                values[o * p.inner + first + j] = best[j]
            if p.has_indices:
                places[o * p.inner + first + j] = place[j]


cdef void extreme_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """The first greatest or least element of each line, and its place.

    Layout : x (outer, n, inner), adjacent elements along inner, or along n where inner is 1
    Needs  : 0 < n < 2**31
    Threads: over rows, or over the outer axis x strips of the inner one
    Source : torch.argmax, torch.argmin, torch.max, torch.min
    """
    cdef const extreme_t* p = <const extreme_t*> params
    cdef const char* x = at(slots, p.x)
    cdef char* values = at(slots, p.values) if p.has_values else NULL
    cdef int64_t* places = <int64_t*> at(slots, p.places) if p.has_indices else NULL
    if p.dtype == b"f":
        find_extremes(p, <const float*> x, <float*> values, places, shard, n_shards)
    elif p.dtype == b"d":
        find_extremes(p, <const double*> x, <double*> values, places, shard, n_shards)
    elif p.dtype == b"i":
        find_extremes(p, <const int32_t*> x, <int32_t*> values, places, shard, n_shards)
    elif p.dtype == b"l":
        find_extremes(p, <const int64_t*> x, <int64_t*> values, places, shard, n_shards)
    else:
        find_extremes(p, <const uint8_t*> x, <uint8_t*> values, places, shard, n_shards)


# Kinds of elements, by the name of their dtype.
EXTREME_DTYPES = {
    "float32": "f", "float64": "d", "int32": "i", "int64": "l", "bool": "b", "uint8": "b",
}


cdef class ExtremeStep(Step):
    """Finds the greatest or the least element of each line.

    Parameters
    ----------
    x : TensorView, shape (outer, n, inner)
        Of a dtype in `EXTREME_DTYPES`; elements of the inner axis are adjacent, where it has
        extent 1 those of the middle axis.
    values : TensorView or None
        Outer * inner elements in C order.
    places : TensorView or None
        As many, int64.
    is_min : bool
    """

    cdef extreme_t p

    def __init__(self, x, values, places, is_min):
        self.p.x = self.ref(x)
        self.p.has_values, self.p.has_indices = values is not None, places is not None
        if values is not None:
            self.p.values = self.ref(values)
        if places is not None:
            self.p.places = self.ref(places)
        self.p.is_min = is_min
        self.p.dtype = ord(EXTREME_DTYPES[x.dtype.name])
        self.p.outer, self.p.n, self.p.inner = x.shape
        self.p.x_outer, self.p.x_step = x.strides[:2]
        self.p.strips = (self.p.inner + STRIP - 1) // STRIP
        self.run = extreme_run
        self.params = &self.p
        self.kind = "extreme"
        self.flops = float(x.size)
        self.bytes = float(x.n_bytes)
        items = self.p.outer * (1 if self.p.inner == 1 else self.p.strips)
        self.max_shards = max(1, min(items, x.size // SHARD_TERMS))


# -- sorting -----------------------------------------------------------------------------------

cdef struct pair_t:
    uint64_t key
    uint64_t place

# What is sorted: a key of 32 bits above a place of 32, or a pair.
ctypedef fused entry_t:
    uint64_t
    pair_t

cdef struct sort_t:
    ref_t x
    ref_t values
    ref_t places
    ref_t scratch
    bint has_values
    bint has_indices
    bint descending
    char dtype
    Py_ssize_t itemsize
    Py_ssize_t outer
    Py_ssize_t n
    Py_ssize_t inner
    Py_ssize_t k


cdef inline uint32_t key_of_float(uint32_t bits) noexcept nogil:
    cdef uint32_t sign = <uint32_t> 1 << 31, infinity = <uint32_t> 0xFF << 23
    if (bits & ~sign) > infinity:  # NaN
        return ~(bits & 0)
    if bits == sign:  # -0 is equal to 0
        return sign
    return ~bits if bits & sign else bits | sign


cdef inline uint64_t key_of_double(uint64_t bits) noexcept nogil:
    cdef uint64_t sign = <uint64_t> 1 << 63, infinity = <uint64_t> 0x7FF << 52
    if (bits & ~sign) > infinity:
        return ~(bits & 0)
    if bits == sign:
        return sign
    return ~bits if bits & sign else bits | sign


cdef inline uint64_t key_of(char dtype, const char* item) noexcept nogil:
    if dtype == b"f":
        return key_of_float((<const uint32_t*> item)[0])
    if dtype == b"d":
        return key_of_double((<const uint64_t*> item)[0])
    if dtype == b"l":
        return (<const uint64_t*> item)[0] ^ (<uint64_t> 1 << 63)
    if dtype == b"i":
        return (<const uint32_t*> item)[0] ^ <uint32_t> 0x80000000
    if dtype == b"h":
        return <uint32_t> ((<const int16_t*> item)[0] + 0x8000)
    if dtype == b"c":
        return <uint32_t> ((<const int8_t*> item)[0] + 0x80)
    return (<const uint8_t*> item)[0]


cdef inline void make_entries(
    const sort_t* p, const char* x, Py_ssize_t step, entry_t* entries
) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint64_t key
    for i in range(p.n):
        key = key_of(p.dtype, x + i * step)
        if entry_t is pair_t:
            entries[i].key = ~key if p.descending else key
            entries[i].place = i
        else:
            key = ~key if p.descending else key
            entries[i] = key << 32 | <uint64_t> i


cdef inline uint64_t sort_key(entry_t entry) noexcept nogil:
    if entry_t is pair_t:
        return entry.key
    else:
        return entry


cdef inline uint64_t key_part(entry_t entry) noexcept nogil:
    """The key of what is sorted, without the place."""
    if entry_t is pair_t:
        return entry.key
    else:
        return entry >> 32


cdef inline uint64_t place_of(entry_t entry) noexcept nogil:
    if entry_t is pair_t:
        return entry.place
    else:
        return <uint32_t> entry


cdef inline void make_entry(entry_t* entry, uint64_t key, Py_ssize_t place) noexcept nogil:
    if entry_t is pair_t:
        entry.key, entry.place = key, place
    else:
        entry[0] = key << 32 | <uint64_t> place


cdef inline bint any_below(
    const sort_t* p, const char* x, Py_ssize_t step, Py_ssize_t n, uint64_t flip, uint64_t bound
) noexcept nogil:
    """Whether one of a few elements has a key below a bound."""
    cdef Py_ssize_t i
    cdef bint found = False
    cdef uint32_t bound_32 = <uint32_t> bound, flip_32 = <uint32_t> flip
    if p.dtype == b"f" and step == 4:
        for i in range(n):
            found |= (key_of_float((<const uint32_t*> x)[i]) ^ flip_32) < bound_32
    else:
        for i in range(n):
            found |= (key_of(p.dtype, x + i * step) ^ flip) < bound
    return found


cdef inline Py_ssize_t keep_few(
    const sort_t* p, const char* x, Py_ssize_t step, uint64_t* entries
) noexcept nogil:
    """Put the first k elements in order as they are met, where k is small; return k.

    Those that are kept stay sorted, so the bound is always that of the k-th element so far.
    """
    cdef uint64_t ones = 0xFFFFFFFF, flip = ones if p.descending else 0, bound = ones, key, entry
    cdef Py_ssize_t i = 0, j, at_entry, n, count = 0
    cdef uint32_t[FEW] keys
    while i < p.n:
        n = min(<Py_ssize_t> FEW, p.n - i)
        if count == p.k and not any_below(p, x + i * step, step, n, flip, bound):
            i += n
            continue
        for j in range(n):
            keys[j] = <uint32_t> (key_of(p.dtype, x + (i + j) * step) ^ flip)
        for j in range(n):
            key = keys[j]
            if count == p.k:
                if key >= bound:
                    continue
                at_entry = count - 1
            else:
                at_entry = count
                count += 1
            entry = key << 32 | <uint64_t> (i + j)
            while at_entry > 0 and entries[at_entry - 1] > entry:
                entries[at_entry] = entries[at_entry - 1]
                at_entry -= 1
            entries[at_entry] = entry
            if count == p.k:
                bound = entries[count - 1] >> 32
        i += n
    return count


cdef inline Py_ssize_t keep_best(
    const sort_t* p, const char* x, Py_ssize_t step, entry_t* entries, entry_t* other
) noexcept nogil:
    """Make entries of those elements that may be among the first k; return how many.

    A few more than k are kept, and sorted whenever there is no room; the k-th of them is the bound
    that whatever comes later has to be below.  Most elements are compared with it and that is all.
    """
    cdef Py_ssize_t room = 2 * p.k + 2 * FEW, count = 0, i, j, n
    # Keys have 32 bits where they are packed; to turn them upside down is to turn the order round.
    cdef uint64_t bound = ~(<uint64_t> 0), flip, key
    if entry_t is not pair_t:
        bound >>= 32
    flip = bound if p.descending else 0
    i = 0
    while i < p.n:
        n = min(<Py_ssize_t> FEW, p.n - i)
        if count < p.k or any_below(p, x + i * step, step, n, flip, bound):
            for j in range(i, i + n):
                key = key_of(p.dtype, x + j * step) ^ flip
                if count < p.k or key < bound:
                    make_entry(&entries[count], key, j)
                    count += 1
                    if count == room:
                        sort_entries(entries, other, count)
                        count = p.k
                        bound = key_part(entries[count - 1])
        i += n
    return count


cdef inline void sort_few(entry_t* entries, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef entry_t entry
    for i in range(1, n):
        entry = entries[i]
        j = i
        while j > 0 and sort_key(entries[j - 1]) > sort_key(entry):
            entries[j] = entries[j - 1]
            j -= 1
        entries[j] = entry


cdef inline entry_t* sort_by_digits(
    entry_t* entries, entry_t* other, Py_ssize_t n, int lowest, int digits
) noexcept nogil:
    """Sort by digits of the keys, the first of which starts at bit `lowest`; return where to."""
    cdef uint32_t[8 * RADIX] counts
    cdef uint32_t* count
    cdef uint32_t sum, this
    cdef Py_ssize_t i
    cdef int d, b
    cdef uint64_t key
    memset(counts, 0, sizeof(counts))
    for i in range(n):
        key = sort_key(entries[i]) >> lowest
        for d in range(digits):
            counts[d * RADIX + (key >> (d * DIGIT) & (RADIX - 1))] += 1
    for d in range(digits):
        count = counts + d * RADIX
        key = sort_key(entries[0]) >> (lowest + d * DIGIT) & (RADIX - 1)
        if <Py_ssize_t> count[key] == n:  # all alike
            continue
        sum = 0
        for b in range(RADIX):
            this = count[b]
            count[b] = sum
            sum += this
        for i in range(n):
            key = sort_key(entries[i]) >> (lowest + d * DIGIT) & (RADIX - 1)
            other[count[key]] = entries[i]
            count[key] += 1
        entries, other = other, entries
    return entries


cdef inline void sort_entries(entry_t* entries, entry_t* other, Py_ssize_t n) noexcept nogil:
    """Sort entries in place, with room for as many others."""
    cdef entry_t* sorted_ones
    # A packed key is the upper half.
    cdef int lowest = 0 if entry_t is pair_t else 32, digits = 8 if entry_t is pair_t else 4
    if n <= INSERTED:
        sort_few(entries, n)
        return
    sorted_ones = sort_by_digits(entries, other, n, lowest, digits)
    if sorted_ones != entries:
        memcpy(entries, sorted_ones, n * sizeof(entry_t))


cdef inline void sort_line(
    const sort_t* p, const char* x, entry_t* entries, char* values, int64_t* places
) noexcept nogil:
    """Sort one line; x, values and places are its first elements."""
    cdef entry_t* other = entries + p.n
    cdef Py_ssize_t n = p.n, step = p.inner * p.itemsize, i
    cdef uint64_t place
    if entry_t is uint64_t and p.k <= FEW and 2 * p.k <= n:
        n = keep_few(p, x, step, entries)
    else:
        if 4 * (p.k + FEW) < n:
            n = keep_best(p, x, step, entries, other)
        else:
            make_entries(p, x, step, entries)
        sort_entries(entries, other, n)
    for i in range(p.k):
        place = place_of(entries[i])
        if p.has_values:
            memcpy(values + i * step, x + place * step, p.itemsize)
        if p.has_indices:
            places[i * p.inner] = place


cdef void sort_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """The first k elements of each line in order, and their places; equal ones keep theirs.

    Layout : x (outer, n, inner), values and places (outer, k, inner), C order
    Needs  : 0 < k <= n < 2**32
    Threads: over lines
    Source : torch.sort, torch.argsort, torch.topk
    """
    cdef const sort_t* p = <const sort_t*> params
    cdef const char* x = at(slots, p.x)
    cdef char* values = at(slots, p.values) if p.has_values else NULL
    cdef int64_t* places = <int64_t*> at(slots, p.places) if p.has_indices else NULL
    cdef char* scratch = at(slots, p.scratch)
    cdef Py_ssize_t lines = p.outer * p.inner, line, o, i, start, target
    for line in range(shard_start(lines, shard, n_shards), shard_start(lines, shard + 1, n_shards)):
        o, i = line // p.inner, line % p.inner
        start = o * p.n * p.inner + i
        target = o * p.k * p.inner + i
        if p.itemsize == 8:
            sort_line(
                p, x + start * p.itemsize, <pair_t*> scratch,
                values + target * p.itemsize if p.has_values else NULL,
                places + target if p.has_indices else NULL,
            )
        else:
            sort_line(
                p, x + start * p.itemsize, <uint64_t*> scratch,
                values + target * p.itemsize if p.has_values else NULL,
                places + target if p.has_indices else NULL,
            )


# Kinds of elements, by the name of their dtype.
SORT_DTYPES = {
    "float32": "f", "float64": "d", "int64": "l", "int32": "i", "int16": "h", "int8": "c",
    "uint8": "b", "bool": "b",
}


def sort_bytes(Py_ssize_t n, dtype):
    """Return how much scratch memory a line of n elements takes."""
    return 2 * n * (sizeof(pair_t) if dtype.itemsize == 8 else sizeof(uint64_t))


cdef class SortStep(Step):
    """Sorts each line, or takes its first elements in order.

    Parameters
    ----------
    x : TensorView, shape (outer, n, inner), C order
        Of a dtype in `SORT_DTYPES`.
    values : TensorView or None
        Outer * k * inner elements in C order.
    places : TensorView or None
        As many, int64.
    k : int
        How many of a line are wanted, 1 or more.
    descending : bool
    scratch : TensorView
        As `sort_bytes` says.
    """

    cdef sort_t p

    def __init__(self, x, values, places, k, descending, scratch):
        self.p.x, self.p.scratch = self.ref(x), self.ref(scratch)
        self.p.has_values, self.p.has_indices = values is not None, places is not None
        if values is not None:
            self.p.values = self.ref(values)
        if places is not None:
            self.p.places = self.ref(places)
        self.p.descending, self.p.k = descending, k
        self.p.dtype, self.p.itemsize = ord(SORT_DTYPES[x.dtype.name]), x.dtype.itemsize
        self.p.outer, self.p.n, self.p.inner = x.shape
        self.run = sort_run
        self.params = &self.p
        self.kind = "sort"
        self.flops = 20.0 * x.size
        self.bytes = 10.0 * x.n_bytes
        self.max_shards = max(1, min(self.p.outer * self.p.inner, x.size // 256))


# -- ranks -------------------------------------------------------------------------------------

# Which element of a sorted line is taken.
cdef enum:
    MIDDLE             # the lower of two, or the first NaN
    NUMBERS_MIDDLE     # of those that are numbers
    COUNTED            # the k-th
    COMMONEST          # the last of the longest run of equal ones

RANKS = {
    "median": MIDDLE, "nanmedian": NUMBERS_MIDDLE, "kthvalue": COUNTED, "mode": COMMONEST,
}


cdef inline Py_ssize_t rank_of(
    int rank, const sort_t* p, const entry_t* entries
) noexcept nogil:
    """Return which of the sorted entries of a line is taken."""
    cdef uint64_t nan = ~(<uint64_t> 0)
    cdef Py_ssize_t numbers = p.n, first = 0, longest = 0, taken = 0, i
    if rank == COUNTED:
        return p.k - 1
    if p.dtype == b"f" or p.dtype == b"d":
        if entry_t is not pair_t:
            nan >>= 32
        while numbers > 0 and key_part(entries[numbers - 1]) == nan:
            numbers -= 1
    if rank == MIDDLE:
        return numbers if numbers < p.n else (p.n - 1) // 2
    if rank == NUMBERS_MIDDLE:
        return max(numbers - 1, <Py_ssize_t> 0) // 2
    for i in range(1, numbers):
        if key_part(entries[i]) != key_part(entries[i - 1]):
            first = i
        if i - first > longest:
            longest, taken = i - first, i
    return taken


cdef inline void rank_line(
    int rank, const sort_t* p, const char* x, entry_t* entries, char* value, int64_t* place
) noexcept nogil:
    cdef Py_ssize_t step = p.inner * p.itemsize, taken
    make_entries(p, x, step, entries)
    sort_entries(entries, entries + p.n, p.n)
    taken = <Py_ssize_t> place_of(entries[rank_of(rank, p, entries)])
    memcpy(value, x + taken * step, p.itemsize)
    if place != NULL:
        place[0] = taken


cdef struct rank_t:
    sort_t sort
    int rank


cdef void rank_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """One element of each line by its rank, and its place; of equal ones the first counts less.

    Layout : x (outer, n, inner), values and places (outer, inner), C order
    Needs  : 0 < n < 2**32
    Threads: over lines
    Source : torch.median, torch.nanmedian, torch.kthvalue, torch.mode
    """
    cdef const rank_t* r = <const rank_t*> params
    cdef const sort_t* p = &r.sort
    cdef const char* x = at(slots, p.x)
    cdef char* values = at(slots, p.values)
    cdef int64_t* places = <int64_t*> at(slots, p.places) if p.has_indices else NULL
    cdef char* scratch = at(slots, p.scratch)
    cdef Py_ssize_t lines = p.outer * p.inner, line
    cdef const char* first
    for line in range(shard_start(lines, shard, n_shards), shard_start(lines, shard + 1, n_shards)):
        first = x + (line // p.inner * p.n * p.inner + line % p.inner) * p.itemsize
        if p.itemsize == 8:
            rank_line(
                r.rank, p, first, <pair_t*> scratch, values + line * p.itemsize,
                places + line if p.has_indices else NULL,
            )
        else:
            rank_line(
                r.rank, p, first, <uint64_t*> scratch, values + line * p.itemsize,
                places + line if p.has_indices else NULL,
            )


cdef class RankStep(Step):
    """Takes one element of each line by its rank.

    Parameters
    ----------
    x : TensorView, shape (outer, n, inner), C order
        Of a dtype in `SORT_DTYPES`; lines are not empty.
    values : TensorView
        Outer * inner elements in C order.
    places : TensorView or None
        As many, int64.
    rank : str
        A key of `RANKS`.
    k : int
        For ``"kthvalue"``, from 1 on.
    scratch : TensorView
        As `sort_bytes` says.
    """

    cdef rank_t p

    def __init__(self, x, values, places, rank, k, scratch):
        cdef sort_t* p = &self.p.sort
        p.x, p.values, p.scratch = self.ref(x), self.ref(values), self.ref(scratch)
        p.has_values, p.has_indices = True, places is not None
        if places is not None:
            p.places = self.ref(places)
        p.descending, p.k = False, k
        p.dtype, p.itemsize = ord(SORT_DTYPES[x.dtype.name]), x.dtype.itemsize
        p.outer, p.n, p.inner = x.shape
        self.p.rank = RANKS[rank]
        self.run = rank_run
        self.params = &self.p
        self.kind = "rank"
        self.flops = 20.0 * x.size
        self.bytes = 10.0 * x.n_bytes
        self.max_shards = max(1, min(p.outer * p.inner, x.size // 256))


# -- quantiles ---------------------------------------------------------------------------------

# What becomes of a rank between two elements.
cdef enum:
    LINEAR
    LOWER
    HIGHER
    MIDPOINT
    NEAREST

INTERPOLATIONS = {
    "linear": LINEAR, "lower": LOWER, "higher": HIGHER, "midpoint": MIDPOINT, "nearest": NEAREST,
}

cdef struct quantile_t:
    sort_t sort
    ref_t levels
    Py_ssize_t count
    int interpolation
    bint skips_nan


cdef inline float between(
    int interpolation, const float* x, Py_ssize_t step, float rank, const uint64_t* entries
) noexcept nogil:
    """Return what a rank that need not be whole stands for; PyTorch's formulas."""
    cdef float below, above, weight
    if interpolation == LOWER:
        rank = <float> floor(rank)
    elif interpolation == HIGHER:
        rank = <float> ceil(rank)
    elif interpolation == NEAREST:
        rank = <float> rint(rank)
    below = x[<Py_ssize_t> place_of(entries[<Py_ssize_t> rank]) * step]
    if interpolation != LINEAR and interpolation != MIDPOINT:
        return below
    above = x[<Py_ssize_t> place_of(entries[<Py_ssize_t> ceil(rank)]) * step]
    weight = <float> 0.5 if interpolation == MIDPOINT else rank - <float> floor(rank)
    if weight < 0.5:
        return below + weight * (above - below)
    return above - (above - below) * (1 - weight)


cdef inline void quantile_line(
    const quantile_t* q, const float* x, const float* levels, float* y, uint64_t* entries
) noexcept nogil:
    cdef const sort_t* p = &q.sort
    cdef Py_ssize_t lines = p.outer * p.inner, numbers = p.n, i
    make_entries(p, <const char*> x, p.inner * p.itemsize, entries)
    sort_entries(entries, entries + p.n, p.n)
    while numbers > 0 and isnan(x[<Py_ssize_t> place_of(entries[numbers - 1]) * p.inner]):
        numbers -= 1
    if numbers < p.n and not q.skips_nan:
        numbers = p.n
        levels = NULL
    for i in range(q.count):
        y[i * lines] = between(
            q.interpolation, x, p.inner,
            <float> (numbers - 1) if levels == NULL
            else levels[i] * <float> max(numbers - 1, <Py_ssize_t> 0), entries,
        )


cdef void quantile_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Values below which fractions of each line lie.

    Layout : x (outer, n, inner), levels (count) -> y (count, outer, inner), C order
    Needs  : 0 < n < 2**32; levels from 0 to 1
    Threads: over lines
    Source : torch.quantile, torch.nanquantile
    """
    cdef const quantile_t* q = <const quantile_t*> params
    cdef const sort_t* p = &q.sort
    cdef char* scratch = at(slots, p.scratch)
    cdef Py_ssize_t lines = p.outer * p.inner, line, first
    for line in range(shard_start(lines, shard, n_shards), shard_start(lines, shard + 1, n_shards)):
        first = line // p.inner * p.n * p.inner + line % p.inner
        quantile_line(
            q, <const float*> at(slots, p.x) + first, <const float*> at(slots, q.levels),
            <float*> at(slots, p.values) + line, <uint64_t*> scratch,
        )


cdef class QuantileStep(Step):
    """Takes the values below which fractions of each line lie.

    Parameters
    ----------
    x : TensorView, shape (outer, n, inner), C order
        float32; lines are not empty.
    levels : TensorView, shape (count,)
        The fractions, from 0 to 1, float32.
    y : TensorView
        Count * outer * inner elements in C order.
    interpolation : str
        A key of `INTERPOLATIONS`.
    skips_nan : bool
        Whether NaN are left out, else lines with one have it for a result.
    scratch : TensorView
        As `sort_bytes` says.
    """

    cdef quantile_t p

    def __init__(self, x, levels, y, interpolation, skips_nan, scratch):
        cdef sort_t* p = &self.p.sort
        p.x, p.values, p.scratch = self.ref(x), self.ref(y), self.ref(scratch)
        p.descending, p.k = False, 0
        p.dtype, p.itemsize = ord(SORT_DTYPES[x.dtype.name]), x.dtype.itemsize
        p.outer, p.n, p.inner = x.shape
        self.p.levels, self.p.count = self.ref(levels), levels.size
        self.p.interpolation, self.p.skips_nan = INTERPOLATIONS[interpolation], skips_nan
        self.run = quantile_run
        self.params = &self.p
        self.kind = "quantile"
        self.flops = 20.0 * x.size
        self.bytes = 10.0 * x.n_bytes
        self.max_shards = max(1, min(p.outer * p.inner, x.size // 256))


# -- searches ----------------------------------------------------------------------------------

cdef struct search_t:
    ref_t lines
    ref_t values
    ref_t y
    bint right
    bint is_float
    bint is_wide
    Py_ssize_t outer
    Py_ssize_t many            # lines: outer, or one for all
    Py_ssize_t n
    Py_ssize_t m


ctypedef fused searched_t:
    int64_t
    float


cdef inline Py_ssize_t search_line(
    bint right, const searched_t* line, Py_ssize_t n, searched_t value
) noexcept nogil:
    cdef Py_ssize_t low = 0, half
    # What is no number is not less than anything, so that it comes last.
    while n > 0:
        half = n // 2
        if not line[low + half] > value if right else not line[low + half] >= value:
            low += half + 1
            n -= half + 1
        else:
            n = half
    return low


cdef void search_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Where values belong in sorted lines.

    Layout : lines (outer or 1, n), values (outer, m) -> y (outer, m), C order
    Needs  : lines that are sorted; where they are not, any places come out
    Threads: over values
    Source : torch.searchsorted, torch.bucketize
    """
    cdef const search_t* p = <const search_t*> params
    cdef const char* lines = at(slots, p.lines)
    cdef const char* values = at(slots, p.values)
    cdef char* y = at(slots, p.y)
    cdef Py_ssize_t total = p.outer * p.m, i, first, place
    for i in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        first = i // p.m * p.n if p.many > 1 else 0
        if p.is_float:
            place = search_line(
                p.right, <const float*> lines + first, p.n, (<const float*> values)[i]
            )
        else:
            place = search_line(
                p.right, <const int64_t*> lines + first, p.n, (<const int64_t*> values)[i]
            )
        if p.is_wide:
            (<int64_t*> y)[i] = place
        else:
            (<int32_t*> y)[i] = <int32_t> place


cdef class SearchStep(Step):
    """Finds where values belong in sorted lines.

    Parameters
    ----------
    lines : TensorView, shape (outer, n) or (1, n), C order
        float32 or int64.
    values : TensorView, shape (outer, m), C order
        Of the same dtype.
    y : TensorView, shape (outer, m), C order
        int64 or int32.
    right : bool
        Whether behind equal elements, else in front of them.
    """

    cdef search_t p

    def __init__(self, lines, values, y, right):
        self.p.lines, self.p.values, self.p.y = self.ref(lines), self.ref(values), self.ref(y)
        self.p.right, self.p.is_float = right, values.dtype.kind == "f"
        self.p.is_wide = y.dtype.itemsize == 8
        self.p.many, self.p.n = lines.shape
        self.p.outer, self.p.m = values.shape
        self.run = search_run
        self.params = &self.p
        self.kind = "search"
        self.flops = float(values.size) * max(1, int(self.p.n).bit_length())
        self.bytes = float(values.n_bytes + lines.n_bytes + y.n_bytes)
        self.max_shards = max(1, values.size // 1024)


include "scans.pxi"
