// Products of few rows with the rows of a matrix that lies as PyTorch keeps the weights of a linear map, [out, in].
//
// A step of few tokens reads every weight once and is done with it, so nothing is packed or copied. What a product comes
// to is a sum in an order of its own, whichever other rows are computed with it: an answer does not depend on the batch.

#pragma once

#include <algorithm>

#include "vectors.h"

namespace glmforge {

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

// Adds the products of STEP numbers of ROWS rows of x with as many rows of w as make LANES sums.
template <int ROWS, class X, class W>
inline void add_products(const X* const* x, const W* const* w, int64_t at, Floats* sums) {
    using P = Product<X, W>;
    constexpr int COLUMNS = LANES / ROWS;
    typename P::Left left[ROWS];
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) left[row] = P::left(x[row] + at);
#pragma GCC unroll 16
    for (int column = 0; column < COLUMNS; column++) {
        typename P::Right right = P::right(w[column] + at);
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++)
            sums[row * COLUMNS + column] = P::add(sums[row * COLUMNS + column], left[row], right);
    }
}

// Lane row * COLUMNS + column: x[row] times w[column].
template <int ROWS, class X, class W>
inline Floats products(const X* const* x, const W* const* w, int64_t length) {
    constexpr int STEP = Product<X, W>::STEP, COLUMNS = LANES / ROWS;
    Floats vectors[LANES] = {};
    int64_t at = 0;
    for (; at + STEP <= length; at += STEP) add_products<ROWS>(x, w, at, vectors);
    if (at < length) {
        X x_rest[ROWS][STEP] = {};
        W w_rest[COLUMNS][STEP] = {};
        const X* x_rows[ROWS];
        const W* w_rows[COLUMNS];
        for (int row = 0; row < ROWS; row++)
            x_rows[row] = (const X*)std::memcpy(x_rest[row], x[row] + at, (length - at) * sizeof(X));
        for (int column = 0; column < COLUMNS; column++)
            w_rows[column] = (const W*)std::memcpy(w_rest[column], w[column] + at, (length - at) * sizeof(W));
        add_products<ROWS>(x_rows, w_rows, 0, vectors);
    }
    return sums(vectors);
}

template <int ROWS, class Left, class Right, class Take>
inline void multiply_rows(
    const Left& left, int64_t row, const Right& right, int64_t begin, int64_t end, int64_t length, const Take& take) {
    constexpr int COLUMNS = LANES / ROWS;
    decltype(left(row)) x[ROWS];
    for (int i = 0; i < ROWS; i++) x[i] = left(row + i);
    for (int64_t output = begin; output < end; output += COLUMNS) {
        decltype(right(output)) w[COLUMNS];
        for (int column = 0; column < COLUMNS; column++) w[column] = right(std::min(output + column, end - 1));
        float found[LANES];
        store(found, products<ROWS>(x, w, length));
        // Told apart so that `take` is compiled for the usual count.
        if (output + COLUMNS <= end)
            for (int i = 0; i < ROWS; i++) take(row + i, output, found + i * COLUMNS, int64_t(COLUMNS));
        else
            for (int i = 0; i < ROWS; i++) take(row + i, output, found + i * COLUMNS, end - output);
    }
}

// Products of the rows left(0 .. num_rows) with the rows right(begin .. end), all of `length` numbers.
// take(row, output, found, count) is given `count` of them, for outputs from `output` on.
template <class Left, class Right, class Take>
inline void multiply(
    const Left& left, int64_t num_rows, const Right& right, int64_t begin, int64_t end, int64_t length,
    const Take& take) {
    int64_t row = 0;
    for (; row + 4 <= num_rows; row += 4) multiply_rows<4>(left, row, right, begin, end, length, take);
    for (; row + 2 <= num_rows; row += 2) multiply_rows<2>(left, row, right, begin, end, length, take);
    if (row < num_rows) multiply_rows<1>(left, row, right, begin, end, length, take);
}

// The rows of a matrix of `length` columns.
template <class T>
struct Matrix {
    const T* numbers;
    int64_t length;
    const T* operator()(int64_t row) const { return numbers + row * length; }
};

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
