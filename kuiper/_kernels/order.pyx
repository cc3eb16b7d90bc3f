"""Order along one axis: the greatest and the least, sorting, running sums and products.

Tensors are seen as (outer, n, inner), and a *line* runs along the middle axis.

Sorting turns each element into an unsigned key that has its order, and puts key and place together
in one integer, or in a pair where keys take 64 bits.  Those are sorted by their digits, the lowest
first; that keeps equal elements in their places, and takes as long whatever the values are.  Of a
line of which only the first few are wanted, those whose first digit is too large are left out.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kuiper._kernels._step cimport Step, at, ref_t, share_start

cdef enum:
    STRIP = 256          # lines that are looked through together
    LANES = 32           # strands that a line of adjacent elements is cut into
    SHARE_TERMS = 8192   # a share of fewer elements is not worth another thread
    DIGIT = 8            # bits
    RADIX = 256
    FIRST = 11           # bits of the digit by which a part of a line is left out
    BUCKETS = 2048
    FEW = 24             # entries that are sorted by insertion

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
    bint has_places
    bint is_least
    char dtype
    Py_ssize_t outer
    Py_ssize_t n
    Py_ssize_t inner
    Py_ssize_t x_outer
    Py_ssize_t x_step
    Py_ssize_t strips


cdef inline void look_through(
    bint is_least, const number_t* x, Py_ssize_t step, Py_ssize_t n, Py_ssize_t count,
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
        if is_least:
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


cdef inline void look_along(
    bint is_least, const number_t* x, Py_ssize_t n, number_t* best, Py_ssize_t* place
) noexcept nogil:
    """Find the first extreme of one line of adjacent elements."""
    cdef number_t[LANES] lane_best
    cdef int32_t[LANES] lane_place
    cdef Py_ssize_t rows = n // LANES, j, other
    cdef bint better
    best[0], place[0] = x[0], 0
    if rows > 1:
        look_through(is_least, x, LANES, rows, LANES, lane_best, lane_place)
        best[0], place[0] = lane_best[0], lane_place[0] * LANES
        for j in range(1, LANES):
            other = lane_place[j] * <Py_ssize_t> LANES + j
            better = lane_best[j] < best[0] if is_least else lane_best[j] > best[0]
            better |= lane_best[j] != lane_best[j] and best[0] == best[0]
            # Of equal ones, two NaN among them, the first.
            if not better and other < place[0]:
                better = lane_best[j] == best[0] or (
                    lane_best[j] != lane_best[j] and best[0] != best[0]
                )
            if better:
                best[0], place[0] = lane_best[j], other
    for j in range(rows * LANES if rows > 1 else 1, n):
        better = x[j] < best[0] if is_least else x[j] > best[0]
        better |= x[j] != x[j] and best[0] == best[0]
        if better:
            best[0], place[0] = x[j], j


cdef inline void find_extremes(
    const extreme_t* p, const number_t* x, number_t* values, int64_t* places, Py_ssize_t part,
    Py_ssize_t n_parts,
) noexcept nogil:
    cdef number_t[STRIP] best
    cdef int32_t[STRIP] place
    cdef Py_ssize_t one, item, o, first, count, j
    if p.inner == 1:
        for o in range(
            share_start(p.outer, part, n_parts), share_start(p.outer, part + 1, n_parts)
        ):
            look_along(p.is_least, x + o * p.x_outer, p.n, best, &one)
            if p.has_values:
                values[o] = best[0]
            if p.has_places:
                places[o] = one
        return
    for item in range(
        share_start(p.outer * p.strips, part, n_parts),
        share_start(p.outer * p.strips, part + 1, n_parts),
    ):
        o, first = item // p.strips, item % p.strips * STRIP
        count = min(<Py_ssize_t> STRIP, p.inner - first)
        look_through(
            p.is_least, x + o * p.x_outer + first, p.x_step, p.n, count, best, place
        )
        for j in range(count):
            if p.has_values:
                values[o * p.inner + first + j] = best[j]
            if p.has_places:
                places[o * p.inner + first + j] = place[j]


cdef void extreme_run(
    const void* params, char* const* slots, Py_ssize_t part, Py_ssize_t n_parts
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
    cdef int64_t* places = <int64_t*> at(slots, p.places) if p.has_places else NULL
    if p.dtype == b"f":
        find_extremes(p, <const float*> x, <float*> values, places, part, n_parts)
    elif p.dtype == b"d":
        find_extremes(p, <const double*> x, <double*> values, places, part, n_parts)
    elif p.dtype == b"i":
        find_extremes(p, <const int32_t*> x, <int32_t*> values, places, part, n_parts)
    elif p.dtype == b"l":
        find_extremes(p, <const int64_t*> x, <int64_t*> values, places, part, n_parts)
    else:
        find_extremes(p, <const uint8_t*> x, <uint8_t*> values, places, part, n_parts)


# Kinds of elements, by the name of their dtype.
EXTREME_DTYPES = {
    "float32": "f", "float64": "d", "int32": "i", "int64": "l", "bool": "b", "uint8": "b",
}


cdef class ExtremeStep(Step):
    """Finds the greatest or the least element of each line.

    Parameters
    ----------
    x : Value, shape (outer, n, inner)
        Of a dtype in `EXTREME_DTYPES`; elements of the inner axis are adjacent, where it has
        extent 1 those of the middle axis.
    values : Value or None
        Outer * inner elements in C order.
    places : Value or None
        As many, int64.
    is_least : bool
    """

    cdef extreme_t p

    def __init__(self, x, values, places, is_least):
        self.p.x = self.ref(x)
        self.p.has_values, self.p.has_places = values is not None, places is not None
        if values is not None:
            self.p.values = self.ref(values)
        if places is not None:
            self.p.places = self.ref(places)
        self.p.is_least = is_least
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
        self.max_parts = max(1, min(items, x.size // SHARE_TERMS))


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
    bint has_places
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


cdef inline uint64_t place_of(entry_t entry) noexcept nogil:
    if entry_t is pair_t:
        return entry.place
    else:
        return <uint32_t> entry


cdef inline Py_ssize_t keep_first(
    entry_t* entries, Py_ssize_t n, Py_ssize_t k, int shift, entry_t* kept
) noexcept nogil:
    """Copy those whose first digit is among the k least ones', in their order; return how many."""
    cdef uint32_t[BUCKETS] count
    cdef Py_ssize_t i, sum = 0, m = 0
    cdef uint64_t last = 0
    memset(count, 0, sizeof(count))
    for i in range(n):
        count[sort_key(entries[i]) >> shift] += 1
    while sum + count[last] < k:
        sum += count[last]
        last += 1
    for i in range(n):
        kept[m] = entries[i]
        m += (sort_key(entries[i]) >> shift) <= last
    return m


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


cdef inline void sort_line(
    const sort_t* p, const char* x, entry_t* entries, char* values, int64_t* places
) noexcept nogil:
    """Sort one line; x, values and places are its first elements."""
    cdef entry_t* other = entries + p.n
    cdef entry_t* kept
    cdef Py_ssize_t n = p.n, step = p.inner * p.itemsize, i
    cdef uint64_t place
    # A packed key is the upper half.
    cdef int lowest = 0 if entry_t is pair_t else 32, digits = 8 if entry_t is pair_t else 4
    make_entries(p, x, step, entries)
    if n > 256 and p.k < n // 4:
        n = keep_first(entries, n, p.k, 64 - FIRST, other)
        entries, other = other, entries
    if n <= FEW:
        sort_few(entries, n)
        kept = entries
    else:
        kept = sort_by_digits(entries, other, n, lowest, digits)
    for i in range(p.k):
        place = place_of(kept[i])
        if p.has_values:
            memcpy(values + i * step, x + place * step, p.itemsize)
        if p.has_places:
            places[i * p.inner] = place


cdef void sort_run(
    const void* params, char* const* slots, Py_ssize_t part, Py_ssize_t n_parts
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
    cdef int64_t* places = <int64_t*> at(slots, p.places) if p.has_places else NULL
    cdef char* scratch = at(slots, p.scratch)
    cdef Py_ssize_t lines = p.outer * p.inner, line, o, i, start, target
    for line in range(share_start(lines, part, n_parts), share_start(lines, part + 1, n_parts)):
        o, i = line // p.inner, line % p.inner
        start = o * p.n * p.inner + i
        target = o * p.k * p.inner + i
        if p.itemsize == 8:
            sort_line(
                p, x + start * p.itemsize, <pair_t*> scratch,
                values + target * p.itemsize if p.has_values else NULL,
                places + target if p.has_places else NULL,
            )
        else:
            sort_line(
                p, x + start * p.itemsize, <uint64_t*> scratch,
                values + target * p.itemsize if p.has_values else NULL,
                places + target if p.has_places else NULL,
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
    x : Value, shape (outer, n, inner), C order
        Of a dtype in `SORT_DTYPES`.
    values : Value or None
        Outer * k * inner elements in C order.
    places : Value or None
        As many, int64.
    k : int
        How many of a line are wanted, 1 or more.
    descending : bool
    scratch : Value
        As `sort_bytes` says.
    """

    cdef sort_t p

    def __init__(self, x, values, places, k, descending, scratch):
        self.p.x, self.p.scratch = self.ref(x), self.ref(scratch)
        self.p.has_values, self.p.has_places = values is not None, places is not None
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
        self.max_parts = max(1, min(self.p.outer * self.p.inner, x.size // 256))


# -- scans -------------------------------------------------------------------------------------

ctypedef fused whole_t:
    uint8_t
    int32_t
    int64_t

ctypedef fused real_t:
    float
    double

cdef struct scan_t:
    ref_t x
    ref_t y
    bint multiplies
    char dtype
    Py_ssize_t outer
    Py_ssize_t n
    Py_ssize_t inner
    Py_ssize_t strips


cdef inline void scan_reals(
    const scan_t* p, const real_t* x, real_t* y, Py_ssize_t count
) noexcept nogil:
    cdef double[STRIP] sums
    cdef Py_ssize_t i, j
    for j in range(count):
        sums[j] = 1 if p.multiplies else 0
    for i in range(p.n):
        if p.multiplies:
            for j in range(count):
                sums[j] *= x[i * p.inner + j]
                y[i * p.inner + j] = <real_t> sums[j]
        else:
            for j in range(count):
                sums[j] += x[i * p.inner + j]
                y[i * p.inner + j] = <real_t> sums[j]


cdef inline void scan_wholes(
    const scan_t* p, const whole_t* x, uint64_t* y, Py_ssize_t count
) noexcept nogil:
    # Unsigned, because it may run over.
    cdef uint64_t[STRIP] sums
    cdef Py_ssize_t i, j
    for j in range(count):
        sums[j] = 1 if p.multiplies else 0
    for i in range(p.n):
        for j in range(count):
            if p.multiplies:
                sums[j] *= <uint64_t> <int64_t> x[i * p.inner + j]
            else:
                sums[j] += <uint64_t> <int64_t> x[i * p.inner + j]
            y[i * p.inner + j] = sums[j]


cdef void scan_run(
    const void* params, char* const* slots, Py_ssize_t part, Py_ssize_t n_parts
) noexcept nogil:
    """Running sums or products of each line; floats in double precision.

    Layout : x, y (outer, n, inner), C order
    Needs  : nothing
    Threads: over the outer axis x strips of the inner one
    Source : torch.cumsum, torch.cumprod
    """
    cdef const scan_t* p = <const scan_t*> params
    cdef const char* x = at(slots, p.x)
    cdef char* y = at(slots, p.y)
    cdef Py_ssize_t item, start, first, count
    for item in range(
        share_start(p.outer * p.strips, part, n_parts),
        share_start(p.outer * p.strips, part + 1, n_parts),
    ):
        first = item % p.strips * STRIP
        start = item // p.strips * p.n * p.inner + first
        count = min(<Py_ssize_t> STRIP, p.inner - first)
        if p.dtype == b"f":
            scan_reals(p, <const float*> x + start, <float*> y + start, count)
        elif p.dtype == b"d":
            scan_reals(p, <const double*> x + start, <double*> y + start, count)
        elif p.dtype == b"i":
            scan_wholes(p, <const int32_t*> x + start, <uint64_t*> y + start, count)
        elif p.dtype == b"l":
            scan_wholes(p, <const int64_t*> x + start, <uint64_t*> y + start, count)
        else:
            scan_wholes(p, <const uint8_t*> x + start, <uint64_t*> y + start, count)


cdef class ScanStep(Step):
    """Computes running sums or products of each line.

    Parameters
    ----------
    x, y : Value, shape (outer, n, inner), C order
        x of a dtype in `EXTREME_DTYPES`; y of the same float type, or int64.
    multiplies : bool
    """

    cdef scan_t p

    def __init__(self, x, y, multiplies):
        self.p.x, self.p.y = self.ref(x), self.ref(y)
        self.p.multiplies = multiplies
        self.p.dtype = ord(EXTREME_DTYPES[x.dtype.name])
        self.p.outer, self.p.n, self.p.inner = x.shape
        self.p.strips = (self.p.inner + STRIP - 1) // STRIP
        self.run = scan_run
        self.params = &self.p
        self.kind = "scan"
        self.flops = float(x.size)
        self.bytes = float(x.n_bytes + y.n_bytes)
        self.max_parts = max(1, min(self.p.outer * self.p.strips, x.size // SHARE_TERMS))
