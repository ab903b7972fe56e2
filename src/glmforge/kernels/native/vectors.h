// Vectors of floats as wide as the machine has them, in the vector extensions that GCC and Clang share.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#ifdef __clang__
#define GLMFORGE_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define GLMFORGE_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

namespace glmforge {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint16_t Shorts __attribute__((vector_size(LANES * 2)));

struct bfloat16 {
    uint16_t bits;
};

inline Floats broadcast(float value) { return Floats{} + value; }

inline Floats load(const float* from) {
    Floats value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline Floats load(const bfloat16* from) {
    Shorts bits;
    std::memcpy(&bits, from, sizeof bits);
    return (Floats)(__builtin_convertvector(bits, Ints) << 16);
}

// To the nearest number of type T, to even between two. Infinities stay; a NaN may become one.
template <class T>
inline Floats rounded(Floats value) {
    if constexpr (std::is_same_v<T, float>) return value;
    Ints bits = (Ints)value;
    return (Floats)((bits + 0x7fff + ((bits >> 16) & 1)) & ~0xffff);
}

inline void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

inline void store(bfloat16* to, Floats value) {
    Shorts bits = __builtin_convertvector(((Ints)rounded<bfloat16>(value) >> 16) & 0xffff, Shorts);
    std::memcpy(to, &bits, sizeof bits);
}

// The first `count` numbers, and zeros.
template <class T>
Floats load(const T* from, int64_t count) {
    T numbers[LANES] = {};
    std::memcpy(numbers, from, count * sizeof(T));
    return load(numbers);
}

template <class T>
void store(T* to, Floats value, int64_t count) {
    T numbers[LANES];
    store(numbers, value);
    std::memcpy(to, numbers, count * sizeof(T));
}

// Calls f(i, count) for every LANES of n numbers; `count` is less than LANES for the rest.
template <class F>
inline void by_lanes(int64_t n, F f) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) f(i, int64_t(LANES));
    if (i < n) f(i, n - i);
}

template <class T>
inline Floats read(const T* from, int64_t count) {
    return count == LANES ? load(from) : load(from, count);
}

template <class T>
inline void write(T* to, Floats value, int64_t count) {
    if (count == LANES)
        store(to, value);
    else
        store(to, value, count);
}

inline float sum(Floats value) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += value[i];
    return total;
}

// exp to within 2 units in the last place; 0 below the smallest normal number, at most e^88. (A vectorised std::exp needs -ffast-math,
// which would let the compiler forget about infinities.)
inline Floats exp(Floats x) {
    Ints vanishes = x < -87.0f;
    x = vanishes ? Floats{} : x;
    x = x > 88.0f ? broadcast(88.0f) : x;
    const float rounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    Floats n = (x * 1.44269504f + rounder) - rounder;
    Floats r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Floats p = broadcast(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
    return vanishes ? Floats{} : p * (Floats)power;
}

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exp(-x)); }

// Lane i: a[i] + a[i ^ STRIDE] where i does not have the bit STRIDE, the same of b where it has.
template <int STRIDE, size_t... i>
inline Floats fold(Floats a, Floats b, std::index_sequence<i...>) {
    Floats own = GLMFORGE_SHUFFLE(a, b, ((i & STRIDE) ? int(i) + LANES : int(i))...);
    Floats other = GLMFORGE_SHUFFLE(a, b, ((i & STRIDE) ? int(i ^ STRIDE) + LANES : int(i ^ STRIDE))...);
    return own + other;
}

// Lane i: the sum of all lanes of vectors[i], in an order that does not depend on i.
template <int COUNT = LANES>
inline Floats sums(Floats* vectors) {
    if constexpr (COUNT == 1) {
        return vectors[0];
    } else {
        constexpr int HALF = COUNT / 2;
#pragma GCC unroll 8
        for (int i = 0; i < HALF; i++)
            vectors[i] = fold<HALF>(vectors[i], vectors[i + HALF], std::make_index_sequence<LANES>());
        return sums<HALF>(vectors);
    }
}

}  // namespace glmforge
