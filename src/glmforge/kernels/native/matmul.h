// Products of few rows with the rows of a matrix that lies as PyTorch keeps the weights of a linear map, [out, in].
//
// A step of few tokens reads every weight once and is done with it, so nothing is packed or copied. What a product comes
// to is a sum in an order of its own, whichever other rows are computed with it: an answer does not depend on the batch.

#pragma once

#include <algorithm>

#include "vectors.h"

namespace glmforge {

constexpr int64_t CACHE_LINE = 64;
// Weights are fetched while so many groups of outputs before theirs are computed: rows of a narrow model are too short
// for the processor to see that another one follows.
constexpr int64_t TILES_AHEAD = 2;

// How STEP numbers of x and w are multiplied and added to a vector of sums. Weights are rounded to the type of x where
// they are more exact, as the modules cast them.
template <class X, class W>
struct Product {
    static constexpr int STEP = LANES;
    using Left = Floats;
    using Right = Floats;
    static Left left(const X* x) { return load(x); }
    static Right right(const W* w) { return rounded<X>(load(w)); }
    static Floats add(Floats sum, Left x, Right w) { return sum + x * w; }
};

#ifdef __AVX512BF16__
template <>
struct Product<bfloat16, bfloat16> {
    static constexpr int STEP = 2 * LANES;
    using Left = __m512bh;
    using Right = __m512bh;
    static Left left(const bfloat16* x) { return (__m512bh)_mm512_loadu_si512(x); }
    static Right right(const bfloat16* w) { return left(w); }
    static Floats add(Floats sum, Left x, Right w) { return (Floats)_mm512_dpbf16_ps((__m512)sum, x, w); }
};

template <>
struct Product<bfloat16, float> : Product<bfloat16, bfloat16> {
    static Right right(const float* w) {
        return _mm512_cvtne2ps_pbh(_mm512_loadu_ps(w + LANES), _mm512_loadu_ps(w));
    }
};
#endif

// Adds the products of STEP numbers of ROWS rows of x with as many rows of w as make LANES sums. What lies `ahead`
// numbers behind those of w is fetched, if that is not 0.
template <int ROWS, bool FETCHES, class X, class W>
inline void add_products(const X* const* x, const W* const* w, int64_t at, int64_t ahead, Floats* sums) {
    using P = Product<X, W>;
    constexpr int COLUMNS = LANES / ROWS;
    typename P::Left left[ROWS];
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) left[row] = P::left(x[row] + at);
#pragma GCC unroll 16
    for (int column = 0; column < COLUMNS; column++) {
        typename P::Right right = P::right(w[column] + at);
        if constexpr (FETCHES)
            for (size_t line = 0; line < P::STEP * sizeof(W); line += CACHE_LINE)
                __builtin_prefetch((const char*)(w[column] + at + ahead) + line);
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++)
            sums[row * COLUMNS + column] = P::add(sums[row * COLUMNS + column], left[row], right);
    }
}

// Lane row * COLUMNS + column: x[row] times w[column].
template <int ROWS, bool FETCHES, class X, class W>
inline Floats products(const X* const* x, const W* const* w, int64_t length, int64_t ahead) {
    constexpr int STEP = Product<X, W>::STEP, COLUMNS = LANES / ROWS;
    Floats vectors[LANES] = {};
    int64_t at = 0;
    for (; at + STEP <= length; at += STEP) add_products<ROWS, FETCHES>(x, w, at, ahead, vectors);
    if (at < length) {
        X x_rest[ROWS][STEP] = {};
        W w_rest[COLUMNS][STEP] = {};
        const X* x_rows[ROWS];
        const W* w_rows[COLUMNS];
        for (int row = 0; row < ROWS; row++)
            x_rows[row] = (const X*)std::memcpy(x_rest[row], x[row] + at, (length - at) * sizeof(X));
        for (int column = 0; column < COLUMNS; column++)
            w_rows[column] = (const W*)std::memcpy(w_rest[column], w[column] + at, (length - at) * sizeof(W));
        add_products<ROWS, false>(x_rows, w_rows, 0, 0, vectors);
    }
    return sums(vectors);
}

// Gives the number of the row behind these.
template <int ROWS, bool FETCHES, class Left, class Right, class Take>
inline int64_t multiply_rows(
    const Left& left, int64_t row, const Right& right, int64_t begin, int64_t end, int64_t length, const Take& take) {
    constexpr int COLUMNS = LANES / ROWS;
    decltype(left(row)) x[ROWS];
    for (int i = 0; i < ROWS; i++) x[i] = left(row + i);
    for (int64_t output = begin; output < end; output += COLUMNS) {
        decltype(right(output)) w[COLUMNS];
        for (int column = 0; column < COLUMNS; column++) w[column] = right(std::min(output + column, end - 1));
        float found[LANES];
        store(found, products<ROWS, FETCHES>(x, w, length, TILES_AHEAD * COLUMNS * length));
        // Told apart so that `take` is compiled for the usual count.
        if (output + COLUMNS <= end)
            for (int i = 0; i < ROWS; i++) take(row + i, output, found + i * COLUMNS, int64_t(COLUMNS));
        else
            for (int i = 0; i < ROWS; i++) take(row + i, output, found + i * COLUMNS, end - output);
    }
    return row + ROWS;
}

// The rows of a matrix of `length` columns.
template <class T>
struct Matrix {
    const T* numbers;
    int64_t length;
    const T* operator()(int64_t row) const { return numbers + row * length; }
};

template <class Right>
constexpr bool IS_MATRIX = false;
template <class T>
constexpr bool IS_MATRIX<Matrix<T>> = true;

// Products of the rows left(0 .. num_rows) with the rows right(begin .. end), all of `length` numbers.
// take(row, output, found, count) is given `count` of them, for outputs from `output` on.
template <class Left, class Right, class Take>
inline void multiply(
    const Left& left, int64_t num_rows, const Right& right, int64_t begin, int64_t end, int64_t length,
    const Take& take) {
    int64_t row = 0;
    if constexpr (IS_MATRIX<Right>)  // the first rows bring the weights into the cache
        row = num_rows >= 4   ? multiply_rows<4, true>(left, 0, right, begin, end, length, take)
              : num_rows >= 2 ? multiply_rows<2, true>(left, 0, right, begin, end, length, take)
              : num_rows      ? multiply_rows<1, true>(left, 0, right, begin, end, length, take)
                              : 0;
    while (row + 4 <= num_rows) row = multiply_rows<4, false>(left, row, right, begin, end, length, take);
    while (row + 2 <= num_rows) row = multiply_rows<2, false>(left, row, right, begin, end, length, take);
    if (row < num_rows) multiply_rows<1, false>(left, row, right, begin, end, length, take);
}

// So many outputs of a linear map are computed at a time: its rows stay in the nearest cache for all rows of x.
constexpr int64_t BLOCK_OUTPUTS = 32;

// Splits outputs into blocks among the threads of the region that it is called in, and waits for all.
// body(begin, end) computes outputs [begin, end).
template <class Body>
inline void by_blocks(int64_t num_outputs, const Body& body) {
    int64_t num_blocks = (num_outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS;
#pragma omp for schedule(static)
    for (int64_t block = 0; block < num_blocks; block++)
        body(block * BLOCK_OUTPUTS, std::min(num_outputs, (block + 1) * BLOCK_OUTPUTS));
}

}  // namespace glmforge
