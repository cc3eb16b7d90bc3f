"""Order along one axis: sorting and searching; extremes (extremes.pxi), ranks and quantiles
(ranks.pxi), running sums and extremes (scans.pxi).

Tensors are (outer, n, inner); a *line* runs along the middle axis.

Sorting maps each element to an unsigned key of the same order, and combines key and index in one
integer, or in a pair if keys have 64 bits.  An LSD radix sort orders these entries: it is stable,
and its time does not depend on the values.  If only the first few elements of a line are wanted,
most are only compared with the last of those kept so far.
"""

from libc.math cimport ceil, floor, isnan, rint
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kuiper._kernels.micro cimport functions as fn
from kuiper._kernels.micro.dispatch cimport active
from kuiper._runtime.step cimport Step, at, at_or_null, ceil_div, ref_t, shard_start
from kuiper._kernels.micro.table cimport kernels_t

cdef enum:
    STRIP = 256          # adjacent lines that are scanned together
    LANES = 16           # independent extremes along a line of adjacent elements
    BLOCK = 1024         # elements of such a line that are read twice, from the L1 cache
    SHARD_TERMS = 8192   # fewest elements of a shard that are worth a thread
    DIGIT = 8            # bits
    RADIX = 256
    FEW = 32             # elements that are compared with a bound together
    INSERTED = 64        # most entries that are sorted by insertion

ctypedef fused number_t:
    uint8_t
    int32_t
    int64_t
    float
    double

# -- sorting -----------------------------------------------------------------------------------

cdef struct pair_t:
    uint64_t key
    uint64_t index

# What is sorted: a 32-bit key above a 32-bit index, or a pair of 64 bits each.
ctypedef fused entry_t:
    uint64_t
    pair_t

cdef struct sort_t:
    ref_t x
    ref_t values
    ref_t indices
    ref_t scratch
    bint descending
    char dtype              # of SORT_DTYPES
    Py_ssize_t itemsize
    Py_ssize_t outer
    Py_ssize_t n
    Py_ssize_t inner
    Py_ssize_t k            # elements wanted of a line


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
        make_entry(&entries[i], ~key if p.descending else key, i)


cdef inline uint64_t sort_key(entry_t entry) noexcept nogil:
    if entry_t is pair_t:
        return entry.key
    else:
        return entry


cdef inline uint64_t key_part(entry_t entry) noexcept nogil:
    """Return the key of an entry, without the index."""
    if entry_t is pair_t:
        return entry.key
    else:
        return entry >> 32


cdef inline uint64_t index_of(entry_t entry) noexcept nogil:
    if entry_t is pair_t:
        return entry.index
    else:
        return <uint32_t> entry


cdef inline void make_entry(entry_t* entry, uint64_t key, Py_ssize_t index) noexcept nogil:
    if entry_t is pair_t:
        entry.key, entry.index = key, index
    else:
        entry[0] = key << 32 | <uint64_t> index


cdef inline bint any_below(
    const sort_t* p, const char* x, Py_ssize_t step, Py_ssize_t n, uint64_t flip, uint64_t bound
) noexcept nogil:
    """Tell whether any of n elements has a key below `bound`."""
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
    """Select the first k elements by insertion, for a small k; return k.

    The kept entries stay sorted, so the bound is always the key of the k-th of them.
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
    """Make entries of the elements that may be among the first k; return their number.

    More than k are kept; when there is no room left they are sorted, and the key of the k-th
    becomes the bound for later elements.  Most elements are only compared with it.
    """
    cdef Py_ssize_t room = 2 * p.k + 2 * FEW, count = 0, i, j, n
    # Packed keys have 32 bits.  Inverting the bits of keys reverses their order.
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
    """Sort by the digits of the keys from bit `lowest` on; return the array with the result."""
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
        if <Py_ssize_t> count[key] == n:  # all digits are equal
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
    """Sort entries in place; `other` is scratch memory of the same size."""
    cdef entry_t* result
    # A packed key is the upper half.
    cdef int lowest = 0 if entry_t is pair_t else 32, digits = 8 if entry_t is pair_t else 4
    if n <= INSERTED:
        sort_few(entries, n)
        return
    result = sort_by_digits(entries, other, n, lowest, digits)
    if result != entries:
        memcpy(entries, result, n * sizeof(entry_t))


cdef inline void sort_line(
    const sort_t* p, const char* x, entry_t* entries, char* values, int64_t* indices,
    Py_ssize_t target,
) noexcept nogil:
    """Sort one line, from x; its results begin at element `target` of values and indices."""
    cdef entry_t* other = entries + p.n
    cdef Py_ssize_t n = p.n, step = p.inner * p.itemsize, i
    cdef uint64_t index
    if entry_t is uint64_t and p.k <= FEW and 2 * p.k <= n:
        n = keep_few(p, x, step, entries)
    else:
        if 4 * (p.k + FEW) < n:
            n = keep_best(p, x, step, entries, other)
        else:
            make_entries(p, x, step, entries)
        sort_entries(entries, other, n)
    for i in range(p.k):
        index = index_of(entries[i])
        if values != NULL:
            memcpy(values + target * p.itemsize + i * step, x + index * step, p.itemsize)
        if indices != NULL:
            indices[target + i * p.inner] = index


cdef void sort_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """The first k elements of each line in order, and their indices; the sort is stable.

    Layout : x (outer, n, inner), values and indices (outer, k, inner), C order
    Needs  : 0 < k <= n < 2**32
    Threads: over lines
    Source : torch.sort, torch.argsort, torch.topk
    """
    cdef const sort_t* p = <const sort_t*> params
    cdef const char* x = at(slots, p.x)
    cdef char* scratch = at(slots, p.scratch)
    cdef char* values = at_or_null(slots, p.values)
    cdef int64_t* indices = <int64_t*> at_or_null(slots, p.indices)
    cdef Py_ssize_t lines = p.outer * p.inner, line, o, i, start, target
    for line in range(shard_start(lines, shard, n_shards), shard_start(lines, shard + 1, n_shards)):
        o, i = line // p.inner, line % p.inner
        start = (o * p.n * p.inner + i) * p.itemsize
        target = o * p.k * p.inner + i
        if p.itemsize == 8:
            sort_line(p, x + start, <pair_t*> scratch, values, indices, target)
        else:
            sort_line(p, x + start, <uint64_t*> scratch, values, indices, target)


# The code of each dtype.
SORT_DTYPES = {
    "float32": "f", "float64": "d", "int64": "l", "int32": "i", "int16": "h", "int8": "c",
    "uint8": "b", "bool": "b",
}


def sort_bytes(Py_ssize_t n, dtype):
    """Return the bytes of scratch memory for a line of n elements."""
    return 2 * n * (sizeof(pair_t) if dtype.itemsize == 8 else sizeof(uint64_t))


cdef fill_sort(Step step, sort_t* p, x, values, indices, k, scratch):
    """Store the operands of a step that sorts the lines of x in ascending order."""
    p.x, p.scratch = step.ref(x), step.ref(scratch)
    p.values, p.indices = step.ref(values), step.ref(indices)
    p.descending, p.k = False, k
    p.dtype, p.itemsize = ord(SORT_DTYPES[x.dtype.name]), x.dtype.itemsize
    p.outer, p.n, p.inner = x.shape
    step.flops = 20.0 * x.size
    step.bytes = 10.0 * x.n_bytes
    step.max_shards = max(1, min(p.outer * p.inner, x.size // 256))


cdef class SortStep(Step):
    """Sorts each line, or takes its first elements in order.

    Parameters
    ----------
    x : TensorView, shape (outer, n, inner), C order
        Of a dtype in `SORT_DTYPES`.
    values : TensorView or None
        outer * k * inner elements in C order.
    indices : TensorView or None
        As many, int64.
    k : int
        Number of elements per line, >= 1.
    descending : bool
    scratch : TensorView
        :func:`sort_bytes` bytes.
    """

    cdef sort_t p

    def __init__(self, x, values, indices, k, descending, scratch):
        fill_sort(self, &self.p, x, values, indices, k, scratch)
        self.p.descending = descending
        self.run = sort_run
        self.params = &self.p
        self.kind = "sort"


# -- searches ----------------------------------------------------------------------------------

cdef struct search_t:
    ref_t lines
    ref_t values
    ref_t y
    bint right                 # after equal elements, else before them
    bint is_float              # float, else int64
    bint is_wide               # y is int64, else int32
    Py_ssize_t outer
    Py_ssize_t n_lines         # outer, or 1 for all values
    Py_ssize_t n               # elements of a line
    Py_ssize_t m               # values per line


ctypedef fused searched_t:
    int64_t
    float


cdef inline Py_ssize_t search_line(
    bint right, const searched_t* line, Py_ssize_t n, searched_t value
) noexcept nogil:
    cdef Py_ssize_t low = 0, half
    # The negated comparisons make NaN the greatest value.
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
    """The insertion points of values in sorted lines, by binary search.

    Layout : lines (outer or 1, n), values (outer, m) -> y (outer, m), C order
    Needs  : sorted lines; otherwise the results are arbitrary
    Threads: over values
    Source : torch.searchsorted, torch.bucketize
    """
    cdef const search_t* p = <const search_t*> params
    cdef const char* lines = at(slots, p.lines)
    cdef const char* values = at(slots, p.values)
    cdef char* y = at(slots, p.y)
    cdef Py_ssize_t total = p.outer * p.m, i, first, position
    for i in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        first = i // p.m * p.n if p.n_lines > 1 else 0
        if p.is_float:
            position = search_line(
                p.right, <const float*> lines + first, p.n, (<const float*> values)[i]
            )
        else:
            position = search_line(
                p.right, <const int64_t*> lines + first, p.n, (<const int64_t*> values)[i]
            )
        if p.is_wide:
            (<int64_t*> y)[i] = position
        else:
            (<int32_t*> y)[i] = <int32_t> position


cdef class SearchStep(Step):
    """Finds the insertion points of values in sorted lines.

    Parameters
    ----------
    lines : TensorView, shape (outer, n) or (1, n), C order
        float32 or int64.
    values : TensorView, shape (outer, m), C order
        Of the same dtype.
    y : TensorView, shape (outer, m), C order
        int64 or int32.
    right : bool
        Whether to insert after equal elements, else before them.
    """

    cdef search_t p

    def __init__(self, lines, values, y, right):
        self.p.lines, self.p.values, self.p.y = self.ref(lines), self.ref(values), self.ref(y)
        self.p.right, self.p.is_float = right, values.dtype.kind == "f"
        self.p.is_wide = y.dtype.itemsize == 8
        self.p.n_lines, self.p.n = lines.shape
        self.p.outer, self.p.m = values.shape
        self.run = search_run
        self.params = &self.p
        self.kind = "search"
        self.flops = float(values.size) * max(1, int(self.p.n).bit_length())
        self.bytes = float(values.n_bytes + lines.n_bytes + y.n_bytes)
        self.max_shards = max(1, values.size // 1024)


include "extremes.pxi"
include "ranks.pxi"
include "scans.pxi"
